//! The table of streams to peers: who is linked, what waits to be sent, and who counts as
//! reachable. The store is told of every change; must not know how a stream is made.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use store_core::NodeTag;
use tokio::sync::{Notify, mpsc};

use super::store_role::StoreRole;
use runtime::lock::locked;

/// The number of frames that wait for one peer.
const QUEUE_FRAMES_MAX: usize = 4096;
/// The size in bytes of those frames: four sessions' worth of undurable batches. A peer that lets
/// more wait is cut off.
const QUEUE_BYTES_MAX: usize = 8 << 20;
/// The bytes that may be waiting when a published message is queued; it finds room only while the
/// store's own messages take little.
const PUBLISHED_WAITING_MAX: usize = QUEUE_BYTES_MAX / 4;
/// The number of callers on no roster: those that join, and those that were removed and do not
/// know.
pub const STRANGERS_MAX: usize = 16;

/// One stream, shared by the table and by its two tasks.
pub struct Link {
    pub peer: NodeTag,
    dialed_by: NodeTag,
    id: u64,
    queue: mpsc::Sender<Bytes>,
    waiting: AtomicUsize,
    /// The signal that ends both tasks.
    pub cut: Notify,
    reason: Mutex<Option<String>>,
}

impl Link {
    /// Queues a frame; returns `false` if there is no room, or the link has ended.
    fn put(&self, frame: Bytes, limit: usize) -> bool {
        let length = frame.len();
        let before = self.waiting.fetch_add(length, Ordering::Relaxed);
        if before + length <= limit && self.queue.try_send(frame).is_ok() {
            return true;
        }
        self.sent(length);
        false
    }

    pub fn sent(&self, length: usize) {
        self.waiting.fetch_sub(length, Ordering::Relaxed);
    }

    /// Cuts the link; only the first reason counts.
    pub fn cut(&self, reason: &str) {
        locked(&self.reason).get_or_insert_with(|| reason.to_string());
        self.cut.notify_waiters();
        self.cut.notify_one();
    }

    pub fn reason(&self) -> Option<String> {
        locked(&self.reason).clone()
    }
}

#[derive(Default)]
struct LinkTable {
    links: BTreeMap<NodeTag, Arc<Link>>,
    members: BTreeSet<NodeTag>,
    /// The members that keep no store, to which the store does not talk.
    guests: BTreeSet<NodeTag>,
    /// The peers that are linked, but from which nothing comes back.
    silent: BTreeSet<NodeTag>,
    told: BTreeSet<NodeTag>,
    next_id: u64,
}

pub struct Links {
    node: NodeTag,
    table: Mutex<LinkTable>,
    store_role: StoreRole,
    /// The signal that a peer was linked or lost.
    pub changed: Notify,
}

impl Links {
    pub fn new(node: NodeTag, store_role: StoreRole) -> Links {
        Links { node, table: Mutex::default(), store_role, changed: Notify::new() }
    }

    /// Takes a stream into the table. It may replace one that is there already, but both sides must
    /// come to the same choice: the one that the lower id dialed, otherwise the newer.
    pub fn add(&self, peer: NodeTag, dialed_by: NodeTag) -> Option<(Arc<Link>, Outgoing)> {
        let mut table = locked(&self.table);
        let preferred = self.node.min(peer);
        if let Some(held) = table.links.get(&peer)
            && held.dialed_by == preferred
            && dialed_by != preferred
        {
            return None;
        }
        let strangers = table.links.keys().filter(|peer| !table.members.contains(peer)).count();
        if !table.members.contains(&peer) && strangers >= STRANGERS_MAX {
            return None;
        }
        let (queue, outgoing) = mpsc::channel(QUEUE_FRAMES_MAX);
        table.next_id += 1;
        let link = Arc::new(Link {
            peer,
            dialed_by,
            id: table.next_id,
            queue,
            waiting: AtomicUsize::new(0),
            cut: Notify::new(),
            reason: Mutex::default(),
        });
        if let Some(held) = table.links.insert(peer, link.clone()) {
            held.cut("a newer stream took its place");
            self.store_role.lost(peer);
        }
        table.silent.remove(&peer);
        self.tell(&mut table);
        Some((link, outgoing))
    }

