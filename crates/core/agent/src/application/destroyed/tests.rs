//! Tests with records that were written without knowledge of an application's end.

use model::Machine;

use super::super::earlier::tests::{FIRST, NOW, SECOND, established, id, release, serves, spec};
use super::*;
use crate::application::Event;

const END: Event = Event::Destroyed { created_at: FIRST, destroyed: true };

fn holder(node: &str, created_at: Timestamp) -> Holder {
    Holder {
        v: 1,
        node: node.parse().unwrap(),
        since: NOW,
        created_at: Some(created_at),
        unknown: model::record::Unknown::new(),
    }
}

/// Hears of the events, then lets time pass; returns what is asked for.
fn asked(machine: &mut Application, events: impl IntoIterator<Item = Event>) -> Vec<Effect> {
    let (mut effects, mut now) = (Vec::new(), NOW);
    for event in events {
        machine.handle(now, event, &mut effects);
        machine.check_invariants();
    }
    while let Some(at) = machine.deadline().filter(|at| *at <= NOW.after(REQUEST_WAIT_MAX * 2)) {
        now = at;
        machine.tick(now, &mut effects);
    }
    effects
}

fn anew() -> Application {
    let mut machine = established();
    let events = [END, release(2, Some(SECOND)), serves(2, SECOND), spec(SECOND)];
    asked(&mut machine, events);
    assert_eq!(machine.serving(), Some(&id(2)));
    machine
}

fn written(effects: &[Effect]) -> Vec<Timestamp> {
    let specs = effects.iter().filter_map(|effect| match effect {
        Effect::WriteSpec(spec) => Some(spec.created_at),
        _ => None,
    });
    specs.collect()
}

#[test]
fn a_specification_that_comes_late_of_a_destroyed_application_is_none() {
    for events in [[END, spec(FIRST)], [spec(FIRST), END]] {
        let mut machine = established();
        let effects = asked(&mut machine, events);
        assert_eq!(machine.serving(), None);
        assert!(effects.ends_with(&[Effect::ClearRemains, Effect::AllStopped]), "{effects:?}");
        // Nor does it start anything where it is found at start.
        let mut started = Application::new("n1".parse().unwrap(), "shop".parse().unwrap());
        let all = [spec(FIRST), release(1, Some(FIRST)), serves(1, FIRST), END];
        let all = all.into_iter().chain([Event::Adopted(Vec::new())]);
        let effects = asked(&mut started, all);
        assert_eq!(effects, [Effect::ClearRemains, Effect::AllStopped]);
    }
}

#[test]
fn an_application_that_was_made_anew_writes_again_what_a_late_specification_replaced() {
    let mut machine = anew();
    let effects = asked(&mut machine, [spec(FIRST)]);
    assert_eq!(machine.serving(), Some(&id(2)));
    assert_eq!(written(&effects), [SECOND]);
    assert!(effects.contains(&Effect::ClearRemains));
    assert_eq!(written(&asked(&mut machine, [spec(SECOND)])), []);
}

#[test]
fn an_application_that_was_made_anew_outlives_the_removal_of_a_late_specification() {
    let mut machine = anew();
    assert_eq!(written(&asked(&mut machine, [Event::Spec(None)])), [SECOND]);
    assert_eq!(machine.serving(), Some(&id(2)));
    // It does not outlive its own, whether its end is heard of or its releases go as well.
    let end = Event::Destroyed { created_at: SECOND, destroyed: true };
    for last in [end, Event::Release(id(2), None)] {
        let mut machine = anew();
        let effects = asked(&mut machine, [Event::Spec(None), last]);
        assert_eq!(written(&effects), []);
        assert_eq!(machine.serving(), None);
    }
}

#[test]
fn the_word_of_a_destroyed_application_on_its_files_is_not_believed() {
    let mut machine = anew();
    asked(&mut machine, [Event::Holder(Some(holder("n1", SECOND)))]);
    let effects = asked(&mut machine, [Event::Holder(Some(holder("n2", FIRST)))]);
    assert!(effects.contains(&Effect::WriteHolder(holder("n1", SECOND))), "{effects:?}");
    assert_eq!(machine.held_by_other(), None);
}

#[test]
fn a_rollout_that_is_heard_of_before_the_end_is_that_of_the_application_made_anew() {
    let mut machine = established();
    let rollout = [release(2, Some(SECOND)), serves(2, SECOND)];
    asked(&mut machine, rollout.into_iter().chain([END, spec(SECOND)]));
    assert_eq!(machine.serving(), Some(&id(2)));
}

#[test]
fn an_end_that_is_forgotten_counts_no_longer() {
    let mut machine = established();
    asked(&mut machine, [END, Event::Destroyed { created_at: FIRST, destroyed: false }]);
    asked(&mut machine, [release(1, Some(FIRST)), serves(1, FIRST), spec(FIRST)]);
    assert_eq!(machine.serving(), Some(&id(1)));
}

/// Returns the specification of one that was destroyed and is kept.
fn kept(created_at: Timestamp) -> Event {
    let end = model::application::KeptEnd { at: NOW, until: NOW, by: "ana".into() };
    Event::Spec(Some(ApplicationSpec { end: Some(end), ..ApplicationSpec::new(created_at) }))
}

#[test]
fn one_that_is_kept_counts_as_absent_and_comes_back_as_it_was() {
    let mut machine = established();
    let serving = machine.serving().cloned();
    assert_eq!(asked(&mut machine, [kept(FIRST)]), [Effect::AllStopped]);
    assert_eq!(machine.serving(), None);
    let effects = asked(&mut machine, [spec(FIRST)]);
    assert_eq!(machine.serving(), serving.as_ref());
    assert_eq!(written(&effects), []);
}

#[test]
fn one_that_is_kept_is_not_written_again_by_those_that_knew_it_before() {
    let mut machine = anew();
    let effects = asked(&mut machine, [kept(SECOND)]);
    assert_eq!((machine.serving(), written(&effects)), (None, vec![]));
}

#[test]
fn what_comes_late_of_one_that_was_kept_and_then_destroyed_replaces_nothing() {
    let mut machine = anew();
    let effects = asked(&mut machine, [kept(FIRST)]);
    assert_eq!(machine.serving(), Some(&id(2)));
    assert_eq!(written(&effects), [SECOND]);
}
