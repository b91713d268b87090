//! Tests of several machines over one picture that all share at once; instances are ready half a
//! second after their place was claimed.

use std::collections::BTreeSet;

use model::{Incarnation, InstanceState, ProcessType, Wall, Walls};

use super::*;

const STEP_MS: u64 = 100;
const READY_AFTER_MS: u64 = 500;

struct Cluster {
    now: Timestamp,
    machines: BTreeMap<NodeId, Placement>,
    views: BTreeMap<NodeId, NodeView>,
    wanted: BTreeMap<ApplicationName, Wanted>,
    claims: BTreeMap<(InstanceId, NodeId), Claim>,
    moves: usize,
}

fn id(node: &str) -> NodeId {
    node.parse().unwrap()
}

fn view(capacity: u32, load: u32) -> NodeView {
    let (capacity, load) = (Some(capacity), Some(load));
    NodeView { capacity, load, drained: false, walls: Walls::ALL, started_at: None }
}

impl Cluster {
    fn new(nodes: &[(&str, u32, u32)]) -> Cluster {
        let mut cluster = Cluster {
            now: Timestamp(1_000_000),
            machines: BTreeMap::new(),
            views: BTreeMap::new(),
            wanted: BTreeMap::new(),
            claims: BTreeMap::new(),
            moves: 0,
        };
        for (node, capacity, load) in nodes {
            cluster.views.insert(id(node), view(*capacity, *load));
        }
        for (node, _, _) in nodes {
            cluster.up(node);
        }
        cluster
    }

    fn up(&mut self, node: &str) {
        let node = id(node);
        self.machines.insert(node.clone(), Placement::new(node.clone()));
        let mut events: Vec<Event> = Vec::new();
        for (node, view) in &self.views {
            events.push(Event::Node(node.clone(), Some(view.clone())));
        }
        for (name, wanted) in &self.wanted {
            events.push(Event::Wanted(name.clone(), Some(wanted.clone())));
        }
        for ((instance, node), claim) in &self.claims {
            events.push(Event::Claim(instance.clone(), node.clone(), Some(claim.clone())));
        }
        events.push(Event::Read);
        for event in events {
            self.tell(&node, event);
        }
        let others: Vec<NodeId> = self.machines.keys().cloned().collect();
        for other in others {
            self.tell(&other, Event::Alive(node.clone(), true));
            self.tell(&node, Event::Alive(other, true));
        }
    }

    fn down(&mut self, node: &str) {
        self.machines.remove(&id(node));
        self.tell_all(&Event::Alive(id(node), false));
    }

    fn set_view(&mut self, node: &str, view: NodeView) {
        self.views.insert(id(node), view.clone());
        self.tell_all(&Event::Node(id(node), Some(view)));
    }

    fn want(&mut self, name: &str, count: u32, holder: Option<&str>) {
        let counts = [(ProcessType::web(), count)].into();
        let wanted = Wanted { counts, holder: holder.map(id), walls: Walls::default() };
        self.wanted.insert(name.parse().unwrap(), wanted.clone());
        self.tell_all(&Event::Wanted(name.parse().unwrap(), Some(wanted)));
    }

    fn tell_all(&mut self, event: &Event) {
        let nodes: Vec<NodeId> = self.machines.keys().cloned().collect();
        for node in nodes {
            self.tell(&node, event.clone());
        }
    }

    fn tell(&mut self, node: &NodeId, event: Event) {
        let Some(machine) = self.machines.get_mut(node) else { return };
        let mut effects = Vec::new();
        machine.handle(self.now, event, &mut effects);
        machine.check_invariants();
        assert!(effects.is_empty(), "only ticks decide");
    }

    fn run(&mut self, seconds: u64) {
        for _ in 0..seconds * 1_000 / STEP_MS {
            self.now = self.now.after(Duration::from_millis(STEP_MS));
            let nodes: Vec<NodeId> = self.machines.keys().cloned().collect();
            for node in nodes {
                self.step(&node);
            }
        }
    }