    /// Removes a link; returns whether it was the peer's present stream.
    pub fn remove(&self, link: &Link) -> bool {
        let mut table = locked(&self.table);
        let present = table.links.get(&link.peer).is_some_and(|held| held.id == link.id);
        if present {
            table.links.remove(&link.peer);
            table.silent.remove(&link.peer);
            self.store_role.lost(link.peer);
            self.tell(&mut table);
        }
        present
    }

    /// Replaces the members. No stream is cut at once: a removed node is to hear of that from the
    /// store first. Returns the peers that are linked but no longer members.
    pub fn set_members(
        &self,
        members: BTreeSet<NodeTag>,
        guests: BTreeSet<NodeTag>,
    ) -> Vec<NodeTag> {
        let mut table = locked(&self.table);
        if table.guests != guests {
            table.guests = guests;
            self.tell(&mut table);
        }
        let before = std::mem::replace(&mut table.members, members);
        let gone = before.difference(&table.members).filter(|peer| table.links.contains_key(peer));
        gone.copied().collect()
    }

    pub fn set_silent(&self, peer: NodeTag, silent: bool) {
        let mut table = locked(&self.table);
        let changed = match silent {
            true => table.links.contains_key(&peer) && table.silent.insert(peer),
            false => table.silent.remove(&peer),
        };
        if changed {
            tracing::info!(?peer, silent, "peer.liveness_changed");
            self.tell(&mut table);
        }
    }

    pub fn silent(&self) -> BTreeSet<NodeTag> {
        locked(&self.table).silent.clone()
    }

    /// Tells the store who is reachable, under the table's lock, so that it hears of changes in
    /// their order.
    fn tell(&self, table: &mut LinkTable) {
        let linked = table.links.keys().copied();
        let speaks = |peer: &NodeTag| !table.silent.contains(peer) && !table.guests.contains(peer);
        let reachable: BTreeSet<NodeTag> = linked.filter(speaks).collect();
        if reachable != table.told {
            table.told = reachable.clone();
            self.store_role.reachable(reachable);
        }
        self.changed.notify_waiters();
        self.changed.notify_one();
    }

    pub fn is_any_linked(&self) -> bool {
        !locked(&self.table).links.is_empty()
    }

    pub fn is_linked(&self, peer: NodeTag) -> bool {
        locked(&self.table).links.contains_key(&peer)
    }

    pub fn linked(&self) -> BTreeSet<NodeTag> {
        locked(&self.table).links.keys().copied().collect()
    }

    /// Sends the store's own message; a peer that does not take it in is cut off.
    pub fn send(&self, peer: NodeTag, frame: Bytes) {
        let link = locked(&self.table).links.get(&peer).cloned();
        match link {
            Some(link) if link.put(frame, QUEUE_BYTES_MAX) => {}
            Some(link) => link.cut("it does not take in what is sent to it"),
            None => self.store_role.lost(peer),
        }
    }

    /// Sends a frame to one peer, if there is room.
    pub fn offer(&self, peer: NodeTag, frame: Bytes) {
        if let Some(link) = locked(&self.table).links.get(&peer) {
            link.put(frame, QUEUE_BYTES_MAX);
        }
    }

    /// Sends a frame to every linked member, if there is room.
    pub fn publish(&self, frame: &Bytes) {
        let table = locked(&self.table);
        for (peer, link) in &table.links {
            if table.members.contains(peer) && !link.put(frame.clone(), PUBLISHED_WAITING_MAX) {
                tracing::debug!(?peer, "peer.published_dropped");
            }
        }
    }

    pub fn is_member(&self, peer: NodeTag) -> bool {
        locked(&self.table).members.contains(&peer)
    }

    pub fn cut(&self, peer: NodeTag, reason: &str) {
        if let Some(link) = locked(&self.table).links.get(&peer) {
            link.cut(reason);
        }
    }

    pub fn cut_all(&self, reason: &str) {
        locked(&self.table).links.values().for_each(|link| link.cut(reason));
    }
}

pub type Outgoing = mpsc::Receiver<Bytes>;
