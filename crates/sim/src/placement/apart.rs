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
const LATE_VARIABLES: u64 = 1;
const NEW_VARIABLES: u64 = 2;
/// How long back-offs, leases and releases take to be put right.
const QUIET_MS: u64 = 12 * MINUTE;

/// The moment at which a node that is cut off writes of an application that others destroy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// It rolls out what was pushed before it was cut off.
    Rollout,
    /// A release is pushed to it before the others destroy the application.
    PushBefore,
    /// A release is pushed to it after that.
    PushAfter,
    /// It is scaled there after that.
    Scale,
    /// Variables are set there after that, which makes a release.
    Variables,
}

/// What goes wrong when both sides hear of each other again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    Nothing,
    /// The node process that wrote late ends, and starts again.
    LateWriterEnds,
    /// That of the node where it was destroyed and made anew does.
    DestroyerEnds,
    /// Another machine stands still for a while.
    BystanderFreezes,
}

impl Trouble {
    pub const ALL: [Trouble; 4] = [
        Trouble::Nothing,
        Trouble::LateWriterEnds,
        Trouble::DestroyerEnds,
        Trouble::BystanderFreezes,
    ];
}

/// The moment at which the others make an application of that name anew.
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
pub fn destroyed_apart(seed: u64, late: Late, anew: Anew, trouble: Trouble) {
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
    match late {
        Late::PushAfter => world.push_good(away, &name),
        Late::Scale => world.scale_to(away, &name, COUNT + 2),
        Late::Variables => world.set_variables(away, &name, LATE_VARIABLES),
        Late::Rollout | Late::PushBefore => {}
    }
    world.run(2 * MINUTE);
    if anew == Anew::OnceHealed {
        world.meet_again(seed, [at, away], trouble);
        world.run(MINUTE);
        world.judge_nothing_runs(&name);
        world.judge_nothing_is_left(&name);
    }
    world.create_anew(at, &name);
    world.run(MINUTE);
    if anew == Anew::OnceHealed {
        world.judge_nothing_runs(&name);
    }
    let newest = world.push_to_new(at, &name);
    world.run(seed * 61 % 5_000);
    if anew == Anew::WhileApart {
        world.meet_again(seed, [at, away], trouble);
    }
    world.run(QUIET_MS);
    world.judge_agreed(&name, &newest);
    world.judge_is_new(&name);
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
        let created_at = self.nodes[at].replica.spec(name).expect("it is there").created_at;
        self.write(at, Key::Destroyed(name.clone(), created_at), Some(Record::Destroyed));
        self.write(at, Key::Spec(name.clone()), None);
        for key in self.nodes[at].replica.keys_of(name) {
            self.write(at, key, None);
        }
    }

    /// Sets variables as the command does it, with a release of the same code.
    fn set_variables(&mut self, at: usize, name: &ApplicationName, variables: u64) {
        self.write(at, Key::Config(name.clone()), Some(Record::Config(variables)));
        let releases = self.nodes[at].replica.releases(name);
        let (last, release) = releases.into_iter().next_back().expect("there is one");
        let id = ReleaseId { number: last.number + 1, node: self.nodes[at].id.clone() };
        let key = Key::ConfigAt(name.clone(), id.clone());
        self.write(at, key, Some(Record::Config(variables)));
        self.ask_for(at, name, model::Release { id, build: Some(release.build_id()), ..release });
    }

    /// Ends the cut, in the middle of something that goes wrong.
    fn meet_again(&mut self, seed: u64, [at, away]: [usize; 2], trouble: Trouble) {
        let other = (0..NODES).find(|other| ![at, away].contains(other)).expect("there are more");
        let (before, back) = (seed * 41 % 2_000, 500 + seed * 379 % 9_000);
        match trouble {
            Trouble::Nothing => {}
            Trouble::LateWriterEnds => self.down(away, false, Some(back)),
            Trouble::DestroyerEnds => self.down(at, false, Some(back)),
            Trouble::BystanderFreezes => self.freeze(other, back),
        }
        // What is down or frozen may be so when the others meet, or be just back.
        self.run(before);
        self.reconnect();
    }

    fn create_anew(&mut self, at: usize, name: &ApplicationName) {
        self.tell(|| format!("create {name} anew at {at}"));
        let mut spec = ApplicationSpec::new(self.clock(at));
        let web = ProcessSpec { count: COUNT, unknown: Unknown::new() };
        spec.processes.insert(ProcessType::web(), web);
        self.write(at, Key::Spec(name.clone()), Some(Record::Spec(spec)));
        self.write(at, Key::Config(name.clone()), Some(Record::Config(NEW_VARIABLES)));
    }

    /// Pushes a release to the new application; its numbers go on where those of the destroyed one
    /// ended.
    fn push_to_new(&mut self, at: usize, name: &ApplicationName) -> ReleaseId {
        let seen = self.nodes[at].replica.records.keys().filter_map(|key| match key {
            Key::Release(owner, id) if owner == name => Some(id.number),
            _ => None,
        });
        let number = seen.max().unwrap_or(0) + 1;
        let id = ReleaseId { number, node: self.nodes[at].id.clone() };
        let key = Key::ConfigAt(name.clone(), id.clone());
        self.write(at, key, Some(Record::Config(NEW_VARIABLES)));
        self.push(at, name, number, false, false);
        id
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

    /// Asserts that no record says that it is there, or was.
    fn judge_nothing_is_left(&self, name: &ApplicationName) {
        for (at, node) in self.nodes.iter().enumerate() {
            let left = node.replica.keys_of(name);
            assert!(left.is_empty(), "node {at} has {left:?} of what was destroyed");
        }
    }

    /// Asserts that the application has what users said when they made it anew, and nothing else.
    fn judge_is_new(&self, name: &ApplicationName) {
        for (at, node) in self.nodes.iter().enumerate() {
            let spec = node.replica.spec(name).expect("it is there");
            assert!(
                !node.replica.remains(name).destroyed.contains(&spec.created_at),
                "node {at} has the specification of what was destroyed"
            );
            let count = spec.processes[&ProcessType::web()].count;
            assert_eq!(count, COUNT, "node {at} has another count");
            let variables = node.replica.config(&Key::Config(name.clone()));
            assert_eq!(variables, Some(NEW_VARIABLES), "node {at} has other variables");
            let late = node.replica.releases(name).into_values().find(|one| !spec.owns(one));
            assert_eq!(late, None, "node {at} has a release of what was destroyed");
        }
    }

    fn judge_agreed(&self, name: &ApplicationName, expected: &ReleaseId) {
        for (at, node) in self.nodes.iter().enumerate() {
            let serving = self.serving_at(at, name);
            assert_eq!(serving.as_ref(), Some(expected), "node {at} has another one");
            let outcome = node.replica.outcome(name, expected);
            assert_eq!(outcome, None, "node {at} has what serves on record as failed");
        }
        self.judge_quiet();
    }
}
