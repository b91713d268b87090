//! Tests of two and three machines that talk over perfect wires: what one writes, all hold.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use model::{Machine, Timestamp};
use store_core::event::{Alarm, BatchEntry, Change, Effect, Event, Ticket, Write};
use store_core::sync::members::KnownMembers;
use store_core::sync::message::{Body, Carried, ClusterId, Message, Vector};
use store_core::sync::wire;
use store_core::{Commit, Location, NodeTag, Past, Position, Replica, Stamp, StoreMachine};

const CLUSTER: ClusterId = ClusterId([7; 16]);

fn tag(name: &str) -> NodeTag {
    NodeTag::from(&name.parse::<model::NodeId>().unwrap())
}

struct Cluster {
    now: Timestamp,
    nodes: BTreeMap<NodeTag, StoreMachine>,
    wires: VecDeque<(NodeTag, NodeTag, Vec<u8>)>,
    alarms: Vec<Alarm>,
    messages: usize,
    bytes: usize,
    next_ticket: u64,
}

impl Cluster {
    fn new(names: &[&str]) -> Cluster {
        let now = Timestamp(1_700_000_000_000);
        let mut cluster = Cluster {
            now,
            nodes: BTreeMap::new(),
            wires: VecDeque::new(),
            alarms: Vec::new(),
            messages: 0,
            bytes: 0,
            next_ticket: 1,
        };
        for name in names {
            let machine = StoreMachine::new(&name.parse().unwrap(), now, Past::default(), CLUSTER);
            cluster.nodes.insert(tag(name), machine);
        }
        cluster
    }

    /// Returns a cluster that the first node founds and the others join.
    fn together(names: &[&str]) -> Cluster {
        let mut cluster = Cluster::new(names);
        let all: BTreeSet<NodeTag> = names.iter().map(|name| tag(name)).collect();
        for name in names {
            cluster.write(names[0], &format!("cluster::nodes::{name}"), Some(1));
        }
        for name in &names[1..] {
            cluster.event(tag(name), Event::Join { cluster: CLUSTER, listed: Stamp(0) });
        }
        for name in names {
            cluster.event(tag(name), Event::Reachable(&all - &[tag(name)].into()));
        }
        cluster.run(10_000);
        cluster
    }

    /// Lets these two reach each other, and nobody else.
    fn only(&mut self, one: NodeTag, other: NodeTag) {
        let all: Vec<NodeTag> = self.nodes.keys().copied().collect();
        for node in all {
            let near: BTreeSet<NodeTag> = [one, other].into();
            let others = if near.contains(&node) { &near - &[node].into() } else { [].into() };
            self.event(node, Event::Reachable(others));
        }
    }

    fn write(&mut self, node: &str, key: &str, value: Option<u8>) {
        let change = match value {
            Some(v) => Change::SetInline { hash: [v; 32], sha1: [v; 20], size: 0, expires: None },
            None => Change::Delete,
        };
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let write = Write { ticket, key: key.parse().unwrap(), change, only_over: None };
        self.event(tag(node), Event::Write(vec![write]));
    }

    fn event(&mut self, node: NodeTag, event: Event) {
        let mut effects = Vec::new();
        self.nodes.get_mut(&node).unwrap().handle(self.now, event, &mut effects);
        self.perform(node, effects);
    }

