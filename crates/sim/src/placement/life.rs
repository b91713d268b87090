//! One history: what users, loads and faults do to a cluster.

use model::application::{ProcessSpec, Settings};
use model::record::Unknown;
use model::release::{Portable, ProcessRecipe, Recipe, Step};
use model::value::ContentHash;
use model::{ApplicationName, ApplicationSpec, ProcessType, Release, ReleaseId, Rollout};

use super::happening::Happening;
use super::judge::MOVES_PER_SLOT_AND_HOUR;
use super::replica::{Key, Record};
use super::world::World;

const MINUTE: u64 = 60_000;
/// How long a cluster takes to become quiet: back-offs, patience with nodes that died often, offers
/// that came to nothing.
const QUIET_MS: u64 = 12 * MINUTE;

/// The number of acts of users and faults in one history.
const ACTS: usize = 12;
/// The size from which clusters live shorter: they have no new kinds of trouble, and much more to
/// compute.
const LARGE: usize = 20;
/// The number of machines that may join.
const SPARES: usize = 2;
/// The longest time between the choice of a release's number and its record, as where a command's
/// machine is short of processors.
const LATE_PUSH_MS: u64 = 4_000;

/// The sizes of clusters; most are small, as small ones have all the troubles and run fast.
const SIZES: [usize; 12] = [2, 3, 2, 4, 3, 5, 2, 8, 3, 4, 12, 3];

/// Lives through the history of a seed. Every third is calm: loads vary, users push and drain,
/// nothing fails.
pub fn live(seed: u64, nodes: Option<usize>, instances: Option<u64>) -> World {
    let mut world = world(seed, nodes);
    history(&mut world, is_calm(seed), instances);
    world
}

pub fn world(seed: u64, nodes: Option<usize>) -> World {
    World::mixed(seed, nodes.unwrap_or(size(seed)), SPARES)
}

fn size(seed: u64) -> usize {
    SIZES[(seed % 12) as usize]
}

pub fn is_calm(seed: u64) -> bool {
    seed.is_multiple_of(3)
}

