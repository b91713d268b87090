//! Members that each know what has reached them, orders and writes in between, and deaths anywhere:
//! no value is ever without its key, and in the end there is one key.

use proptest::prelude::*;

use super::*;

const MEMBERS: usize = 3;
const VALUES: usize = 4;
/// Rounds after which everything has settled: each does one step of each member.
const ROUNDS_MAX: usize = 200;

fn node(index: usize) -> NodeId {
    format!("n{index}").parse().unwrap()
}

fn key(number: u64) -> SealingKeyId {
    SealingKeyId(number.to_be_bytes())
}

/// A cell of the store: the later write wins.
type Cell<T> = Option<(u64, T)>;

fn merge<T: Clone>(mine: &mut Cell<T>, theirs: &Cell<T>) {
    let later = match (&*mine, theirs) {
        (Some((mine, _)), Some((theirs, _))) => theirs > mine,
        (None, theirs) => theirs.is_some(),
        (Some(_), None) => false,
    };
    if later {
        *mine = theirs.clone();
    }
}

#[derive(Clone, Default)]
struct Replica {
    record: Cell<SealingRecord>,
    asked: Cell<Timestamp>,
    told: [Cell<NodeSecrets>; MEMBERS],
    /// The content of each value, and the key that sealed it.
    values: [Cell<(u64, Option<SealingKeyId>)>; VALUES],
}

impl Replica {
    fn merge(&mut self, other: &Replica) {
        merge(&mut self.record, &other.record);
        merge(&mut self.asked, &other.asked);
        self.told.iter_mut().zip(&other.told).for_each(|(mine, theirs)| merge(mine, theirs));
        self.values.iter_mut().zip(&other.values).for_each(|(mine, theirs)| merge(mine, theirs));
    }
}

#[derive(Default)]
struct World {
    clock: u64,
    keys: u64,
    replicas: [Replica; MEMBERS],
    disks: [BTreeSet<SealingKeyId>; MEMBERS],
    /// The members that all others take for dead.
    down: BTreeSet<usize>,
    /// How often a value was sealed anew, for the tests that nothing is done twice.
    resealed: usize,
}

#[derive(Clone, Debug)]
enum Action {
    Step(usize),
    /// A step that ends after its first half.
    Killed(usize),
    Sync(usize, usize),
    Set(usize, usize),
    Ask(usize),
    Down(usize),
    Up(usize),
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let member = || 0..MEMBERS;
    let action = prop_oneof![
        6 => member().prop_map(Action::Step),
        1 => member().prop_map(Action::Killed),
        4 => (member(), member()).prop_map(|(a, b)| Action::Sync(a, b)),
        2 => (member(), 0..VALUES).prop_map(|(at, value)| Action::Set(at, value)),
        1 => member().prop_map(Action::Ask),
        1 => member().prop_map(Action::Down),
        1 => member().prop_map(Action::Up),
    ];
    prop::collection::vec(action, 0..120)
}

impl World {
    fn stamp(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn picture(&self, at: usize) -> Picture {
        let replica = &self.replicas[at];
        let mut values = BTreeMap::new();
        for (_, (_, sealed)) in replica.values.iter().flatten() {
            *values.entry(*sealed).or_default() += 1;
        }
        let said = |index: usize| replica.told[index].clone().map(|(_, said)| said);
        Picture {
            own: node(at),
            held: self.disks[at].clone(),
            record: replica.record.clone().map(|(_, record)| record),
            asked: replica.asked.map(|(_, asked)| asked),
            members: (0..MEMBERS).map(|index| (node(index), said(index))).collect(),
            alive: (0..MEMBERS)
                .filter(|index| *index == at || !self.down.contains(index))
                .map(node)
                .collect(),
            values,
            unseen: 0,
        }
    }

    fn step(&mut self, at: usize, killed: bool) -> bool {
        let Next::Do(step) = self.picture(at).next() else { return false };
        let now = self.stamp();
        match step {
            Step::Fetch { key, from } => {
                let from = (0..MEMBERS).filter(|index| from.contains(&node(*index)));
                // A member may have lost what it said that it has; another one is asked then.
                if from.into_iter().any(|index| self.disks[index].contains(&key)) {
                    self.disks[at].insert(key);
                }
            }
            Step::Tell(said) => self.replicas[at].told[at] = Some((now, said)),
            Step::Make(record) => {
                self.keys += 1;
                self.disks[at].insert(key(self.keys));
                if !killed {
                    let record = SealingRecord { next: Some(key(self.keys)), ..record };
                    self.replicas[at].record = Some((now, record));
                }
            }
            Step::Record(record) => self.replicas[at].record = Some((now, record)),
            Step::Reseal(from) => {
                let record = self.replicas[at].record.clone().unwrap().1;
                let sealed = record.seals;
                assert!(sealed.is_some_and(|seals| self.disks[at].contains(&seals)));
                assert!(from.is_none_or(|from| self.disks[at].contains(&from)), "it can open it");
                for cell in self.replicas[at].values.iter_mut().flatten() {
                    if cell.1.1 == from {
                        self.clock += 1;
                        *cell = (self.clock, (cell.1.0, sealed));
                        self.resealed += 1;
                        if killed {
                            break;
                        }
                    }
                }
            }
            Step::Drop(key) => {
                assert!(self.disks[at].remove(&key));
            }
        }
        true
    }

    fn sync(&mut self, a: usize, b: usize) {
        let mut merged = self.replicas[a].clone();
        merged.merge(&self.replicas[b]);
        self.replicas[a] = merged.clone();
        self.replicas[b] = merged;
    }

    fn set(&mut self, at: usize, value: usize) {
        let now = self.stamp();
        let seals = self.picture(at).record.and_then(|record| record.seals);
        let seals = seals.filter(|seals| self.disks[at].contains(seals));
        self.replicas[at].values[value] = Some((now, (now, seals)));
    }

    fn ask(&mut self, at: usize) {
        let now = self.stamp();
        self.replicas[at].asked = Some((now, Timestamp(now)));
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Step(at) => drop(self.step(at, false)),
            Action::Killed(at) => drop(self.step(at, true)),
            Action::Sync(a, b) => self.sync(a, b),
            Action::Set(at, value) => self.set(at, value),
            Action::Ask(at) => self.ask(at),
            Action::Down(at) => drop(self.down.insert(at)),
            Action::Up(at) => drop(self.down.remove(&at)),
        }
        self.check_every_value_has_its_key();
    }