    fn perform(&mut self, node: NodeTag, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Persist { batch, entries } => {
                    let here = Location::Log { segment: 1, offset: batch as u32 * 8 };
                    let locations = entries.iter().map(|entry: &BatchEntry| entry.location(here));
                    let event = Event::Persisted { batch, locations: locations.collect() };
                    self.event(node, event);
                }
                Effect::Send { to, message } => {
                    let values: Vec<Option<&[u8]>> = match &message.body {
                        Body::Commits { commits, .. } => commits
                            .iter()
                            .map(|c| matches!(c.commit.location, Location::Log { .. }))
                            .map(|inside| inside.then_some(&[][..]))
                            .collect(),
                        _ => Vec::new(),
                    };
                    let mut bytes = Vec::new();
                    wire::encode(&message, &values, &mut bytes);
                    self.messages += 1;
                    self.bytes += bytes.len();
                    self.wires.push_back((node, to, bytes));
                }
                Effect::SetAside { commits, anew } => {
                    let mut writes = Vec::new();
                    for (at, key) in anew {
                        let commit = commits.iter().find(|commit| commit.at == at).unwrap();
                        let change = match commit.action {
                            store_core::CommitAction::Set { hash, sha1, size, expires } => {
                                Change::SetInline { hash, sha1, size, expires }
                            }
                            store_core::CommitAction::Delete => Change::Delete,
                        };
                        let ticket = Ticket(self.next_ticket);
                        self.next_ticket += 1;
                        let key = key.parse().unwrap();
                        writes.push(Write { ticket, key, change, only_over: None });
                    }
                    self.event(node, Event::SetAside { writes });
                }
                Effect::Alarm(alarm) => self.alarms.push(alarm),
                _ => {}
            }
        }
    }

    fn deliver(&mut self) {
        while let Some((from, to, bytes)) = self.wires.pop_front() {
            // A machine that is lost answers nothing.
            if !self.nodes.contains_key(&to) {
                continue;
            }
            let Message { session, body } = wire::decode(&bytes).unwrap().message;
            let body = match body {
                Body::Commits { batch, commits } => {
                    let mut carried = Vec::new();
                    for Carried { commit, .. } in commits {
                        carried.push(Carried { ticket: Ticket(self.next_ticket), commit });
                        self.next_ticket += 1;
                    }
                    Body::Commits { batch, commits: carried }
                }
                other => other,
            };
            self.event(to, Event::Received { from, message: Message { session, body } });
        }
    }

    /// Lets time pass, timer by timer.
    fn run(&mut self, ms: u64) {
        let end = Timestamp(self.now.0 + ms);
        loop {
            self.deliver();
            let next = self.nodes.iter().filter_map(|(n, m)| m.deadline().map(|d| (d, *n))).min();
            let Some((deadline, node)) = next.filter(|(deadline, _)| *deadline <= end) else {
                break;
            };
            self.now = self.now.max(deadline);
            let mut effects = Vec::new();
            let machine = self.nodes.get_mut(&node).unwrap();
            machine.tick(self.now, &mut effects);
            assert!(machine.deadline().is_none_or(|next| next > self.now), "it spins");
            self.perform(node, effects);
        }
        self.now = end;
    }

    fn heads(&self) -> BTreeSet<[u8; 16]> {
        self.nodes.values().map(|m| m.replica().history().head().0).collect()
    }

    fn has(&self, node: &str, key: &str) -> bool {
        self.nodes[&tag(node)].replica().get(key, self.now).is_some()
    }
}

#[test]
fn a_joining_node_copies_and_both_push_from_then_on() {
    let mut cluster = Cluster::together(&["n1", "n2"]);
    assert_eq!(cluster.alarms, []);
    assert_eq!(cluster.heads().len(), 1, "the copy is whole");
    cluster.write("n1", "a", Some(1));
    cluster.write("n2", "b", Some(2));
    cluster.run(200);
    assert!(cluster.has("n1", "b") && cluster.has("n2", "a"));
    assert_eq!(cluster.heads().len(), 1);
    assert_eq!(cluster.alarms, []);
}

#[test]
fn many_differences_are_found_and_a_third_node_hears_of_all() {
    let mut cluster = Cluster::together(&["n1", "n2", "n3"]);
    for n in 0..3000 {
        let node = ["n1", "n2", "n3"][n % 3];
        cluster.write(node, &format!("k::{n}"), Some(n as u8));
        if n % 500 == 0 {
            cluster.run(30);
        }
    }
    cluster.run(3000);
    assert_eq!(cluster.heads().len(), 1);
    assert_eq!(cluster.alarms, []);
}

