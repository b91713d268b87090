//! Histories of a network that is cut in two: what both sides do, each as if it were alone, and
//! what is left of it when they hear of each other again. One side destroys an application while
//! the other goes on, or both run release steps.

use model::application::ProcessSpec;
use model::record::Unknown;
use model::release::Step;
use model::{ApplicationName, ApplicationSpec, ProcessType, ReleaseId, RolloutPhase};

use super::replica::{Key, Record};
use super::world::World;

const NODES: usize = 4;
const COUNT: u32 = 3;
const MINUTE: u64 = 60_000;
/// How long back-offs, leases and releases take to be put right.
const QUIET_MS: u64 = 12 * MINUTE;

/// When a node that is cut off writes of an application that others destroy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// It rolls out what was pushed before it was cut off.
    Rollout,
    /// A release is pushed to it before the others destroy the application.
    PushBefore,
    /// A release is pushed to it after that.
    PushAfter,
}

/// When the others make an application of that name anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anew {
    OnceHealed,
    WhileApart,
}

fn shop() -> ApplicationName {
    "shop".parse().expect("a name")
}

fn established(seed: u64) -> World {
    let mut world = World::new(seed, NODES);
    world.run(3_000);
    world.create(&shop(), COUNT, false);
    world.run(2 * MINUTE);
    world
}

/// Asserts that nothing of a destroyed application is run again, whatever came late of it.
pub fn destroyed_apart(seed: u64, late: Late, anew: Anew) {
    let mut world = established(seed);
    let name = shop();
    // The judge asks the first node, which therefore stays.
    let (at, away) = (0, 1 + (seed % 3) as usize);
    if late == Late::Rollout {
        world.push_good(away, &name);
        world.run(seed * 97 % 2_000);
    }
    world.cut_off_one(away);
    world.run(seed * 1_013 % 20_000);
    if late == Late::PushBefore {
        world.push_good(away, &name);
        world.run(seed * 89 % 3_000);
    }
    world.destroy(at, &name);
    world.run(seed * 31 % 30_000);
    if late == Late::PushAfter {
        world.push_good(away, &name);
    }
    world.run(2 * MINUTE);
    if anew == Anew::OnceHealed {
        world.reconnect();
        world.run(MINUTE);
        world.judge_nothing_runs(&name);
    }
    world.create_anew(at, &name);
    world.run(MINUTE);
    if anew == Anew::OnceHealed {
        world.judge_nothing_runs(&name);
    }
    let newest = world.push_to_new(at, &name);
    world.run(seed * 61 % 5_000);
    world.reconnect();
    world.run(QUIET_MS);
    world.judge_agreed(&name, &newest);
}

/// The outcome of release steps that both sides ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// Whether one side served the release when the network was whole again.
    pub served: bool,
    /// Whether one side had given it up.
    pub failed: bool,
}

/// Lets steps fail on the side of the coordinator, or on the other one. Asserts that all nodes
/// agree afterwards: the release serves everywhere if it came to serve on one side, and nowhere
/// else.
pub fn steps_apart(seed: u64, coordinator_fails: bool, freezes: bool) -> Steps {
    let mut world = established(seed);
    let name = shop();
    let (at, with) = ((seed % 4) as usize, ((seed + 1) % 4) as usize);
    let here = [at, with];
    let before = world.serving_at(at, &name);
    let id = world.push_steps(at, &name);
    for node in 0..NODES {
        if here.contains(&node) == coordinator_fails {
            world.failing.insert((id.clone(), node));
        }
    }
    world.run(100 + seed * 53 % 1_700);
    world.cut_between(&here);
    if freezes {
        world.run(seed * 17 % 300);
        world.freeze(at, 90_000);
    }
    world.run(4 * MINUTE);
    let sides: Vec<_> = (0..NODES).map(|node| world.serving_at(node, &name)).collect();
    let failed = |node: usize| {
        let rollout = world.nodes[node].replica.rollout(&name);
        rollout.is_some_and(|rollout| {
            rollout.target.as_ref() == Some(&id) && rollout.phase == RolloutPhase::Failed
        })
    };
    let steps = Steps {
        served: sides.iter().any(|serving| serving.as_ref() == Some(&id)),
        failed: (0..NODES).any(failed),
    };
    world.reconnect();
    world.run(QUIET_MS);
    let expected = if steps.served { id } else { before.expect("something serves") };
    world.judge_agreed(&name, &expected);
    steps
}

