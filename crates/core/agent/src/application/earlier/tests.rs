//! Tests with records of two applications of one name, in any order.

use model::application::Settings;
use model::release::{ProcessRecipe, Recipe};
use model::value::ContentHash;
use model::{ApplicationSpec, Machine, ProcessType, Release, Timestamp};

use super::*;
use crate::application::{Event, merge};
use crate::placement::Hold;

pub(in crate::application) const FIRST: Timestamp = Timestamp(1_000);
pub(in crate::application) const SECOND: Timestamp = Timestamp(50_000);
pub(in crate::application) const NOW: Timestamp = Timestamp(100_000);

pub(in crate::application) fn id(number: u64) -> ReleaseId {
    ReleaseId { number, node: "n1".parse().unwrap() }
}

pub(in crate::application) fn release(
    number: u64,
    application_created_at: Option<Timestamp>,
) -> Event {
    let web = ProcessRecipe { default_count: 1, ..ProcessRecipe::default() };
    let release = Release {
        v: 1,
        id: id(number),
        source: ContentHash([0; 32]),
        source_bytes: 1,
        build: None,
        recipe: Recipe { processes: [(ProcessType::web(), web)].into(), ..Recipe::default() },
        settings: Settings { application_created_at, ..Settings::default() },
        created_at: NOW,
        author: "ann".into(),
        note: String::new(),
        replaces: None,
        revision: None,
        remark: None,
        takes_back: None,
        unknown: model::record::Unknown::new(),
    };
    Event::Release(id(number), Some(release))
}

fn rollout(number: u64, created_at: Option<Timestamp>) -> Rollout {
    let (serving, target) = (Some(id(number)), Some(id(number)));
    Rollout { serving, target, created_at, ..Rollout::new("n1".parse().unwrap(), NOW) }
}

pub(in crate::application) fn serves(number: u64, created_at: Timestamp) -> Event {
    Event::Rollout(Some(rollout(number, Some(created_at))))
}

pub(in crate::application) fn spec(created_at: Timestamp) -> Event {
    Event::Spec(Some(ApplicationSpec::new(created_at)))
}

/// Returns the numbers of the releases that are built after each event.
fn built(machine: &mut Application, events: impl IntoIterator<Item = Event>) -> Vec<u64> {
    let mut effects = Vec::new();
    for event in events {
        machine.handle(NOW, event, &mut effects);
        machine.check_invariants();
    }
    let built = effects.iter().filter_map(|effect| match effect {
        Effect::Build { release } => Some(release.id.number),
        _ => None,
    });
    built.collect()
}

pub(in crate::application) fn established() -> Application {
    let mut machine = Application::new("n1".parse().unwrap(), "shop".parse().unwrap());
    let known = [spec(FIRST), release(1, Some(FIRST)), serves(1, FIRST)];
    let adopted = Event::Adopted(Vec::new());
    assert_eq!(built(&mut machine, known.into_iter().chain([adopted])), [1]);
    machine
}

#[test]
fn what_comes_late_of_an_application_that_was_destroyed_is_not_run_by_the_one_made_anew() {
    let late = [release(2, Some(FIRST)), serves(2, FIRST)];
    let gone = [Event::Spec(None), Event::Rollout(None), Event::Release(id(1), None)];
    // The records come before it is made anew, and after that.
    for before in [true, false] {
        let mut machine = established();
        let anew = match before {
            true => [late[0].clone(), late[1].clone(), spec(SECOND)],
            false => [spec(SECOND), late[0].clone(), late[1].clone()],
        };
        assert_eq!(built(&mut machine, gone.iter().cloned().chain(anew)), [0; 0]);
        assert_eq!(machine.serving(), None);
        // A machine that starts with all of that has nothing to run either.
        let mut started = Application::new("n1".parse().unwrap(), "shop".parse().unwrap());
        let all = [spec(SECOND), late[0].clone(), late[1].clone(), Event::Adopted(Vec::new())];
        assert_eq!(built(&mut started, all), [0; 0]);
        assert_eq!(built(&mut machine, [release(3, Some(SECOND)), serves(3, SECOND)]), [0; 0]);
    }
}

/// A node that was cut off hears of all of it at once, in any order.
#[test]
fn an_application_that_was_made_anew_unheard_runs_its_own_releases_alone() {
    let theirs = |event| match event {
        Event::Rollout(Some(rollout)) => {
            Event::Rollout(Some(Rollout { coordinator: "n2".parse().unwrap(), ..rollout }))
        }
        other => other,
    };
    let places = [((ProcessType::web(), 1), Hold::Keep)];
    for spec_at in 0..3 {
        let mut machine = Application::new("n1".parse().unwrap(), "shop".parse().unwrap());
        let live = ["n1", "n2"].map(|node| node.parse().unwrap());
        let mut known = vec![Event::Live(live.into()), Event::Places(places.clone().into())];
        known.extend([spec(FIRST), release(1, Some(FIRST)), theirs(serves(1, FIRST))]);
        known.push(Event::Adopted(Vec::new()));
        assert_eq!(built(&mut machine, known), [1]);
        let mut events = vec![release(2, Some(SECOND)), theirs(serves(2, SECOND))];
        events.insert(spec_at, spec(SECOND));
        assert_eq!(built(&mut machine, events), [2], "{spec_at}");
        assert_eq!(machine.serving(), Some(&id(2)));
    }
}

#[test]
fn releases_of_before_they_said_what_they_were_pushed_to_run_on() {
    let mut machine = Application::new("n1".parse().unwrap(), "shop".parse().unwrap());
    let old = Event::Rollout(Some(rollout(1, None)));
    let events = [spec(SECOND), release(1, None), old, Event::Adopted(Vec::new())];
    assert_eq!(built(&mut machine, events), [1]);
}

#[test]
fn a_rollout_of_another_application_is_not_merged_into_this_ones() {
    let ours = Rollout { serving: None, ..rollout(1, Some(SECOND)) };
    assert_eq!(merge(Some(rollout(9, Some(FIRST))), ours.clone()), ours);
    let request = Rollout { phase: RolloutPhase::Requested, ..rollout(9, None) };
    assert_eq!(merge(Some(request.clone()), ours).target, request.target);
}