#[test]
fn garbage_goes_once_everybody_holds_what_replaced_it() {
    let mut cluster = Cluster::together(&["n1", "n2"]);
    for n in 0..100 {
        cluster.write("n1", &format!("k::{n}"), Some(1));
        cluster.write("n2", &format!("k::{n}"), None);
    }
    cluster.run(1000);
    for n in 0..100 {
        cluster.write("n2", &format!("k::{n}"), None);
    }
    cluster.run(300_000);
    let before = cluster.now;
    cluster.event(tag("n1"), Event::Squash { before });
    cluster.run(300_000);
    for machine in cluster.nodes.values() {
        assert_eq!(machine.replica().history().len(), 2, "the roster alone is left");
    }
    assert_eq!(cluster.heads().len(), 1);
    assert_eq!(cluster.alarms, []);
}

#[test]
fn a_node_that_missed_a_collected_delete_is_not_let_in_as_it_is() {
    let mut cluster = Cluster::together(&["n1", "n2", "n3"]);
    cluster.write("n1", "ghost", Some(1));
    cluster.run(3000);
    let all = [tag("n1"), tag("n2"), tag("n3")];
    cluster.event(all[2], Event::Reachable(BTreeSet::new()));
    cluster.event(all[0], Event::Reachable([all[1]].into()));
    cluster.event(all[1], Event::Reachable([all[0]].into()));
    cluster.write("n3", "mine", Some(3));
    cluster.write("n1", "ghost", None);
    cluster.write("n1", "cluster::nodes::n3", None);
    cluster.run(300_000);
    let before = cluster.now;
    cluster.event(all[0], Event::Squash { before });
    cluster.run(300_000);
    assert!(!cluster.has("n1", "ghost") && cluster.has("n3", "ghost"));
    assert!(cluster.nodes[&all[0]].replica().newest("ghost").is_none(), "collected");
    // The node comes back: it is refused as it is, and taken in by joining.
    for node in all {
        let others = all.into_iter().filter(|other| *other != node).collect();
        cluster.event(node, Event::Reachable(others));
    }
    cluster.run(5000);
    assert!(cluster.alarms.contains(&Alarm::Evicted), "{:?}", cluster.alarms);
    assert!(!cluster.has("n1", "ghost"));
    cluster.write("n1", "cluster::nodes::n3", Some(1));
    cluster.event(all[2], Event::Join { cluster: CLUSTER, listed: Stamp(0) });
    cluster.run(20_000);
    assert!(!cluster.has("n1", "ghost") && !cluster.has("n3", "ghost"));
    assert!(cluster.has("n1", "mine") && cluster.has("n3", "mine"));
    assert_eq!(cluster.heads().len(), 1);
}

#[test]
fn a_machine_that_is_lost_holds_up_no_news_once_it_counts_as_silent() {
    let mut cluster = Cluster::together(&["n1", "n2", "n3"]);
    let [one, two, three] = ["n1", "n2", "n3"].map(tag);
    cluster.nodes.remove(&three);
    // On both nodes, one of the sessions with it waits for an answer.
    cluster.write("n1", "before", Some(1));
    cluster.write("n2", "likewise", Some(2));
    cluster.run(2000);
    cluster.event(one, Event::Reachable([two].into()));
    cluster.event(two, Event::Reachable([one].into()));
    cluster.write("n1", "claim", Some(1));
    cluster.write("n2", "another", Some(2));
    cluster.run(1000);
    assert!(cluster.has("n2", "claim") && cluster.has("n1", "another"));
    assert_eq!(cluster.heads().len(), 1);
}

/// An older copy of its disk was put back, from before the other one joined.
#[test]
fn a_node_that_does_not_know_a_member_is_told_of_on_both_and_joins_again() {
    // The node says nothing that the other one would take for a sign of life.
    for counts_as_dead in [false, true] {
        unknown_member(counts_as_dead);
    }
}

