//! Liveness of members: foca, with its datagrams inside the streams between nodes. Decides whom to
//! talk to and nothing else; a member it takes for dead stays a member.

mod suspicions;

use std::collections::{BTreeMap, BTreeSet};
use std::num::{NonZeroU8, NonZeroUsize};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foca::{AccumulatingRuntime, Config, Foca, Identity, OwnedNotification, PostcardCodec, Timer};
use model::{NodeId, Timestamp};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde::{Deserialize, Serialize};
use store_core::NodeTag;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use self::suspicions::Suspicions;
use super::frame::{self, LIVENESS_BYTES_MAX};
use super::identity;
use super::links::Links;

const PROBE_PERIOD: Duration = Duration::from_millis(500);
/// The time limit of an answer to a probe: for one machine, or sites of one continent.
const PROBE_ANSWER_MAX: Duration = Duration::from_millis(200);
const SUSPICION: Duration = Duration::from_secs(1);
/// The interval at which peers are announced to that are linked and do not count as alive.
const SILENT_INTERVAL: Duration = Duration::from_secs(1);
/// The time after which a dead member is forgotten here.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3600);
/// The number of times that one life may be renewed, each time because others took it for dead: far
/// more than will happen.
const RENEWALS_MAX: u64 = 1_000_000;
/// The number of events that may wait; datagrams beyond it are lost, as datagrams are.
const HEARD_MAX: usize = 1024;

/// A node in one of its lives: once others took it for dead, it continues under a higher number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Life {
    node: NodeId,
    number: u64,
}

impl Identity for Life {
    type Addr = NodeId;

    fn renew(&self) -> Option<Life> {
        Some(Life { node: self.node.clone(), number: self.number.saturating_add(1) })
    }

    fn addr(&self) -> NodeId {
        self.node.clone()
    }

    fn win_addr_conflict(&self, other: &Life) -> bool {
        self.number > other.number
    }
}

/// Returns the number of this process's life: its time of start, but above the numbers of all lives
/// before it, whatever the clock said then. Under a lower one others would never believe that it is
/// alive.
pub fn number(cluster: &Path, now: Timestamp) -> u64 {
    let path = cluster.join("life");
    let before: Option<u64> =
        std::fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
    let number = before.map_or(now.0, |before| now.0.max(before.saturating_add(RENEWALS_MAX)));
    // A full disk is no reason to be silent.
    if let Err(error) = identity::write_private(&path, number.to_string().as_bytes()) {
        tracing::warn!(error = format!("{error:#}"), "peer.life_not_kept");
    }
    number
}

pub enum Heard {
    Datagram(Bytes),
    Linked(NodeTag),
    /// The peer's machine answers that nobody listens there: its process has ended, or will say
    /// otherwise.
    Refused(NodeTag),
}

/// The handle that takes what is heard of peers.
pub struct Liveness {
    sender: mpsc::Sender<Heard>,
}

impl Liveness {
    pub fn new() -> (Liveness, mpsc::Receiver<Heard>) {
        let (sender, receiver) = mpsc::channel(HEARD_MAX);
        (Liveness { sender }, receiver)
    }

    pub fn tell(&self, heard: Heard) {
        let _ = self.sender.try_send(heard);
    }
}

fn config() -> Config {
    Config {
        probe_period: PROBE_PERIOD,
        probe_rtt: PROBE_ANSWER_MAX,
        suspect_to_down_after: SUSPICION,
        remove_down_after: Some(FORGOTTEN_AFTER),
        max_transmissions: NonZeroU8::new(10).expect("ten"),
        max_packet_size: NonZeroUsize::new(LIVENESS_BYTES_MAX).expect("not zero"),
        // A node that is wrongly taken for dead is told so and begins a new life.
        notify_down_members: true,
        ..Config::simple()
    }
}

type FocaMembers = Foca<Life, PostcardCodec, SmallRng, foca::NoCustomBroadcast>;

struct Watchman {
    foca: FocaMembers,
    runtime: AccumulatingRuntime<Life>,
    links: Arc<Links>,
    /// The members that were there and no longer answer.
    down: watch::Sender<BTreeSet<NodeId>>,
    alive: watch::Sender<BTreeSet<NodeId>>,
    timers: BTreeMap<(Instant, u64), Timer<Life>>,
    next_timer: u64,
    suspicions: Suspicions,
}