    fn step(&mut self, node: &NodeId) {
        let machine = self.machines.get_mut(node).unwrap();
        let mut effects = Vec::new();
        if machine.deadline().is_some_and(|at| at <= self.now) {
            machine.tick(self.now, &mut effects);
            machine.check_invariants();
            assert!(machine.deadline().is_none_or(|at| at > self.now), "it would spin");
        }
        for effect in effects {
            if let Effect::Hold { application, places } = effect {
                self.hold(node, &application, &places);
            }
        }
        let due: Vec<InstanceId> = self
            .claims
            .iter()
            .filter_map(|((instance, owner), claim)| {
                let due = claim.claimed_at.after(Duration::from_millis(READY_AFTER_MS)) <= self.now;
                (owner == node && due && claim.incarnations.is_empty()).then(|| instance.clone())
            })
            .collect();
        for instance in due {
            let claim = self.claims[&(instance.clone(), node.clone())].clone();
            self.write(node, instance, Some(Claim { incarnations: vec![ready()], ..claim }));
        }
    }

    fn hold(&mut self, node: &NodeId, name: &ApplicationName, places: &BTreeMap<SlotId, Hold>) {
        let mine = |(instance, owner): &(InstanceId, NodeId)| {
            owner == node && instance.application == *name
        };
        let before: Vec<InstanceId> = self
            .claims
            .keys()
            .filter(|key| mine(key))
            .map(|(instance, _)| instance.clone())
            .collect();
        for instance in before {
            if !places.contains_key(&(instance.process.clone(), instance.slot)) {
                self.moves += 1;
                self.write(node, instance, None);
            }
        }
        for ((process, slot), hold) in places {
            let (process, slot) = (process.clone(), *slot);
            let instance = InstanceId { application: name.clone(), process, slot };
            let claim = self.claims.get(&(instance.clone(), node.clone())).cloned();
            let offer = match hold {
                Hold::Keep => None,
                Hold::Offered(offer) => Some(*offer),
            };
            let claim = Claim { offer, ..claim.unwrap_or_else(|| Claim::new(self.now)) };
            self.write(node, instance, Some(claim));
        }
    }

    fn write(&mut self, node: &NodeId, instance: InstanceId, claim: Option<Claim>) {
        let key = (instance.clone(), node.clone());
        match claim.clone() {
            Some(claim) => self.claims.insert(key, claim),
            None => self.claims.remove(&key),
        };
        self.tell_all(&Event::Claim(instance, node.clone(), claim));
    }

    /// Returns how many claims a node has that lives.
    fn on(&self, node: &str) -> usize {
        self.claims.keys().filter(|(_, owner)| *owner == id(node)).count()
    }

    /// Checks that each slot is ready once.
    fn check_exact(&self) {
        let live = self.claims.iter().filter(|((_, node), _)| self.machines.contains_key(node));
        let live: Vec<_> = live.collect();
        let slots: BTreeSet<&InstanceId> = live.iter().map(|((instance, _), _)| instance).collect();
        let wanted: u32 = self.wanted.values().flat_map(|wanted| wanted.counts.values()).sum();
        assert_eq!((live.len(), slots.len()), (wanted as usize, wanted as usize));
        assert!(live.iter().all(|(_, claim)| claim.incarnations == [ready()]));
    }
}

fn ready() -> Incarnation {
    Incarnation {
        generation: 1,
        release: "v1.n1".parse().unwrap(),
        restart: 0,
        state: InstanceState::Ready,
        port: None,
        ports: Default::default(),
        process: None,
        started_at: None,
        concurrency: None,
        restarts: 0,
        reason: None,
        remark: None,
    }
}

#[test]
fn one_node_runs_everything_at_once() {
    let mut cluster = Cluster::new(&[("a", 2, 250)]);
    cluster.want("shop", 20, None);
    cluster.run(1);
    cluster.check_exact();
    cluster.want("shop", 3, None);
    cluster.run(1);
    cluster.check_exact();
}

#[test]
fn instances_of_one_application_are_spread_and_size_counts() {
    let mut cluster = Cluster::new(&[("a", 16, 10), ("b", 16, 10), ("c", 32, 10)]);
    cluster.want("shop", 3, None);
    cluster.run(30);
    cluster.check_exact();
    assert_eq!([cluster.on("a"), cluster.on("b"), cluster.on("c")], [1, 1, 1]);
    cluster.want("shop", 12, None);
    cluster.run(300);
    cluster.check_exact();
    assert_eq!([cluster.on("a"), cluster.on("b"), cluster.on("c")], [3, 3, 6]);
}