fn unknown_member(counts_as_dead: bool) {
    let mut cluster = Cluster::together(&["n1", "n2"]);
    let [one, two] = ["n1", "n2"].map(tag);
    cluster.write("n2", "early", Some(2));
    cluster.run(3000);
    let old = StoreMachine::new(&"n1".parse().unwrap(), cluster.now, Past::default(), CLUSTER);
    cluster.nodes.insert(one, old);
    cluster.write("n1", "cluster::nodes::n1", Some(1));
    cluster.event(one, Event::Reachable([two].into()));
    let seen = if counts_as_dead { [].into() } else { [one].into() };
    cluster.event(two, Event::Reachable(seen));
    cluster.run(10_000);
    assert_eq!(cluster.alarms, [], "somebody else may tell it yet");
    cluster.run(20_000);
    let (there, here) = (Alarm::Unlisted { by: one }, Alarm::Stranger { own: one, peer: two });
    assert_eq!(BTreeSet::from_iter(cluster.alarms.clone()), [there, here].into());
    assert_eq!(cluster.alarms.len(), 2, "each is said once");
    assert!(!cluster.has("n1", "early"), "nobody's word is taken who is on no roster");
    // A node that no longer calls is no concern; one that still does is reported again.
    cluster.event(one, Event::Reachable([].into()));
    assert_eq!(cluster.nodes[&one].alarms().count(), 0);
    assert_eq!(cluster.nodes[&two].alarms().count(), 1);
    cluster.event(one, Event::Reachable([two].into()));
    cluster.run(20_000);
    assert_eq!(cluster.alarms.len(), 3);
    // What both alarms ask for is done.
    cluster.event(two, Event::Reachable([one].into()));
    cluster.write("n2", "cluster::nodes::n1", None);
    assert_eq!(cluster.nodes[&two].alarms().count(), 0, "it was removed");
    cluster.write("n2", "cluster::nodes::n1", Some(3));
    let listed = cluster.nodes[&two].replica().newest("cluster::nodes::n1").unwrap().at.stamp;
    cluster.event(one, Event::Join { cluster: CLUSTER, listed });
    cluster.run(20_000);
    assert!(cluster.has("n1", "early"));
    assert_eq!(cluster.heads().len(), 1);
    assert!(cluster.nodes.values().all(|machine| machine.alarms().count() == 0));
}

/// The same case with a third node, which both know: nobody has to do anything.
#[test]
fn a_node_that_does_not_know_a_member_is_told_by_another() {
    let mut cluster = Cluster::together(&["n1", "n2", "n3"]);
    let [one, two, three] = ["n1", "n2", "n3"].map(tag);
    let old = StoreMachine::new(&"n1".parse().unwrap(), cluster.now, Past::default(), CLUSTER);
    cluster.nodes.insert(one, old);
    cluster.write("n1", "cluster::nodes::n1", Some(1));
    cluster.write("n1", "cluster::nodes::n3", Some(1));
    cluster.event(one, Event::Reachable([two, three].into()));
    cluster.run(30_000);
    assert!(cluster.has("n1", "cluster::nodes::n2"));
    let strange = |alarm: &Alarm| matches!(alarm, Alarm::Stranger { .. } | Alarm::Unlisted { .. });
    assert!(!cluster.alarms.iter().any(strange), "{:?}", cluster.alarms);
}

#[test]
fn what_a_node_wrote_in_an_earlier_stay_is_not_taken_for_known() {
    let mut cluster = Cluster::together(&["n1", "n2", "n3"]);
    let [one, two, three] = ["n1", "n2", "n3"].map(tag);
    cluster.only(one, three);
    cluster.write("n3", "k", Some(3));
    cluster.run(3000);
    assert!(cluster.has("n1", "k") && !cluster.has("n2", "k"));
    // It loses its disk and joins again by way of the one that knows nothing of that.
    cluster.write("n2", "cluster::nodes::n3", None);
    cluster.write("n2", "cluster::nodes::n3", Some(1));
    let listed = cluster.nodes[&two].replica().newest("cluster::nodes::n3").unwrap().at.stamp;
    let empty = StoreMachine::new(&"n3".parse().unwrap(), cluster.now, Past::default(), CLUSTER);
    cluster.nodes.insert(three, empty);
    cluster.event(three, Event::Join { cluster: CLUSTER, listed });
    cluster.only(two, three);
    cluster.run(20_000);
    assert!(!cluster.has("n3", "k") && cluster.has("n3", "cluster::nodes::n1"));
    // The other one gives it back what it wrote, and it joins once more.
    cluster.only(one, three);
    cluster.run(20_000);
    assert!(cluster.has("n3", "k"));
    cluster.event(three, Event::Join { cluster: CLUSTER, listed });
    cluster.only(two, three);
    cluster.run(20_000);
    assert!(cluster.has("n3", "k") && cluster.has("n2", "k"), "kept, and told");
    assert_eq!(cluster.alarms, []);
}

