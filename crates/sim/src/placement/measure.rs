//! The figures of simulated clusters: how fast slots are placed, how evenly, and what the loss of
//! machines leaves. Machines and records are as in the histories, without faults of their own.

use agent_core::placement::NodeView;
use model::{ApplicationName, Walls};

use super::replica::{Key, Record};
use super::world::World;

/// The time between two looks, in milliseconds.
const LOOK_MS: u64 = 100;

impl World {
    /// Creates machines of these capacities, each with a load of so many percent.
    pub fn of_sizes(seed: u64, capacities: &[u32], load: u32, spares: usize) -> World {
        let mut world = World::with_spares(seed, capacities.len(), spares);
        for (at, capacity) in capacities.iter().enumerate() {
            let view = NodeView {
                capacity: Some(*capacity),
                load: Some(load),
                drained: false,
                walls: Walls::ALL,
                started_at: None,
            };
            let key = Key::Node(world.nodes[at].id.clone());
            world.write(at, key, Some(Record::Node(view)));
        }
        world.run(3_000);
        world
    }

    /// Pushes so many applications of so many instances each, at once and to one node.
    pub fn push_many(&mut self, applications: usize, instances: u32) {
        for number in 1..=applications {
            let name: ApplicationName = format!("app{number}").parse().expect("a name");
            self.create(&name, instances, false);
        }
    }

    /// Runs until every wanted slot is ready somewhere; returns how many milliseconds that took.
    pub fn run_until_placed(&mut self, at_most: u64) -> Option<u64> {
        let begin = self.now;
        while !self.is_placed() {
            if self.now - begin >= at_most {
                return None;
            }
            self.run(LOOK_MS);
        }
        Some(self.now - begin)
    }

    fn is_placed(&self) -> bool {
        let names = self.names();
        let all =
            names.iter().all(|name| self.wanted_slots(name).is_subset(&self.ready_slots(name)));
        !names.is_empty() && all
    }

    pub fn instances(&self) -> u64 {
        self.slots()
    }

    /// Returns the instances of each node in percent of its capacity.
    pub fn shares(&self) -> Vec<f64> {
        let share = |at: usize| {
            let node = &self.nodes[at];
            let ready = node.processes.values().filter(|p| p.ready && p.exit.is_none());
            let capacity = match node.replica.get(&Key::Node(node.id.clone())) {
                Some(Record::Node(view)) => view.capacity.unwrap_or(1),
                _ => 1,
            };
            ready.count() as f64 * 100.0 / f64::from(capacity)
        };
        (0..self.nodes.len()).filter(|at| self.nodes[*at].runs()).map(share).collect()
    }

    /// Returns for each application how many nodes run some of it.
    pub fn spread(&self) -> Vec<usize> {
        let runs = |name: &ApplicationName, at: usize| {
            let mut ids = self.nodes[at].processes.iter();
            ids.any(|(id, process)| id.instance.application == *name && process.exit.is_none())
        };
        let nodes = |name| (0..self.nodes.len()).filter(|at| runs(name, *at)).count();
        self.names().iter().map(nodes).collect()
    }
}