#[test]
fn a_busy_node_is_given_nothing_while_others_have_room() {
    let mut cluster = Cluster::new(&[("a", 16, 70), ("b", 16, 10), ("c", 16, 10)]);
    cluster.want("shop", 6, None);
    cluster.run(30);
    cluster.check_exact();
    assert_eq!(cluster.on("a"), 0);
}

#[test]
fn a_lost_node_is_replaced_and_gets_its_own_back() {
    let mut cluster = Cluster::new(&[("a", 16, 10), ("b", 16, 10)]);
    cluster.want("shop", 4, None);
    cluster.run(30);
    cluster.check_exact();
    assert_eq!([cluster.on("a"), cluster.on("b")], [2, 2]);
    cluster.down("b");
    cluster.run(3);
    assert_eq!(cluster.on("a"), 4);
    cluster.check_exact();
    // Its claims are the earlier ones, and its shims kept the processes.
    cluster.up("b");
    cluster.run(1);
    assert_eq!(cluster.on("a"), 4, "what it says is not believed at once");
    cluster.run(20);
    cluster.check_exact();
    assert_eq!([cluster.on("a"), cluster.on("b")], [2, 2]);
}

#[test]
fn a_node_that_keeps_dying_moves_little() {
    let mut cluster = Cluster::new(&[("a", 16, 10), ("b", 16, 10)]);
    cluster.want("shop", 4, None);
    cluster.run(30);
    for _ in 0..20 {
        cluster.tell(&id("a"), Event::Alive(id("b"), false));
        cluster.run(8);
        cluster.tell(&id("a"), Event::Alive(id("b"), true));
        cluster.run(8);
    }
    cluster.run(30);
    cluster.check_exact();
    assert!(cluster.moves <= 12, "{} moves", cluster.moves);
}

#[test]
fn a_drained_node_empties_and_nothing_is_missing_meanwhile() {
    let mut cluster = Cluster::new(&[("a", 16, 10), ("b", 16, 10)]);
    cluster.want("shop", 6, None);
    cluster.want("files", 2, Some("b"));
    cluster.run(30);
    cluster.check_exact();
    cluster.set_view("b", NodeView { drained: true, ..view(16, 10) });
    for _ in 0..60 {
        cluster.run(1);
        let is_ready = |slot: u32| {
            cluster.claims.iter().any(|((instance, _), claim)| {
                instance.application.as_str() == "shop"
                    && instance.slot == slot
                    && claim.incarnations == [ready()]
            })
        };
        assert!((1..=6).all(is_ready));
    }
    cluster.check_exact();
    assert_eq!(cluster.on("b"), 2, "its files cannot move");
    cluster.want("shop", 8, None);
    cluster.run(30);
    assert_eq!((cluster.on("a"), cluster.on("b")), (8, 2));
}

#[test]
fn an_application_waits_for_the_node_with_its_files() {
    let mut cluster = Cluster::new(&[("a", 16, 10), ("b", 16, 10)]);
    cluster.want("files", 2, Some("b"));
    cluster.run(10);
    assert_eq!((cluster.on("a"), cluster.on("b")), (0, 2));
    cluster.down("b");
    cluster.run(200);
    assert_eq!(cluster.on("a"), 0);
}

#[test]
fn a_node_that_joins_gets_its_share() {
    let mut cluster = Cluster::new(&[("a", 16, 10), ("b", 16, 10)]);
    cluster.want("shop", 6, None);
    cluster.run(60);
    let view = view(16, 10);
    cluster.views.insert(id("c"), view.clone());
    cluster.tell_all(&Event::Node(id("c"), Some(view)));
    cluster.up("c");
    cluster.run(300);
    cluster.check_exact();
    assert_eq!([cluster.on("a"), cluster.on("b"), cluster.on("c")], [2, 2, 2]);
    let moves = cluster.moves;
    cluster.run(3_600);
    assert_eq!(cluster.moves, moves, "it has come to rest");
}

/// What was placed before a node could take anything was no choice between the two.
#[test]
fn what_came_just_before_a_node_is_shared_with_it_at_once() {
    let mut cluster = Cluster::new(&[("a", 16, 20)]);
    cluster.views.insert(id("b"), NodeView { capacity: None, load: None, ..view(16, 10) });
    cluster.set_view("b", cluster.views[&id("b")].clone());
    cluster.want("shop", 4, None);
    cluster.run(3);
    assert_eq!(cluster.on("a"), 4);
    cluster.up("b");
    cluster.set_view("b", view(16, 20));
    cluster.run(25);
    cluster.check_exact();
    assert_eq!((cluster.on("a"), cluster.on("b")), (2, 2));
    let moves = cluster.moves;
    cluster.run(3_600);
    assert_eq!(cluster.moves, moves, "it has come to rest");
}

