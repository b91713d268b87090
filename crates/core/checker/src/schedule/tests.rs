//! Tests of the checker's machine, one event at a time.

use super::*;
use crate::probe::Method;

struct Bench {
    checker: Checker,
    now: Timestamp,
}

impl Bench {
    fn new() -> Bench {
        Bench { checker: Checker::new(7), now: Timestamp(1_000_000) }
    }

    fn handle(&mut self, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.checker.handle(self.now, event, &mut effects);
        self.checker.check_invariants();
        effects
    }

    /// Goes to the deadline and performs it.
    fn tick(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.now = self.now.max(self.checker.deadline().expect("something is due"));
        self.checker.tick(self.now, &mut effects);
        self.checker.check_invariants();
        assert!(self.checker.deadline().is_none_or(|deadline| deadline > self.now));
        effects
    }

    fn probe(&mut self, outcome: ProbeOutcome) -> Vec<Effect> {
        let effects = self.tick();
        let [Effect::Probe { instance, target }] = &effects[..] else {
            panic!("one probe was expected: {effects:?}")
        };
        let (instance, generation) = (instance.clone(), target.generation);
        self.handle(Event::Probed { instance, generation, outcome })
    }
}

fn instance(slot: u32) -> InstanceId {
    InstanceId { application: "shop".parse().unwrap(), process: model::ProcessType::web(), slot }
}

fn target(generation: Generation) -> Target {
    Target {
        generation,
        method: Method::Tcp { port: 20_000 },
        interval: Duration::from_secs(1),
        timeout: Duration::from_secs(5),
    }
}

fn absent() -> ProbeOutcome {
    ProbeOutcome::Absent { detail: "connection refused".into() }
}

fn health(effects: &[Effect]) -> Option<HealthState> {
    match effects {
        [Effect::WriteVerdict { verdict: Some(verdict), .. }] => Some(verdict.health),
        [] => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_verdict_is_written_when_it_changes_and_only_then() {
    let mut bench = Bench::new();
    bench.handle(Event::Target(instance(1), Some(target(1))));
    assert_eq!(health(&bench.probe(ProbeOutcome::Well)), None);
    assert_eq!(health(&bench.probe(absent())), None);
    let doubtful_at = bench.now;
    assert_eq!(health(&bench.probe(absent())), Some(HealthState::Gone));
    assert_eq!(bench.now.since(doubtful_at), RECHECK);
    assert_eq!(health(&bench.probe(absent())), None);
    assert_eq!(health(&bench.probe(ProbeOutcome::Well)), Some(HealthState::Healthy));
    assert_eq!(health(&bench.probe(ProbeOutcome::Well)), None);
}

#[test]
fn a_suspect_is_probed_at_once() {
    let mut bench = Bench::new();
    bench.handle(Event::Target(instance(1), Some(target(3))));
    bench.probe(ProbeOutcome::Well);
    assert_eq!(bench.handle(Event::Suspect(instance(1), 2)), [], "an older process");
    let effects = bench.handle(Event::Suspect(instance(1), 3));
    assert!(matches!(effects[..], [Effect::Probe { .. }]), "{effects:?}");
}

#[test]
fn a_verdict_on_an_older_process_is_withdrawn() {
    let mut bench = Bench::new();
    bench.handle(Event::Target(instance(1), Some(target(1))));
    bench.probe(absent());
    bench.probe(absent());
    let effects = bench.handle(Event::Target(instance(1), Some(target(2))));
    assert_eq!(effects, [Effect::WriteVerdict { instance: instance(1), verdict: None }]);
    let stale = Event::Probed { instance: instance(1), generation: 1, outcome: absent() };
    assert_eq!(bench.handle(stale), []);
}

#[test]
fn an_instance_no_longer_watched_loses_its_verdict() {
    let mut bench = Bench::new();
    bench.handle(Event::Target(instance(1), Some(target(1))));
    bench.probe(absent());
    bench.probe(absent());
    let effects = bench.handle(Event::Target(instance(1), None));
    assert_eq!(effects, [Effect::WriteVerdict { instance: instance(1), verdict: None }]);
    assert_eq!(bench.checker.deadline(), None);
}

#[test]
fn probes_at_once_are_bounded_and_lost_reports_are_made_up_for() {
    let mut bench = Bench::new();
    for slot in 1..=200 {
        bench.handle(Event::Target(instance(slot), Some(target(1))));
    }
    let started_at = bench.now;
    let mut started = BTreeSet::new();
    while bench.now.since(started_at) < Duration::from_secs(400) && started.len() < 200 {
        for effect in bench.tick() {
            let Effect::Probe { instance, .. } = effect else { panic!("{effect:?}") };
            started.insert(instance.slot);
            // Every second report is lost.
            if instance.slot % 2 == 0 {
                bench.handle(Event::Probed {
                    instance,
                    generation: 1,
                    outcome: ProbeOutcome::Well,
                });
            }
        }
    }
    assert!(started.len() > PROBES_AT_ONCE_MAX, "{}", started.len());
}

/// Failing to reach the node of an instance is no news of the instance.
#[test]
fn silence_is_no_verdict_and_takes_back_what_was_said() {
    let mut bench = Bench::new();
    bench.handle(Event::Target(instance(1), Some(target(1))));
    for _ in 0..10 {
        assert_eq!(bench.probe(ProbeOutcome::Unreached), []);
    }
    bench.probe(absent());
    assert_eq!(bench.probe(ProbeOutcome::Unreached), [], "what was counted before is forgotten");
    bench.probe(absent());
    assert_eq!(health(&bench.probe(absent())), Some(HealthState::Gone));
    let effects = bench.probe(ProbeOutcome::Unreached);
    assert_eq!(effects, [Effect::WriteVerdict { instance: instance(1), verdict: None }]);
    assert_eq!(bench.probe(ProbeOutcome::Unreached), []);
}