/// A removed member that has not heard of it lets another node join, and is let in again itself.
/// The rest told one another meanwhile that they hold everything, and lack what that member wrote.
#[test]
fn a_member_that_others_hear_of_late_is_caught_up_with_and_no_past_counts_as_lost() {
    let mut cluster = Cluster::together(&["n1", "n2", "n3"]);
    let [one, two, three, four] = ["n1", "n2", "n3", "n4"].map(tag);
    let new = StoreMachine::new(&"n4".parse().unwrap(), cluster.now, Past::default(), CLUSTER);
    cluster.nodes.insert(four, new);
    for (node, other) in [(one, four), (four, one), (two, three), (three, two)] {
        cluster.event(node, Event::Reachable([other].into()));
    }
    cluster.write("n2", "cluster::nodes::n1", None);
    cluster.write("n1", "cluster::nodes::n4", Some(4));
    let listed = cluster.nodes[&one].replica().newest("cluster::nodes::n4").unwrap().at.stamp;
    cluster.event(four, Event::Join { cluster: CLUSTER, listed });
    cluster.run(3000);
    cluster.write("n4", "late", Some(4));
    cluster.run(100_000);
    let told = |cluster: &Cluster| cluster.nodes[&two].sync().members().told();
    let before = told(&cluster);
    assert!(before > listed, "nobody knows of it there");
    cluster.write("n2", "cluster::nodes::n1", Some(1));
    let all = BTreeSet::from([one, two, three, four]);
    for node in &all {
        cluster.event(*node, Event::Reachable(&all - &[*node].into()));
    }
    cluster.run(3000);
    assert!(told(&cluster) < before && cluster.nodes[&two].is_fresh());
    cluster.run(200_000);
    assert!(told(&cluster) > before && !cluster.nodes[&two].is_fresh());
    assert!(cluster.has("n2", "late") && cluster.has("n3", "late"));
    assert_eq!(cluster.heads().len(), 1);
    let lost = |alarm: &Alarm| matches!(alarm, Alarm::LostPast { .. } | Alarm::Behind);
    assert!(!cluster.alarms.iter().any(lost), "{:?}", cluster.alarms);
}

/// What members told before they heard of it proves nothing of what they hold of the new one.
#[test]
fn garbage_waits_for_three_rounds_after_an_entry_that_came_late_is_heard_of() {
    let [one, two, three] = ["n1", "n2", "n3"].map(tag);
    let at = |seconds: u64| Stamp::start_of(Timestamp(seconds * 1000));
    let entry = |seconds: u64, name: &str| Commit {
        at: Position { stamp: at(seconds), node: one },
        key: format!("cluster::nodes::{name}").into(),
        action: store_core::CommitAction::Set {
            hash: [1; 32],
            sha1: [1; 20],
            size: 0,
            expires: None,
        },
        location: Location::Log { segment: 1, offset: 0 },
    };
    let mut replica = Replica::default();
    replica.admit(entry(1, "n1"));
    replica.admit(entry(2, "n2"));
    let mut members = KnownMembers::new(one, &replica, Vector::new(), at(2));
    let round = |members: &mut KnownMembers, seconds: u64| {
        members.keep(at(seconds), [(two, at(seconds)), (three, at(seconds))].into());
        members.hear(&[(two, at(seconds)), (three, at(seconds))].into(), at(seconds));
        members.garbage(Timestamp(seconds * 1000), &BTreeSet::new())
    };
    let rounds: Vec<bool> = (1..5).map(|n| round(&mut members, n * 10).is_some()).collect();
    assert_eq!(rounds, [false, false, true, true]);
    replica.admit(entry(5, "n3"));
    members.read_roster(&replica, Timestamp(41_000));
    let rounds: Vec<bool> = (1..5).map(|_| round(&mut members, 41).is_some()).collect();
    assert!(!rounds.contains(&true), "nobody has told anything new yet");
    let rounds: Vec<bool> = (5..9).map(|n| round(&mut members, n * 10).is_some()).collect();
    assert_eq!(rounds, [false, false, true, true]);
}

