//! Tests of the choice, step by step and with random events.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

type Nodes = BTreeSet<NodeId>;

fn id(name: &str) -> NodeId {
    name.parse().unwrap()
}

/// The machine and its clock.
struct Driven {
    machine: KeeperChoice,
    now: Timestamp,
}

impl Driven {
    fn new(known: &[&str]) -> Driven {
        let mut driven =
            Driven { machine: KeeperChoice::new(id("guest")), now: Timestamp(1_000_000) };
        assert_eq!(driven.machine.deadline(), None, "nobody is known");
        let called = driven.tell(Event::Known(known.iter().map(|name| id(name)).collect()));
        assert_eq!(called.len(), 1.min(known.len()), "one is called first: {called:?}");
        driven
    }

    fn tell(&mut self, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.machine.handle(self.now, event, &mut effects);
        self.settle(&mut effects);
        effects
    }

    /// Ticks as the driver does after each event.
    fn settle(&mut self, effects: &mut Vec<Effect>) {
        if self.machine.deadline().is_some_and(|deadline| deadline <= self.now) {
            self.machine.tick(self.now, effects);
            assert!(self.machine.deadline().is_none_or(|deadline| deadline > self.now));
        }
        self.machine.check_invariants();
    }

    fn pass(&mut self, time: Duration) -> Vec<Effect> {
        let (end, mut effects) = (self.now.after(time), Vec::new());
        while let Some(deadline) = self.machine.deadline().filter(|deadline| *deadline <= end) {
            self.now = self.now.max(deadline);
            self.settle(&mut effects);
        }
        self.now = end;
        effects
    }

    /// Lets a called node answer, and returns that node, which is used then.
    fn use_one(&mut self) -> NodeId {
        let node = self.machine.candidates.iter().find(|(_, it)| it.calling).unwrap().0.clone();
        assert_eq!(self.tell(Event::Connected(node.clone())), [Effect::Use(node.clone())]);
        node
    }
}

#[test]
fn a_silent_node_is_left_and_another_called_within_a_second() {
    let mut driven = Driven::new(&["a", "b"]);
    let first = driven.use_one();
    let second = if first == id("a") { id("b") } else { id("a") };
    for _ in 0..50 {
        let said = driven.pass(PING_INTERVAL);
        assert_eq!(said, [Effect::Ping(first.clone())], "it is asked whether it is there");
        driven.tell(Event::Heard(first.clone()));
    }
    let silent = driven.now;
    let mut said = Vec::new();
    while !said.contains(&Effect::Call(second.clone())) {
        said.extend(driven.pass(Duration::from_millis(10)));
        assert!(driven.now.since(silent) < Duration::from_millis(700), "{said:?}");
    }
    assert!(said.contains(&Effect::Leave(first)));
    assert_eq!(driven.use_one(), second);
}

#[test]
fn a_lost_node_is_replaced_at_once_and_called_again_later() {
    let mut driven = Driven::new(&["a", "b"]);
    let first = driven.use_one();
    let said = driven.tell(Event::Lost(first.clone()));
    let second = if first == id("a") { id("b") } else { id("a") };
    assert_eq!(said, [Effect::Leave(first.clone()), Effect::Call(second.clone())]);
    // The other one is gone too: both are called again and again, with growing pauses.
    let mut said = driven.tell(Event::Failed(second.clone()));
    let mut calls = 0;
    for _ in 0..200 {
        said.extend(driven.pass(Duration::from_millis(100)));
        while let Some(effect) = said.pop() {
            let Effect::Call(node) = effect else { panic!("{effect:?}") };
            calls += 1;
            said.extend(driven.tell(Event::Failed(node)));
        }
    }
    assert!((20..60).contains(&calls), "{calls} calls in 20 s");
    driven.pass(PAUSE_MAX);
    driven.use_one();
}

#[test]
fn a_node_that_does_not_answer_does_not_keep_the_next_waiting() {
    let mut driven = Driven::new(&["a", "b", "c"]);
    let said = driven.pass(STAGGER * 2);
    assert_eq!(said.len(), 2, "{said:?}");
    let used = driven.use_one();
    let late = if used == id("a") { id("b") } else { id("a") };
    assert_eq!(driven.tell(Event::Connected(late.clone())), [Effect::Discard(late)]);
}

#[test]
fn a_keeper_that_is_off_the_list_is_left() {
    let mut driven = Driven::new(&["a", "b"]);
    let first = driven.use_one();
    let second = if first == id("a") { id("b") } else { id("a") };
    let said = driven.tell(Event::Known(vec![second.clone(), id("guest")]));
    assert_eq!(said, [Effect::Leave(first), Effect::Call(second)]);
}

#[test]
fn guests_spread_over_the_keepers() {
    let keepers: Vec<NodeId> = ["a", "b", "c"].map(id).into();
    let mut firsts: BTreeMap<NodeId, usize> = BTreeMap::new();
    for n in 0..300 {
        let mut machine = KeeperChoice::new(id(&format!("g{n}")));
        let mut effects = Vec::new();
        machine.handle(Timestamp(1_000), Event::Known(keepers.clone()), &mut effects);
        let [Effect::Call(node)] = &effects[..] else { panic!("{effects:?}") };
        *firsts.entry(node.clone()).or_default() += 1;
    }
    assert!(firsts.len() == 3 && firsts.values().all(|count| *count > 50), "{firsts:?}");
}

proptest! {
    /// At most one node is used at a time, none is called twice at a time, and when all answer
    /// again one of them is used soon.
    #[test]
    fn some_keeper_is_used_whatever_happened(
        steps in proptest::collection::vec((0_u8..7, 0_usize..4, 0_u64..900), 1..80),
    ) {
        let names = ["a", "b", "c", "d"];
        let mut driven = Driven::new(&names);
        let candidates = driven.machine.candidates.iter();
        let mut calling: Nodes =
            candidates.filter(|(_, c)| c.calling).map(|c| c.0.clone()).collect();
        let mut used: Option<NodeId> = None;
        let take = |effects: Vec<Effect>, calling: &mut Nodes, used: &mut Option<NodeId>| {
            for effect in effects {
                match effect {
                    Effect::Call(node) => assert!(calling.insert(node)),
                    Effect::Use(node) => assert_eq!(used.replace(node), None),
                    Effect::Leave(node) => assert_eq!(used.take(), Some(node)),
                    Effect::Ping(node) => assert_eq!(used.as_ref(), Some(&node)),
                    Effect::Discard(node) => assert_ne!(used.as_ref(), Some(&node)),
                }
            }
        };
        for (what, which, time) in steps {
            let node = id(names[which]);
            let effects = match what {
                0 if calling.remove(&node) => driven.tell(Event::Connected(node)),
                1 if calling.remove(&node) => driven.tell(Event::Failed(node)),
                2 if used.is_some() => driven.tell(Event::Lost(node)),
                3 => driven.tell(Event::Heard(node)),
                _ => driven.pass(Duration::from_millis(time)),
            };
            take(effects, &mut calling, &mut used);
        }
        let since = driven.now;
        while used.is_none() {
            while let Some(node) = calling.pop_first() {
                let effects = driven.tell(Event::Connected(node));
                take(effects, &mut calling, &mut used);
            }
            let effects = driven.pass(Duration::from_millis(10));
            take(effects, &mut calling, &mut used);
            prop_assert!(driven.now.since(since) <= PAUSE_MAX + STAGGER);
        }
    }
}
