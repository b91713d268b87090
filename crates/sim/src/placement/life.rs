//! What users, loads and faults do to a cluster: one history.

use model::application::ProcessSpec;
use model::record::Unknown;
use model::release::{ProcessRecipe, Recipe};
use model::value::ContentHash;
use model::{
    ApplicationName, ApplicationSpec, ProcessType, Release, ReleaseId, Rollout, RolloutPhase,
    Timestamp,
};

use super::judge::MOVES_PER_SLOT_AND_HOUR;
use super::replica::{Key, Record};
use super::world::World;

const MINUTE: u64 = 60_000;
/// Back-offs, patience with nodes that died often, offers that came to nothing.
const QUIET_MS: u64 = 12 * MINUTE;

/// Sizes of clusters; most are small, as small ones have all the troubles and run fast.
const SIZES: [usize; 12] = [2, 3, 2, 4, 3, 5, 2, 8, 3, 4, 12, 3];

/// One history of a seed. Every third is calm: loads vary, users push and drain, nothing fails.
pub fn live(seed: u64, nodes: Option<usize>, instances: Option<u64>) -> World {
    let mut world = World::new(seed, nodes.unwrap_or(size(seed)));
    history(&mut world, is_calm(seed), instances);
    world
}

pub fn size(seed: u64) -> usize {
    SIZES[(seed % 12) as usize]
}

pub fn is_calm(seed: u64) -> bool {
    seed.is_multiple_of(3)
}

pub fn history(world: &mut World, calm: bool, instances: Option<u64>) {
    world.calm = calm;
    world.run(3_000);
    let nodes = world.nodes.len() as u64;
    let total = instances.unwrap_or(world.random.between(nodes, nodes * 6));
    let mut left = total;
    let mut applications = 0;
    while left > 0 {
        let count = world.random.between(1, 8).min(left);
        left -= count;
        applications += 1;
        let name = format!("app{applications}").parse().expect("a name");
        let files = world.random.chance(10);
        world.create(&name, count as u32, files);
        world.run(200);
    }
    world.run(2 * MINUTE);
    for _ in 0..8 {
        if calm {
            world.calm_act()
        } else {
            world.act()
        }
        let wait = world.random.between(2_000, 45_000);
        world.run(wait);
    }
    world.heal();
    world.run(QUIET_MS);
    world.judge_quiet();
    if !calm {
        // What a machine ran that does not come back, others run.
        let last = world.nodes.len() - 1;
        world.down(last, true, Some(2 * QUIET_MS));
        world.run(QUIET_MS);
        world.judge_quiet();
        world.run(2 * QUIET_MS);
        world.judge_quiet();
    }
    world.loads_vary();
    world.run(QUIET_MS);
    world.judge_quiet();
    let moves = world.moves();
    world.run(20 * MINUTE);
    world.judge_quiet();
    assert_eq!(world.moves(), moves, "slots move although nothing changes");
}

impl World {
    fn any_up(&mut self) -> Option<usize> {
        let is_up = |at: &usize| self.nodes[*at].machines.is_some() && !self.nodes[*at].frozen;
        let up: Vec<usize> = (0..self.nodes.len()).filter(is_up).collect();
        (!up.is_empty()).then(|| up[self.random.between(0, up.len() as u64) as usize])
    }

    fn create(&mut self, name: &ApplicationName, count: u32, files: bool) {
        let Some(at) = self.any_up() else { return };
        let mut spec = ApplicationSpec::new(Timestamp(self.now));
        let web = ProcessSpec { count, unknown: Unknown::new() };
        spec.processes.insert(ProcessType::web(), web);
        self.write(at, Key::Spec(name.clone()), Some(Record::Spec(spec)));
        self.push(at, name, 1, false, files);
    }

    fn push(&mut self, at: usize, name: &ApplicationName, number: u64, broken: bool, files: bool) {
        let id = ReleaseId { number, node: self.nodes[at].id.clone() };
        self.tell(|| format!("push {name} {id} broken {broken} files {files}"));
        if broken {
            self.count("broken release");
            self.broken.insert((name.clone(), id.clone()));
        }
        let web = ProcessRecipe { default_count: 1, ..ProcessRecipe::default() };
        let release = Release {
            v: 1,
            id: id.clone(),
            source: ContentHash([0; 32]),
            source_bytes: 1,
            recipe: Recipe {
                processes: [(ProcessType::web(), web)].into(),
                persist: if files { vec!["db".into()] } else { Vec::new() },
                ..Recipe::default()
            },
            settings: Default::default(),
            created_at: Timestamp(self.now),
            author: "ann".into(),
            note: String::new(),
            replaces: None,
            unknown: Unknown::new(),
        };
        self.write(at, Key::Release(name.clone(), id.clone()), Some(Record::Release(release)));
        let node = self.nodes[at].id.clone();
        let before = self.nodes[at].replica.rollout(name).cloned();
        let mut rollout = before.unwrap_or_else(|| Rollout::new(node.clone(), Timestamp(self.now)));
        rollout.target = Some(id);
        rollout.phase = RolloutPhase::Requested;
        rollout.coordinator = node;
        rollout.changed_at = Timestamp(self.now);
        self.write(at, Key::Rollout(name.clone()), Some(Record::Rollout(rollout)));
    }