pub fn history(world: &mut World, calm: bool, instances: Option<u64>) {
    world.calm = calm;
    world.run(3_000);
    let nodes = world.nodes.iter().filter(|node| node.member).count() as u64;
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
    let acts = if world.nodes.len() > LARGE { ACTS / 4 } else { ACTS };
    for _ in 0..acts {
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
    if world.nodes.len() > LARGE {
        return;
    }
    if !calm {
        // Others run what a machine ran that does not come back.
        let members = (0..world.nodes.len()).filter(|at| world.nodes[*at].member);
        let last = members.max().expect("a member");
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
    pub(super) fn can_write(&self, at: usize) -> bool {
        self.nodes[at].runs() && !self.nodes[at].disk_full
    }

    fn any_up(&mut self) -> Option<usize> {
        let up: Vec<usize> = (0..self.nodes.len()).filter(|at| self.can_write(*at)).collect();
        (!up.is_empty()).then(|| up[self.random.between(0, up.len() as u64) as usize])
    }

    pub(super) fn create(&mut self, name: &ApplicationName, count: u32, files: bool) {
        let Some(at) = self.any_up() else { return };
        let mut spec = ApplicationSpec::new(self.clock(at));
        let web = ProcessSpec { count, unknown: Unknown::new() };
        spec.processes.insert(ProcessType::web(), web);
        self.write(at, Key::Spec(name.clone()), Some(Record::Spec(spec)));
        self.push(at, name, 1, false, files);
    }

    pub(super) fn push(
        &mut self,
        at: usize,
        name: &ApplicationName,
        number: u64,
        broken: bool,
        files: bool,
    ) {
        let id = ReleaseId { number, node: self.nodes[at].id.clone() };
        self.tell(|| format!("push {name} {id} broken {broken} files {files}"));
        if broken {
            self.count("broken release");
            self.broken.insert((name.clone(), id.clone()));
        }
        let web = ProcessRecipe { default_count: 1, ..ProcessRecipe::default() };
        let releases = self.nodes[at].replica.releases(name);
        let same =
            releases.last_key_value().filter(|_| number.is_multiple_of(3)).map(|(_, last)| last);
        // Every other release is built once and fetched.
        let portable = match same {
            Some(same) => same.recipe.portable.clone(),
            None => (number % 2 == 1).then(Portable::default),
        };
        let build = Step { name: "Compiling".into(), command: "make".into() };
        let migration = Step { name: "Migrating".into(), command: "make migrate".into() };
        let spec = self.nodes[at].replica.spec(name);
        let application_created_at = spec.map(|spec| spec.created_at);
        let release = Release {
            v: 1,
            id: id.clone(),
            source: ContentHash([0; 32]),
            source_bytes: 1,
            build: same.map(Release::build_id),
            recipe: Recipe {
                build: vec![build],
                release: if number.is_multiple_of(2) { vec![migration] } else { Vec::new() },
                portable,
                processes: [(ProcessType::web(), web)].into(),
                persist: if files { vec!["db".into()] } else { Vec::new() },
                ..Recipe::default()
            },
            settings: Settings { application_created_at, ..Settings::default() },
            created_at: self.clock(at),
            author: "ann".into(),
            note: String::new(),
            revision: None,
            replaces: None,
            remark: None,
            takes_back: None,
            unknown: Unknown::new(),
        };
        self.ask_for(at, name, release);
    }

    pub(super) fn ask_for(&mut self, at: usize, name: &ApplicationName, release: Release) {
        let id = release.id.clone();
        self.write(at, Key::Release(name.clone(), id.clone()), Some(Record::Release(release)));
        let node = self.nodes[at].id.clone();
        let before = self.nodes[at].replica.rollout(name).cloned();
        let mut rollout = before.unwrap_or_else(|| Rollout::new(node.clone(), self.clock(at)));
        rollout.request(id, node, self.clock(at));
        self.write(at, Key::Rollout(name.clone()), Some(Record::Rollout(rollout)));
    }

    fn push_again(&mut self) {
        let Some(at) = self.any_up() else { return };
        let names = self.names();
        let name = &names[self.random.between(0, names.len() as u64) as usize];
        // A rollout under way is not waited for.
        let broken = self.random.chance(35);
        self.push_next(at, name, broken);
        let other = self.any_up().filter(|other| *other != at && self.random.chance(40));
        let releases = self.nodes[at].replica.releases(name);
        if let Some((other, number)) = other.zip(releases.keys().next_back().map(|id| id.number)) {
            let wait = self.random.between(0, LATE_PUSH_MS);
            let name = name.clone();
            self.later(wait, Happening::Push { at: other, name, number });
        }
    }

    /// Pushes with the number that another release may have got meanwhile.
    pub(super) fn push_late(&mut self, at: usize, name: &ApplicationName, number: u64) {
        let replica = &self.nodes[at].replica;
        let taken = ReleaseId { number, node: self.nodes[at].id.clone() };
        let releases = replica.releases(name);
        let known = releases.values().next_back().filter(|_| !releases.contains_key(&taken));
        let Some(release) = known.filter(|_| self.can_write(at)) else { return };
        let files = !release.recipe.persist.is_empty();
        self.count("pushes crossed");
        self.push(at, name, number, false, files);
    }

    pub(super) fn push_good(&mut self, at: usize, name: &ApplicationName) {
        self.push_next(at, name, false);
    }

    fn push_next(&mut self, at: usize, name: &ApplicationName, broken: bool) {
        let releases = self.nodes[at].replica.releases(name);
        let Some((last, release)) = releases.last_key_value() else { return };
        let (number, files) = (last.number + 1, !release.recipe.persist.is_empty());
        self.count("push");
        self.push(at, name, number, broken, files);
    }

    fn restart(&mut self) {
        let Some(at) = self.any_up() else { return };
        let names = self.names();
        let name = names[self.random.between(0, names.len() as u64) as usize].clone();
        let Some(spec) = self.nodes[at].replica.spec(&name).cloned() else { return };
        self.count("restart");
        self.tell(|| format!("restart {name} at {at}"));
        let spec = ApplicationSpec { restart: spec.restart + 1, ..spec };
        self.write(at, Key::Spec(name), Some(Record::Spec(spec)));
    }

    fn scale(&mut self) {
        let Some(at) = self.any_up() else { return };
        let names = self.names();
        let name = names[self.random.between(0, names.len() as u64) as usize].clone();
        if self.nodes[at].replica.spec(&name).is_some() {
            let count = self.random.between(1, 9) as u32;
            self.count("scale");
            self.scale_to(at, &name, count);
        }
    }

    pub(super) fn scale_to(&mut self, at: usize, name: &ApplicationName, count: u32) {
        let Some(mut spec) = self.nodes[at].replica.spec(name).cloned() else { return };
        spec.processes.insert(ProcessType::web(), ProcessSpec { count, unknown: Unknown::new() });
        self.tell(|| format!("scale {name} to {count} at {at}"));
        self.served.remove(name);
        self.write(at, Key::Spec(name.clone()), Some(Record::Spec(spec)));
    }

    pub(super) fn change_node(&mut self, at: usize, load: Option<u32>, drained: Option<bool>) {
        let key = Key::Node(self.nodes[at].id.clone());
        let Some(Record::Node(view)) = self.nodes[at].replica.get(&key) else { return };
        let mut view = view.clone();
        view.load = load.or(view.load);
        view.drained = drained.unwrap_or(view.drained);
        if self.can_write(at) {
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
        match self.random.between(0, 6) {
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
            4 => self.restart(),
            _ => {
                self.count("load");
                let load = self.random.between(5, 99) as u32;
                self.change_node(at, Some(load), None);
            }
        }
    }

    fn act(&mut self) {
        let at = self.random.between(0, self.nodes.len() as u64) as usize;
        match self.random.between(0, 18) {
            0 | 1 => {
                let back = self.random.between(1_000, 90_000);
                self.down(at, true, Some(back));
            }
            2 => {
                let back = self.random.between(500, 90_000);
                self.down(at, false, Some(back));
            }
            3 => {
                let long = self.random.between(3_000, 60_000);
                self.freeze(at, long);
            }
            4 => {
                let long = self.random.between(2_000, 90_000);
                self.hang(at, long);
            }
            5 if self.random.chance(50) => self.cut_some(at),
            5 => self.cut_off(),
            6 => self.reconnect(),
            7 => {
                let long = self.random.between(2_000, 60_000);
                self.fill_disk(at, long);
            }
            8 => {
                for _ in 0..self.random.between(1, 4) {
                    self.crash_instance(at);
                }
            }
            9 => self.come_or_go(at),
            10 => self.overtake(),
            11 | 12 => {
                for _ in 0..self.random.between(1, 4) {
                    self.sicken(at);
                }
            }
            13 => {
                let long = self.random.between(2_000, 90_000);
                self.hang_checker(at, long);
            }
            _ => self.calm_act(),
        }
    }

    fn come_or_go(&mut self, at: usize) {
        match self.nodes.iter().position(|node| node.is_spare) {
            Some(spare) if self.random.chance(60) => self.join(spare),
            _ => self.remove(at),
        }
    }

    /// Stops a coordinator in the middle of its rollout; another one goes on, a newer release
    /// comes, and then the first one is back.
    fn overtake(&mut self) {
        let Some(at) = self.any_up() else { return };
        let names = self.names();
        let name = names[self.random.between(0, names.len() as u64) as usize].clone();
        self.push_good(at, &name);
        let wait = self.random.between(100, 4_000);
        self.run(wait);
        match self.random.between(0, 4) {
            0 => self.freeze(at, 25_000),
            1 => self.hang(at, 25_000),
            way => {
                self.cut_off_one(at);
                // It goes on alone, and is the last to write.
                if way == 2 {
                    self.freeze(at, 15_000);
                }
            }
        }
        let wait = self.random.between(3_000, 10_000);
        self.run(wait);
        if let Some(other) = self.any_up().filter(|other| *other != at) {
            self.count("overtaken");
            self.push_good(other, &name);
        }
        self.run(30_000);
        self.reconnect();
    }

    /// Lets loads come and go for an hour, on machines that all work.
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