#[test]
fn what_a_node_wrote_alone_is_kept_where_its_name_was_known_before() {
    let mut cluster = Cluster::together(&["n1", "n2"]);
    cluster.write("n2", "before", Some(2));
    cluster.run(3000);
    assert!(cluster.has("n1", "before"));
    // It starts with an empty disk and writes by itself, by a clock that is behind.
    let (now, two) = (cluster.now, tag("n2"));
    cluster.now = Timestamp(now.0 - 60_000);
    let own = ClusterId([8; 16]);
    let empty = StoreMachine::new(&"n2".parse().unwrap(), cluster.now, Past::default(), own);
    cluster.nodes.insert(two, empty);
    cluster.write("n2", "alone", Some(2));
    cluster.now = now;
    cluster.write("n1", "cluster::nodes::n2", None);
    cluster.write("n1", "cluster::nodes::n2", Some(1));
    let listed = cluster.nodes[&tag("n1")].replica().newest("cluster::nodes::n2").unwrap().at.stamp;
    cluster.event(two, Event::Join { cluster: CLUSTER, listed });
    cluster.only(tag("n1"), two);
    cluster.run(20_000);
    assert!(cluster.has("n1", "alone") && cluster.has("n2", "alone"));
    assert!(cluster.has("n2", "before"));
    assert_eq!(cluster.heads().len(), 1);
    assert_eq!(cluster.alarms, []);
}

/// An older copy of a disk was put back, from before the other one joined, which joins again.
#[test]
fn what_a_disk_lost_is_kept_by_whoever_alone_holds_it_and_joins_again() {
    // The disk is put back before and after garbage was collected beyond it.
    for collected in [false, true] {
        lost_with_a_disk(collected);
    }
}

fn lost_with_a_disk(collected: bool) {
    let mut cluster = Cluster::new(&["n1", "n2"]);
    let [one, two] = ["n1", "n2"].map(tag);
    cluster.write("n1", "cluster::nodes::n1", Some(1));
    cluster.write("n1", "k", Some(1));
    let there = &cluster.nodes[&one];
    let past = Past {
        replica: there.replica().clone(),
        clock: there.durable_stamp(),
        standing: there.sync().standing(),
        ..Past::default()
    };
    cluster.write("n1", "cluster::nodes::n2", Some(1));
    cluster.event(two, Event::Join { cluster: CLUSTER, listed: Stamp(0) });
    cluster.only(one, two);
    cluster.run(10_000);
    cluster.write("n1", "k", Some(2));
    cluster.write("n1", "new", Some(2));
    cluster.run(10_000);
    let before = cluster.now;
    cluster.event(two, Event::Squash { before });
    cluster.nodes.insert(one, StoreMachine::new(&"n1".parse().unwrap(), before, past, CLUSTER));
    cluster.run(1000);
    if collected {
        cluster.event(one, Event::Squash { before });
    }
    cluster.write("n1", "cluster::nodes::n2", Some(2));
    let listed = cluster.nodes[&one].replica().newest("cluster::nodes::n2").unwrap().at.stamp;
    cluster.event(two, Event::Join { cluster: CLUSTER, listed });
    cluster.only(one, two);
    cluster.run(20_000);
    for machine in cluster.nodes.values() {
        let k = machine.replica().get("k", cluster.now).expect("it is there");
        let newest =
            matches!(k.action, store_core::CommitAction::Set { hash, .. } if hash == [2; 32]);
        assert!(newest, "what was written last is read");
    }
    // What has no older value beside it may have been deleted as well.
    assert_eq!(cluster.has("n1", "new"), !collected);
    assert_eq!(cluster.heads().len(), 1);
    let expected = |alarm: &Alarm| matches!(alarm, Alarm::LostPast { .. });
    assert!(cluster.alarms.iter().all(expected), "{:?}", cluster.alarms);
}
