//! Tests of what is believed, one word at a time.

use super::*;
use model::ProcessType;

struct Court {
    jury: Jury,
    /// The verdict as it is in the store.
    standing: Option<Verdict>,
}

fn node(name: &str) -> NodeId {
    name.parse().unwrap()
}

fn nodes(names: &str) -> BTreeSet<NodeId> {
    names.split_whitespace().map(node).collect()
}

fn instance() -> InstanceId {
    InstanceId { application: "shop".parse().unwrap(), process: ProcessType::web(), slot: 1 }
}

fn verdict(generation: Generation, health: HealthState) -> Verdict {
    let detail = "connection refused".into();
    let unknown = Unknown::new();
    Verdict { v: 1, generation, health, detail, changed_at: Timestamp(1), unknown }
}

impl Court {
    fn new(checkers: &str) -> Court {
        let mut court = Court { jury: Jury::new(), standing: None };
        court.hear(Evidence::Checkers(nodes(checkers)));
        court.hear(Evidence::Alive(nodes(checkers)));
        court.hear(Evidence::Ready(instance(), Some(7)));
        court
    }

    fn hear(&mut self, said: Evidence) {
        let mut rulings = Vec::new();
        self.jury.handle(Timestamp(5), said, &mut rulings);
        self.jury.check_invariants();
        for ruling in rulings {
            assert_eq!(ruling.instance, instance());
            self.standing = ruling.verdict;
        }
    }

    fn testify(&mut self, who: &str, health: HealthState) {
        self.hear(Evidence::Testimony(instance(), node(who), Some(verdict(7, health))));
    }

    fn health(&self) -> Option<HealthState> {
        self.standing.as_ref().map(|verdict| verdict.health)
    }
}

#[test]
fn one_witness_of_several_is_not_believed_and_two_are() {
    let mut court = Court::new("a b c");
    court.testify("a", HealthState::Gone);
    assert_eq!(court.health(), None);
    court.testify("b", HealthState::Gone);
    assert_eq!(court.health(), Some(HealthState::Gone));
    let detail = &court.standing.as_ref().unwrap().detail;
    assert!(detail.contains("refused") && detail.contains("a, b"), "{detail}");
    court.testify("a", HealthState::Healthy);
    assert_eq!(court.health(), None);
}

#[test]
fn two_witnesses_agree_on_the_milder_verdict() {
    let mut court = Court::new("a b c");
    court.testify("a", HealthState::Failing);
    court.testify("b", HealthState::Gone);
    assert_eq!(court.health(), Some(HealthState::Failing));
    court.testify("c", HealthState::Gone);
    assert_eq!(court.health(), Some(HealthState::Gone));
}

#[test]
fn a_checker_alone_in_its_cluster_is_believed() {
    let mut court = Court::new("a");
    court.testify("a", HealthState::Failing);
    assert_eq!(court.health(), Some(HealthState::Failing));
}

/// Other nodes that are cut off are still on the roster.
#[test]
fn a_cut_does_not_make_one_witness_enough() {
    let mut court = Court::new("a b c");
    court.hear(Evidence::Alive(nodes("a")));
    court.testify("a", HealthState::Gone);
    assert_eq!(court.health(), None);
}

#[test]
fn a_witness_that_is_silent_or_has_no_checker_is_not_heard() {
    let mut court = Court::new("a b");
    court.testify("a", HealthState::Gone);
    court.testify("stranger", HealthState::Gone);
    assert_eq!(court.health(), None);
    court.testify("b", HealthState::Gone);
    assert_eq!(court.health(), Some(HealthState::Gone));
    court.hear(Evidence::Alive(nodes("a")));
    assert_eq!(court.health(), None, "what it said may be over");
    court.hear(Evidence::Alive(nodes("a b")));
    assert_eq!(court.health(), Some(HealthState::Gone));
    court.hear(Evidence::Checkers(nodes("a c")));
    assert_eq!(court.health(), None);
}

#[test]
fn a_testimony_is_of_one_incarnation() {
    let mut court = Court::new("a b");
    court.testify("a", HealthState::Gone);
    court.testify("b", HealthState::Gone);
    court.hear(Evidence::Ready(instance(), Some(8)));
    assert_eq!(court.health(), None);
    court.hear(Evidence::Ready(instance(), Some(7)));
    assert_eq!(court.health(), Some(HealthState::Gone));
    court.hear(Evidence::Ready(instance(), None));
    assert_eq!(court.health(), None);
}

#[test]
fn a_witness_takes_back_what_it_said() {
    let mut court = Court::new("a b");
    court.testify("a", HealthState::Failing);
    court.testify("b", HealthState::Failing);
    court.hear(Evidence::Testimony(instance(), node("b"), None));
    assert_eq!(court.health(), None);
}

#[test]
fn what_was_ruled_before_a_restart_is_taken_back_when_it_is_over() {
    let mut court = Court::new("a b");
    court.standing = Some(verdict(7, HealthState::Gone));
    court.hear(Evidence::Written(instance(), verdict(7, HealthState::Gone)));
    assert_eq!(court.health(), None);
}