/// A node that starts anew, as for another binary, finds the others; they do not come to it.
#[test]
fn a_node_that_starts_anew_moves_nothing_for_it() {
    let mut cluster = Cluster::new(&[("a", 16, 20), ("b", 16, 20)]);
    cluster.set_view("b", NodeView { drained: true, ..view(16, 20) });
    cluster.want("shop", 4, None);
    cluster.run(3);
    assert_eq!((cluster.on("a"), cluster.on("b")), (4, 0));
    cluster.set_view("b", view(16, 20));
    cluster.up("a");
    let moves = cluster.moves;
    cluster.run(60);
    assert_eq!((cluster.on("a"), cluster.on("b"), cluster.moves), (4, 0, moves));
    cluster.run(240);
    cluster.check_exact();
    assert_eq!((cluster.on("a"), cluster.on("b")), (2, 2), "in its own time");
}

#[test]
fn what_was_claimed_by_a_clock_that_was_hours_ahead_moves_like_the_rest() {
    let mut cluster = Cluster::new(&[("a", 16, 20), ("b", 16, 20)]);
    cluster.set_view("b", NodeView { drained: true, ..view(16, 20) });
    cluster.want("shop", 4, None);
    cluster.run(3);
    assert_eq!((cluster.on("a"), cluster.on("b")), (4, 0));
    let ahead = Duration::from_secs(2 * 3_600);
    cluster.claims.values_mut().for_each(|claim| claim.claimed_at = cluster.now.after(ahead));
    cluster.up("a");
    cluster.set_view("b", view(16, 20));
    cluster.run(300);
    cluster.check_exact();
    assert_eq!((cluster.on("a"), cluster.on("b")), (2, 2));
}

#[test]
fn a_node_that_was_removed_holds_nothing() {
    let mut cluster = Cluster::new(&[("a", 16, 20), ("b", 16, 20)]);
    cluster.want("shop", 4, None);
    cluster.run(10);
    assert_eq!((cluster.on("a"), cluster.on("b")), (2, 2));
    cluster.views.remove(&id("b"));
    cluster.tell_all(&Event::Node(id("b"), None));
    cluster.run(10);
    assert_eq!((cluster.on("a"), cluster.on("b")), (4, 0));
}

#[test]
fn a_foreign_load_makes_a_node_lighter_and_nothing_flaps() {
    let mut cluster = Cluster::new(&[("a", 16, 20), ("b", 16, 20), ("c", 16, 20)]);
    for name in ["one", "two", "three", "four", "five", "six"] {
        cluster.want(name, 1, None);
    }
    cluster.run(600);
    cluster.check_exact();
    let before = cluster.on("a");
    assert!(before >= 1, "a has nothing to shed");
    let moves = cluster.moves;
    cluster.set_view("a", view(16, 95));
    cluster.run(600);
    cluster.check_exact();
    assert_eq!(cluster.on("a"), 0);
    assert_eq!(cluster.moves, moves + before);
    cluster.set_view("a", view(16, 45));
    cluster.run(3_600);
    assert_eq!(cluster.moves, moves + before, "within the thresholds nothing moves");
}

#[test]
fn a_node_that_cannot_prepare_leaves_it_to_others() {
    let mut cluster = Cluster::new(&[("a", 16, 10), ("b", 16, 10)]);
    cluster.tell(&id("a"), Event::Unfit("shop".parse().unwrap()));
    cluster.want("shop", 2, None);
    cluster.tell(&id("a"), Event::Unfit("shop".parse().unwrap()));
    cluster.run(30);
    cluster.check_exact();
    assert_eq!((cluster.on("a"), cluster.on("b")), (0, 2));
}