/// Runs until the sender is gone.
pub async fn run(
    node: NodeId,
    number: u64,
    links: Arc<Links>,
    alive: watch::Sender<BTreeSet<NodeId>>,
    mut heard: mpsc::Receiver<Heard>,
    down: watch::Sender<BTreeSet<NodeId>>,
) {
    let life = Life { node, number };
    let foca = Foca::new(life, config(), SmallRng::seed_from_u64(number), PostcardCodec);
    let runtime = AccumulatingRuntime::new();
    let mut watchman = Watchman {
        foca,
        runtime,
        links,
        down,
        alive,
        timers: BTreeMap::new(),
        next_timer: 0,
        suspicions: Suspicions::default(),
    };
    let mut silent = tokio::time::interval(SILENT_INTERVAL);
    silent.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let next = watchman.next().unwrap_or_else(|| Instant::now() + SILENT_INTERVAL);
        tokio::select! {
            event = heard.recv() => match event {
                None => return,
                Some(Heard::Datagram(datagram)) => watchman.datagram(&datagram),
                Some(Heard::Linked(peer)) => watchman.announce(peer),
                Some(Heard::Refused(peer)) => watchman.suspect(&peer.node()),
            },
            () = tokio::time::sleep_until(next) => watchman.due(),
            _ = silent.tick() => watchman.announce_to_absent(),
        }
        watchman.perform();
    }
}

impl Watchman {
    fn datagram(&mut self, datagram: &[u8]) {
        // Peers speak of lives that have ended; foca reports that, and it means nothing.
        if let Err(error) = self.foca.handle_data(datagram, &mut self.runtime) {
            tracing::debug!(%error, "peer.liveness");
        }
    }

    fn announce(&mut self, peer: NodeTag) {
        // Number 0 addresses any life.
        let peer = Life { node: peer.node(), number: 0 };
        if let Err(error) = self.foca.announce(peer, &mut self.runtime) {
            tracing::debug!(%error, "peer.liveness");
        }
    }

    /// Announces this node to linked peers that do not count as alive. Two that took each other for
    /// dead learn of the other's next life only by more than one message: the first is answered by
    /// "you are dead".
    fn announce_to_absent(&mut self) {
        let alive: BTreeSet<NodeTag> =
            self.foca.iter_members().map(|member| NodeTag::from(&member.id().node)).collect();
        for peer in self.links.linked().difference(&alive) {
            self.announce(*peer);
        }
    }

    fn suspect(&mut self, node: &NodeId) {
        let until = Instant::now() + SUSPICION;
        self.suspicions.add(until, node, &mut self.foca, &mut self.runtime);
    }

    fn next(&self) -> Option<Instant> {
        let timer = self.timers.keys().next().map(|(at, _)| *at);
        timer.into_iter().chain(self.suspicions.next()).min()
    }

    fn due(&mut self) {
        let now = Instant::now();
        self.suspicions.judge(now, &mut self.foca, &mut self.runtime);
        while let Some(entry) = self.timers.first_entry()
            && entry.key().0 <= now
        {
            let timer = entry.remove();
            if let Err(error) = self.foca.handle_timer(timer, &mut self.runtime) {
                tracing::debug!(%error, "peer.liveness");
            }
        }
    }

    fn perform(&mut self) {
        while let Some((to, datagram)) = self.runtime.to_send() {
            self.links.offer(NodeTag::from(&to.node), frame::liveness(&datagram));
        }
        while let Some((after, timer)) = self.runtime.to_schedule() {
            self.next_timer += 1;
            self.timers.insert((Instant::now() + after, self.next_timer), timer);
        }
        let mut changed = false;
        while let Some(notification) = self.runtime.to_notify() {
            changed = true;
            match notification {
                OwnedNotification::MemberUp(life) => {
                    self.links.set_silent(NodeTag::from(&life.node), false);
                    self.down.send_if_modified(|down| down.remove(&life.node));
                }
                OwnedNotification::MemberDown(life) => {
                    self.links.set_silent(NodeTag::from(&life.node), true);
                    self.down.send_if_modified(|down| down.insert(life.node));
                }
                _ => {}
            }
        }
        if changed {
            // One life may follow another without a notice that counts.
            let now = self.foca.iter_members().map(|member| member.id().node.clone()).collect();
            self.alive.send_if_modified(|alive| {
                *alive != now && {
                    *alive = now;
                    true
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_life_has_a_higher_number_although_a_clock_was_wrong() {
        let directory = tempfile::tempdir().unwrap();
        let hours = 5 * 3_600_000;
        let next = |now: u64| number(directory.path(), Timestamp(now));
        assert_eq!(next(10_000_000), 10_000_000);
        assert_eq!(next(10_000_000 + hours), 10_000_000 + hours);
        let cured = next(10_060_000);
        assert!(cured > 10_000_000 + hours, "{cured}");
        assert_eq!(next(20_000_000 + hours), 20_000_000 + hours);
    }
}
