//! Connections between nodes. A stream keeps its order and loses nothing but its end; the next one
//! may overtake what was left of it.

use std::collections::{BTreeMap, BTreeSet};

use super::fault::Fault;
use super::world::{Happening, World};

/// The number of old messages that may come again.
const REMEMBERED_MAX: usize = 32;

#[derive(Clone, Debug)]
pub(crate) struct Parcel {
    pub from: usize,
    pub to: usize,
    /// The number of the connection; `None` for a message that comes again.
    epoch: Option<u64>,
    /// The process that it was meant for.
    life: u64,
    pub bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Connection {
    epoch: u64,
    up: bool,
    /// Whether a message of this direction was swallowed, so that no more of it come.
    dead: [bool; 2],
    last_arrival: [u64; 2],
}

#[derive(Debug, Default)]
pub(crate) struct Network {
    connections: BTreeMap<(usize, usize), Connection>,
    /// The ordered pairs of nodes where nothing gets through from the first to the second.
    pub blocked: BTreeSet<(usize, usize)>,
    remembered: Vec<Parcel>,
    pub messages: u64,
    pub bytes: u64,
}

fn pair(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

impl Network {
    pub fn is_open(&self, a: usize, b: usize) -> bool {
        !self.blocked.contains(&(a, b)) && !self.blocked.contains(&(b, a))
    }

    pub fn connected(&self) -> Vec<(usize, usize)> {
        let up = self.connections.iter().filter(|(_, connection)| connection.up);
        up.map(|(pair, _)| *pair).collect()
    }

    pub fn forget_remembered(&mut self) {
        self.remembered.clear();
    }
}

impl World {
    pub(crate) fn send(&mut self, from: usize, to: usize, bytes: Vec<u8>) {
        self.network.messages += 1;
        self.network.bytes += bytes.len() as u64;
        let open = self.network.is_open(from, to) && self.hosts[to].is_up();
        let through = !self.network.blocked.contains(&(from, to));
        let connection = self.network.connections.entry(pair(from, to)).or_default();
        if !connection.up {
            if !open || !self.hosts[to].connected {
                let wait = self.random.between(1, 200);
                let life = self.hosts[from].life;
                return self.later(wait, Happening::Lost { host: from, life, peer: to });
            }
            let epoch = connection.epoch + 1;
            *connection = Connection { epoch, up: true, ..Connection::default() };
        }
        let direction = usize::from(from > to);
        let epoch = connection.epoch;
        if !through && !connection.dead[direction] {
            connection.dead[direction] = true;
            let wait = self.random.between(2000, 8000);
            self.later(wait, Happening::Cut { pair: pair(from, to), epoch });
            return;
        }
        if connection.dead[direction] {
            return;
        }
        let (mut wait, slow) = (self.random.between(1, 15), self.hazard(1, 2));
        if slow {
            wait = self.random.between(500, 4000);
            self.count(Fault::Delay);
        }
        let connection = self.network.connections.entry(pair(from, to)).or_default();
        let at = connection.last_arrival[direction].max(self.now + wait);
        connection.last_arrival[direction] = at;
        let life = self.hosts[to].life;
        let parcel = Parcel { from, to, epoch: Some(epoch), life, bytes };
        if self.climate.replays && self.random.chance(2) {
            self.remember(parcel.clone());
        }
        self.later(at - self.now, Happening::Arrive(parcel));
    }

    fn remember(&mut self, parcel: Parcel) {
        let remembered = &mut self.network.remembered;
        if remembered.len() == REMEMBERED_MAX {
            remembered.remove(0);
        }
        remembered.push(Parcel { epoch: None, ..parcel });
    }

    /// Returns whether a parcel reaches its machine.
    pub(crate) fn arrives(&mut self, parcel: &Parcel) -> bool {
        let Parcel { from, to, epoch, life, .. } = *parcel;
        if !self.hosts[to].is_up() {
            return false;
        }
        let Some(epoch) = epoch else {
            self.count(Fault::Replay);
            return true;
        };
        let connection = self.network.connections.entry(pair(from, to)).or_default();
        if connection.up && connection.epoch == epoch {
            return true;
        }
        // Of a connection that is gone, what the kernel had taken in may come through.
        let late = life == self.hosts[to].life && !self.is_calm() && self.random.chance(40);
        if late {
            self.count(Fault::Late);
        }
        late
    }

    pub(crate) fn replay_something(&mut self) {
        let count = self.network.remembered.len() as u64;
        let index = self.random.between(0, count) as usize;
        if let Some(parcel) = self.network.remembered.get(index).cloned() {
            let wait = self.random.between(1, 3000);
            self.later(wait, Happening::Arrive(parcel));
        }
    }

    /// Cuts a connection; both sides hear of it, each in its own time.
    pub(crate) fn cut(&mut self, (a, b): (usize, usize), epoch: Option<u64>) {
        let Some(connection) = self.network.connections.get_mut(&pair(a, b)) else { return };
        if !connection.up || epoch.is_some_and(|epoch| epoch != connection.epoch) {
            return;
        }
        connection.up = false;
        self.count(Fault::Cut);
        self.tell(|| format!("cut n{a} n{b}"));
        for (host, peer) in [(a, b), (b, a)] {
            let life = self.hosts[host].life;
            let wait = self.delay(0, 50, 3000);
            self.later(wait, Happening::Lost { host, life, peer });
        }
    }

    pub(crate) fn cut_all_of(&mut self, host: usize) {
        for (a, b) in self.network.connected() {
            if a == host || b == host {
                self.cut((a, b), None);
            }
        }
    }
}