#[test]
fn both_halves_of_a_cut_run_everything_and_agree_afterwards() {
    let mut cluster = Cluster::new(&[("a", 16, 10), ("b", 16, 10)]);
    cluster.want("shop", 4, None);
    cluster.run(30);
    cluster.tell(&id("a"), Event::Alive(id("b"), false));
    cluster.tell(&id("b"), Event::Alive(id("a"), false));
    cluster.run(30);
    assert_eq!((cluster.on("a"), cluster.on("b")), (4, 4));
    cluster.tell(&id("a"), Event::Alive(id("b"), true));
    cluster.tell(&id("b"), Event::Alive(id("a"), true));
    cluster.run(10);
    cluster.check_exact();
    assert_eq!((cluster.on("a"), cluster.on("b")), (2, 2));
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(24))]
    /// Checks that, whatever the sizes, loads and wishes, every slot runs once, and then nothing
    /// moves any more.
    #[test]
    fn every_cluster_comes_to_rest(
        nodes in proptest::collection::vec((1_u32..64, 0_u32..120), 1..7),
        wishes in proptest::collection::vec(0_u32..9, 1..7),
    ) {
        let names: Vec<String> = (0..nodes.len()).map(|n| format!("n{n}")).collect();
        let nodes: Vec<(&str, u32, u32)> =
            names.iter().zip(&nodes).map(|(n, (c, l))| (n.as_str(), *c, *l)).collect();
        let mut cluster = Cluster::new(&nodes);
        for (n, count) in wishes.iter().enumerate() {
            cluster.want(&format!("app{n}"), *count, None);
        }
        cluster.run(2_400);
        cluster.check_exact();
        let moves = cluster.moves;
        cluster.run(1_200);
        cluster.check_exact();
        proptest::prop_assert_eq!(cluster.moves, moves);
    }
}

#[test]
fn what_was_just_won_is_kept_until_the_giver_is_known_to_go() {
    let slot =
        InstanceId { application: "shop".parse().unwrap(), process: ProcessType::web(), slot: 1 };
    let mut cluster = Cluster::new(&[("b", 16, 10)]);
    cluster.want("shop", 1, None);
    let claim = |at: u64| Claim { incarnations: vec![ready()], ..Claim::new(Timestamp(at)) };
    let given = Claim { offer: Some(model::instance::Offer::Balance), ..claim(1) };
    cluster.views.extend([(id("a"), view(16, 10)), (id("c"), view(16, 10))]);
    cluster.write(&id("a"), slot.clone(), Some(given));
    cluster.write(&id("b"), slot.clone(), Some(claim(2)));
    cluster.up("b");
    cluster.tell_all(&Event::Alive(id("a"), true));
    cluster.tell_all(&Event::Alive(id("c"), true));
    cluster.run(10);
    assert_eq!(cluster.on("b"), 1);
    // The slot is on its way out there, which is not known yet.
    cluster.set_view("b", NodeView { drained: true, ..view(16, 10) });
    cluster.run(1);
    assert_eq!(cluster.on("b"), 1, "nobody else may have it");
    cluster.write(&id("a"), slot.clone(), None);
    cluster.run(10);
    assert_eq!(cluster.on("b"), 1, "nobody else has it");
    cluster.write(&id("c"), slot, Some(claim(3)));
    cluster.run(5);
    assert_eq!(cluster.on("b"), 0);
}

#[test]
fn what_runs_behind_a_wall_goes_where_that_can_be_built() {
    let mut cluster = Cluster::new(&[("a", 16, 10), ("b", 64, 1), ("c", 16, 10)]);
    let other = [Wall::Standard, Wall::Full].into_iter().collect();
    cluster.set_view("b", NodeView { walls: other, ..view(64, 1) });
    let (name, counts) = ("walled".parse::<ApplicationName>().unwrap(), 4);
    let wanted = |wall| {
        let walls = [wall].into_iter().collect();
        let counts = [(ProcessType::web(), counts)].into();
        Event::Wanted(name.clone(), Some(Wanted { counts, holder: None, walls }))
    };
    cluster.tell_all(&wanted(Wall::FullEgress));
    cluster.run(30);
    let nodes = |cluster: &Cluster| -> BTreeSet<NodeId> {
        cluster.claims.keys().map(|(_, node)| node.clone()).collect()
    };
    assert_eq!(nodes(&cluster), [id("a"), id("c")].into(), "not on the emptiest one");
    // It is left alone there even when no other node is.
    cluster.down("a");
    cluster.down("c");
    cluster.run(120);
    assert!(!nodes(&cluster).contains(&id("b")));
    cluster.set_view("b", view(64, 1));
    cluster.run(30);
    assert!(nodes(&cluster).contains(&id("b")), "once it can");
}