    fn check_every_value_has_its_key(&self) {
        for replica in &self.replicas {
            for (_, (content, sealed)) in replica.values.iter().flatten() {
                let Some(sealed) = sealed else { continue };
                assert!(
                    self.disks.iter().any(|disk| disk.contains(sealed)),
                    "nobody has {sealed} of {content}"
                );
            }
        }
    }

    /// Lets everybody hear everything and do all there is to do.
    fn settle(&mut self) {
        self.down.clear();
        for _ in 0..ROUNDS_MAX {
            for index in 0..MEMBERS {
                self.sync(0, index);
            }
            for index in 0..MEMBERS {
                self.sync(0, index);
            }
            let moved: Vec<_> = (0..MEMBERS).map(|at| self.step(at, false)).collect();
            self.check_every_value_has_its_key();
            if !moved.contains(&true) {
                return;
            }
        }
        let left: Vec<_> = (0..MEMBERS).map(|at| self.picture(at).next()).collect();
        panic!("it never ends: {left:?}");
    }

    fn assert_settled(&self) {
        let seals = self.picture(0).record.unwrap().seals.unwrap();
        for at in 0..MEMBERS {
            let picture = self.picture(at);
            assert_eq!(picture.next(), Next::Settled, "{picture:?}");
            assert_eq!(picture.held, BTreeSet::from([seals]));
            assert!(picture.values.keys().all(|key| *key == Some(seals)), "{:?}", picture.values);
            assert!(picture.record.unwrap().made_for >= picture.asked, "the order was obeyed");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn no_value_is_without_its_key_and_in_the_end_there_is_one(actions in actions()) {
        let mut world = World::default();
        actions.into_iter().for_each(|action| world.act(action));
        world.settle();
        world.assert_settled();
    }

    /// Everybody hears everything at once here, so that no write may be lost to one that sealed an
    /// older value anew.
    #[test]
    fn nothing_that_was_set_is_lost_while_all_hear_each_other(actions in actions()) {
        let mut world = World::default();
        let mut set: [Option<u64>; VALUES] = [None; VALUES];
        for action in actions {
            if matches!(action, Action::Down(_)) {
                continue;
            }
            let value = if let Action::Set(_, value) = action { Some(value) } else { None };
            world.act(action);
            if let Some(value) = value {
                set[value] = Some(world.clock);
            }
            (0..MEMBERS).for_each(|index| world.sync(0, index));
            (0..MEMBERS).for_each(|index| world.sync(0, index));
        }
        world.settle();
        let found = world.replicas[0].values.each_ref().map(|cell| cell.map(|(_, (was, _))| was));
        prop_assert_eq!(found, set);
    }
}

fn settled() -> World {
    let mut world = World::default();
    world.set(0, 0);
    world.settle();
    world.assert_settled();
    world
}

#[test]
fn clear_values_are_sealed_once_all_members_say_that_they_can() {
    let mut world = World::default();
    world.set(0, 0);
    while world.step(0, false) {}
    let older = Wait::Older(vec![node(1), node(2)]);
    assert_eq!(world.picture(0).next(), Next::Wait(older), "two say nothing");
    assert!(world.disks[0].is_empty());
    world.settle();
    world.assert_settled();
    assert_eq!(world.resealed, 1);
}

#[test]
fn an_order_changes_the_key_once() {
    let mut world = settled();
    let before = world.disks[0].clone();
    world.ask(2);
    world.settle();
    world.assert_settled();
    assert!(world.disks[0].is_disjoint(&before));
    let keys = world.keys;
    world.settle();
    assert_eq!(world.keys, keys);
}

#[test]
fn a_member_that_is_away_is_waited_for() {
    let mut world = settled();
    world.ask(0);
    world.down.insert(2);
    for _ in 0..ROUNDS_MAX {
        world.sync(0, 1);
        world.step(0, false);
        world.step(1, false);
    }
    assert_eq!(world.picture(0).next(), Next::Wait(Wait::Holding(vec![node(2)])));
    assert_eq!(world.picture(0).record.unwrap().seals, Some(key(1)), "the old key seals on");
    world.settle();
    world.assert_settled();
}

#[test]
fn nothing_is_sealed_anew_while_a_member_may_have_written_unheard() {
    let mut world = settled();
    world.clock += 1;
    let clear = Some((world.clock, (world.clock, None)));
    world.replicas.iter_mut().for_each(|replica| replica.values[0] = clear);
    world.down.insert(2);
    assert_eq!(world.picture(0).next(), Next::Wait(Wait::Away(vec![node(2)])));
    world.down.clear();
    assert_eq!(world.picture(0).next(), Next::Do(Step::Reseal(None)));
    assert_eq!(world.picture(1).next(), Next::Wait(Wait::Turn(node(0))));
}

#[test]
fn the_old_key_stays_and_seals_nothing_anew_while_another_member_writes_with_it() {
    let mut world = settled();
    world.ask(0);
    while world.picture(1).record.unwrap().seals == Some(key(1)) {
        (0..MEMBERS).for_each(|index| world.sync(0, index));
        for index in 0..MEMBERS {
            world.step(index, false);
        }
    }
    while world.step(0, false) {}
    let behind = Wait::Sealing(vec![node(1), node(2)]);
    assert_eq!(world.picture(0).next(), Next::Wait(behind));
    world.replicas[0].values = [None; VALUES];
    assert!(!world.step(0, false), "nothing is sealed with it here, but may be there");
    assert!(world.disks[0].contains(&key(1)));
}

#[test]
fn the_first_key_is_made_by_one_member_alone_and_a_later_one_by_who_lives() {
    let mut world = World::default();
    for at in 0..MEMBERS {
        world.step(at, false);
    }
    (0..2).for_each(|_| (0..MEMBERS).for_each(|index| world.sync(0, index)));
    world.down.insert(0);
    assert_eq!(world.picture(1).next(), Next::Wait(Wait::Turn(node(0))), "it may have made one");
    assert!(matches!(world.picture(0).next(), Next::Do(Step::Make(_))));
    let mut world = settled();
    world.ask(1);
    world.down.insert(0);
    assert!(matches!(world.picture(1).next(), Next::Do(Step::Make(_))));
}

#[test]
fn a_member_fetches_what_others_can_read() {
    let mut world = settled();
    let strange = key(70);
    world.disks[2].insert(strange);
    world.replicas[0].told[2].as_mut().unwrap().1.holds.insert(strange);
    world.clock += 1;
    world.replicas[0].values[3] = Some((world.clock, (1, Some(strange))));
    let fetch = Step::Fetch { key: strange, from: vec![node(2)] };
    assert_eq!(world.picture(0).next(), Next::Do(fetch));
}

#[test]
fn no_key_goes_while_a_value_is_on_its_way() {
    let mut world = settled();
    let old = key(50);
    world.disks[0].insert(old);
    world.replicas[0].told[0].as_mut().unwrap().1.holds.insert(old);
    let coming = Picture { unseen: 1, ..world.picture(0) };
    assert_eq!(coming.next(), Next::Wait(Wait::Coming(1)));
    assert_eq!(world.picture(0).next(), Next::Do(Step::Drop(old)));
}

#[test]
fn what_no_key_opens_is_left_as_it_is() {
    let mut world = settled();
    world.clock += 1;
    world.replicas[0].values[1] = Some((world.clock, (7, Some(key(99)))));
    for _ in 0..MEMBERS {
        (0..MEMBERS).for_each(|index| world.sync(0, index));
    }
    for at in 0..MEMBERS {
        assert_eq!(world.picture(at).next(), Next::Settled);
    }
}

#[test]
fn who_lacks_the_key_and_finds_nobody_with_it_says_so() {
    let mut world = settled();
    world.disks[1].clear();
    world.down = [0, 2].into();
    assert_eq!(world.picture(1).next(), Next::Wait(Wait::NoHolder(key(1))));
    world.down.clear();
    let from = vec![node(0), node(2)];
    assert_eq!(world.picture(1).next(), Next::Do(Step::Fetch { key: key(1), from }));
}