    fn push_again(&mut self) {
        let Some(at) = self.any_up() else { return };
        let names = self.names();
        let name = &names[self.random.between(0, names.len() as u64) as usize];
        let releases = self.nodes[at].replica.releases(name);
        let Some((last, release)) = releases.last_key_value() else { return };
        let (number, files) = (last.number + 1, !release.recipe.persist.is_empty());
        // A rollout under way is not waited for.
        let broken = self.random.chance(35);
        self.count("push");
        self.push(at, name, number, broken, files);
    }

    fn scale(&mut self) {
        let Some(at) = self.any_up() else { return };
        let names = self.names();
        let name = names[self.random.between(0, names.len() as u64) as usize].clone();
        let Some(spec) = self.nodes[at].replica.spec(&name).cloned() else { return };
        let count = self.random.between(1, 9) as u32;
        let mut spec = spec;
        spec.processes.insert(ProcessType::web(), ProcessSpec { count, unknown: Unknown::new() });
        self.count("scale");
        self.tell(|| format!("scale {name} to {count}"));
        self.served.remove(&name);
        self.write(at, Key::Spec(name), Some(Record::Spec(spec)));
    }

    fn change_node(&mut self, at: usize, load: Option<u32>, drained: Option<bool>) {
        let key = Key::Node(self.nodes[at].id.clone());
        let Some(Record::Node(view)) = self.nodes[at].replica.get(&key) else { return };
        let mut view = view.clone();
        view.load = load.or(view.load);
        view.drained = drained.unwrap_or(view.drained);
        if self.nodes[at].machines.is_some() {
            if !view.drained {
                self.drained_since.remove(&at);
            } else if !self.drained_since.contains_key(&at) {
                self.drained_since.insert(at, self.now);
            }
            self.tell(|| format!("node {at} is now {view:?}"));
            self.write(at, key, Some(Record::Node(view)));
        }
    }

    fn calm_act(&mut self) {
        let at = self.random.between(0, self.nodes.len() as u64) as usize;
        match self.random.between(0, 5) {
            0 => {
                self.count("drained");
                self.change_node(at, None, Some(true));
            }
            1 => {
                for at in 0..self.nodes.len() {
                    self.change_node(at, None, Some(false));
                }
            }
            2 => self.push_again(),
            3 => self.scale(),
            _ => {
                self.count("load");
                let load = self.random.between(5, 99) as u32;
                self.change_node(at, Some(load), None);
            }
        }
    }

    fn act(&mut self) {
        let at = self.random.between(0, self.nodes.len() as u64) as usize;
        match self.random.between(0, 7) {
            0 | 1 => {
                let back = self.random.between(1_000, 90_000);
                self.down(at, true, Some(back));
            }
            2 => {
                let back = self.random.between(500, 60_000);
                self.down(at, false, Some(back));
            }
            3 => {
                let long = self.random.between(3_000, 60_000);
                self.freeze(at, long);
            }
            4 => self.cut_off(),
            5 => self.reconnect(),
            _ => self.calm_act(),
        }
    }

    /// Some on one side, the rest on the other; one way or both.
    fn cut_off(&mut self) {
        let one_way = self.random.chance(50);
        self.count(if one_way { "cut one way" } else { "cut both ways" });
        let sides: Vec<bool> = (0..self.nodes.len()).map(|_| self.random.chance(50)).collect();
        let first = self.random.between(0, self.nodes.len() as u64) as usize;
        for a in 0..self.nodes.len() {
            for b in 0..self.nodes.len() {
                if (sides[a] || a == first) && !(sides[b] || b == first) {
                    self.cut.insert((a, b));
                    if !one_way {
                        self.cut.insert((b, a));
                    }
                }
            }
        }
        self.tell(|| "cut".into());
        self.disturbed();
    }

    fn reconnect(&mut self) {
        self.cut.clear();
        self.tell(|| "reconnected".into());
        self.disturbed();
    }

    /// All faults end.
    fn heal(&mut self) {
        self.reconnect();
        for at in 0..self.nodes.len() {
            self.thaw(at);
            self.up(at);
        }
        self.run(2_000);
        for at in 0..self.nodes.len() {
            self.change_node(at, Some(20), Some(false));
        }
        // One of them is left out of it.
        if self.nodes.len() > 2 {
            self.change_node(0, None, Some(true));
        }
    }

    /// An hour of loads that come and go, on machines that all work.
    fn loads_vary(&mut self) {
        let before = self.moves();
        for _ in 0..60 {
            let at = self.random.between(0, self.nodes.len() as u64) as usize;
            let load = self.random.between(5, 80) as u32;
            self.change_node(at, Some(load), None);
            self.run(MINUTE);
        }
        let moved = self.moves() - before;
        let slots = self.slots();
        let most = slots * MOVES_PER_SLOT_AND_HOUR;
        assert!(moved <= most, "{moved} moves of {slots} slots in an hour");
    }
}