impl World {
    /// Destroys an application as the command does it: the specification goes first.
    fn destroy(&mut self, at: usize, name: &ApplicationName) {
        self.tell(|| format!("destroy {name} at {at}"));
        self.write(at, Key::Spec(name.clone()), None);
        let keys = self.nodes[at].replica.records.iter();
        let of_it = keys.filter(|(key, (_, record))| {
            let whole = !matches!(key, Key::Claim(..) | Key::Verdict(..));
            key.application() == Some(name) && record.is_some() && whole
        });
        for key in of_it.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            self.write(at, key, None);
        }
    }

    fn create_anew(&mut self, at: usize, name: &ApplicationName) {
        self.tell(|| format!("create {name} anew at {at}"));
        let mut spec = ApplicationSpec::new(self.clock(at));
        let web = ProcessSpec { count: COUNT, unknown: Unknown::new() };
        spec.processes.insert(ProcessType::web(), web);
        self.write(at, Key::Spec(name.clone()), Some(Record::Spec(spec)));
    }

    /// Pushes a release to the new application; its numbers go on where those of the destroyed one
    /// ended.
    fn push_to_new(&mut self, at: usize, name: &ApplicationName) -> ReleaseId {
        let seen = self.nodes[at].replica.records.keys().filter_map(|key| match key {
            Key::Release(owner, id) if owner == name => Some(id.number),
            _ => None,
        });
        let number = seen.max().unwrap_or(0) + 1;
        self.push(at, name, number, false, false);
        ReleaseId { number, node: self.nodes[at].id.clone() }
    }

    /// Pushes a release like the one before, with a step that runs once.
    fn push_steps(&mut self, at: usize, name: &ApplicationName) -> ReleaseId {
        let releases = self.nodes[at].replica.releases(name);
        let (last, release) = releases.into_iter().next_back().expect("there is one");
        let id = ReleaseId { number: last.number + 1, node: self.nodes[at].id.clone() };
        let mut release = model::Release { id: id.clone(), build: None, ..release };
        release.recipe.release = vec![Step { name: "Migrating".into(), command: "true".into() }];
        self.ask_for(at, name, release);
        id
    }

    fn cut_between(&mut self, some: &[usize]) {
        let others = (0..self.nodes.len()).filter(|other| !some.contains(other));
        let pairs = others.flat_map(|b| some.iter().map(move |a| (*a, b)));
        self.cut.extend(pairs.flat_map(|(a, b)| [(a, b), (b, a)]));
        self.tell(|| format!("cut between {some:?} and the rest"));
        self.disturbed();
    }

    /// Returns the release that serves according to a node's machine.
    fn serving_at(&self, at: usize, name: &ApplicationName) -> Option<ReleaseId> {
        let machines = self.nodes[at].machines.as_ref();
        let app = machines.and_then(|machines| machines.applications.get(name));
        app.and_then(|app| app.machine.serving().cloned())
    }

    fn judge_nothing_runs(&self, name: &ApplicationName) {
        for (at, node) in self.nodes.iter().enumerate() {
            let running = node
                .processes
                .iter()
                .filter(|(id, process)| id.instance.application == *name && process.exit.is_none());
            let running: Vec<_> = running.map(|(_, process)| &process.release).collect();
            assert!(running.is_empty(), "node {at} runs {running:?} of what was destroyed");
            // A rollout that came late may name a release that was removed.
            let serving = self.serving_at(at, name);
            let gone = serving.as_ref().is_none_or(|id| node.replica.disowns(name, id));
            assert!(gone, "node {at} serves {serving:?} of what was destroyed");
        }
    }

    fn judge_agreed(&self, name: &ApplicationName, expected: &ReleaseId) {
        for at in 0..self.nodes.len() {
            let serving = self.serving_at(at, name);
            assert_eq!(serving.as_ref(), Some(expected), "node {at} has another one");
        }
        self.judge_quiet();
    }
}
