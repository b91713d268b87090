//! Replication between the store's machine and its peers: the handle by which a transport delivers
//! what peers send, and the outlet through which the machine's own messages leave. Must not know
//! sockets; the transport drives it, the committer answers.

use super::mailbox::Sender;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use model::Timestamp;
use sha1::{Digest, Sha1};
use store_core::event::Alarm;
use store_core::sync::links::SyncPeer;
use store_core::sync::message::{Body, ClusterId, Message};
use store_core::{ClockDoubt, Commit, CommitAction, Event, Location, NodeTag, Stamp};
use thiserror::Error;
use tokio::sync::oneshot;

use super::bulk::BulkPeers;
use super::bulk::fetch_board::FetchBoard;
use super::command::{Command, IncomingMessage};
use super::missing::Missing;
use super::shared::Shared;
use super::{INLINE_VALUE_MAX, StoreError};
use runtime::driver::Clock;

/// The way out for the machine's messages. It is called on the thread that commits, so it never
/// blocks.
pub trait Outlet: Send + Sync {
    /// Sends a message; one that cannot be taken must be reported as `Replication::lost`.
    fn send(&self, to: NodeTag, message: Message);
}

#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum LieError {
    #[error("the value sent for '{0}' does not match the hash in its commit")]
    Mismatch(Arc<str>),
    #[error("a small value for '{0}' was left out, or a large one sent inside")]
    Misplaced(Arc<str>),
    #[error("a commit names '{0}', which is no key that travels")]
    Key(Arc<str>),
}

/// One peer as the machine sees it.
#[derive(Clone, Debug)]
pub struct PeerState {
    pub node: NodeTag,
    pub member: bool,
    pub link: SyncPeer,
    /// The stamp up to which it is known to hold everybody's writes.
    pub acknowledged: Stamp,
}

#[derive(Clone, Debug)]
pub struct ReplicationState {
    pub cluster: ClusterId,
    pub node: NodeTag,
    pub head: String,
    pub commits: usize,
    pub joining: bool,
    pub fresh: bool,
    pub evicted: bool,
    pub clock_doubt: Option<String>,
    pub alarms: Vec<Alarm>,
    pub peers: Vec<PeerState>,
}

#[derive(Clone)]
pub struct Replication {
    shared: Arc<Shared>,
    commands: Sender<Command>,
    clock: Clock,
}

impl Replication {
    pub fn new(shared: Arc<Shared>, commands: Sender<Command>, clock: Clock) -> Replication {
        Replication { shared, commands, clock }
    }

    /// Connects the outlet; called once, when the transport is there.
    pub fn connect(&self, outlet: Arc<dyn Outlet>) {
        self.shared.connect(outlet);
    }

    pub fn received(&self, incoming: IncomingMessage) {
        self.command(Command::Received(incoming));
    }

    pub fn reachable(&self, peers: BTreeSet<NodeTag>) {
        self.command(Command::Tell(Event::Reachable(peers), None));
    }

    pub fn lost(&self, peer: NodeTag) {
        self.command(Command::Tell(Event::Lost { peer }, None));
    }

    /// Starts fetching large values from these peers, once.
    pub fn fetch_from(&self, peers: Arc<dyn BulkPeers>) -> io::Result<()> {
        let missing = Missing::new(&self.shared, self.commands.clone());
        self.shared.fetch_board.start(peers, missing)
    }

    pub async fn sync(&self) -> Result<(), StoreError> {
        self.tell(Event::Sync).await
    }

    pub async fn trust_clock(&self) -> Result<(), StoreError> {
        self.tell(Event::TrustClock).await
    }

    /// Returns the fetch board: large values that have come or are still to come.
    pub fn fetch_board(&self) -> Arc<FetchBoard> {
        self.shared.fetch_board.clone()
    }

    /// Joins a cluster; returns once that is in the log.
    pub async fn join(&self, cluster: ClusterId, listed: Stamp) -> Result<(), StoreError> {
        self.tell(Event::Join { cluster, listed }).await?;
        let machine = self.shared.machine();
        if machine.sync().standing().cluster == cluster && machine.sync().is_standing_kept() {
            return Ok(());
        }
        let what = "the disk did not take it down that this node joins: free space, start again";
        Err(StoreError::Refused(what.into()))
    }

    fn command(&self, command: Command) {
        // A store that has stopped needs no news.
        let _ = self.commands.send(command);
    }

    async fn tell(&self, event: Event) -> Result<(), StoreError> {
        let (reply, answer) = oneshot::channel();
        let command = Command::Tell(event, Some(reply));
        self.commands.send(command).map_err(|_| self.shared.stopped())?;
        answer.await.map_err(|_| self.shared.stopped())
    }

    pub fn cluster(&self) -> ClusterId {
        self.shared.machine().sync().standing().cluster
    }

    pub fn node(&self) -> NodeTag {
        self.shared.machine().node()
    }

    /// Returns the members of the roster, with this node if it is one.
    pub fn roster(&self) -> BTreeSet<NodeTag> {
        self.shared.machine().sync().members().roster()
    }

    /// Returns when a member was added to the roster.
    pub fn listed(&self, node: NodeTag) -> Option<Stamp> {
        self.shared.machine().sync().members().since(node)
    }

    pub fn is_joining(&self) -> bool {
        self.shared.machine().is_joining()
    }

    /// Returns how many peers hold all that was durable here when `durable()` returned this stamp.
    pub fn replicas_with(&self, stamp: Stamp) -> usize {
        self.shared.machine().replicas_with(stamp)
    }

    /// Returns the newest stamp in the log.
    pub fn durable(&self) -> Stamp {
        self.shared.machine().durable_stamp()
    }

    /// Returns the members with which nothing is exchanged until somebody sets a clock right.
    pub fn apart(&self) -> BTreeSet<NodeTag> {
        let machine = self.shared.machine();
        let links = machine.sync().links().iter().filter(|(_, link)| link.is_apart());
        links.map(|(peer, _)| *peer).collect()
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub fn state(&self) -> ReplicationState {
        let machine = self.shared.machine();
        let (sync, history) = (machine.sync(), machine.replica().history());
        let members = sync.members();
        let mut known: BTreeSet<NodeTag> = members.others().collect();
        known.extend(sync.links().iter().map(|(peer, _)| *peer));
        let links: std::collections::BTreeMap<NodeTag, &SyncPeer> =
            sync.links().iter().map(|(peer, link)| (*peer, link)).collect();
        let peer = |node: NodeTag| PeerState {
            node,
            member: members.is_member(node),
            link: links.get(&node).map(|link| (*link).clone()).unwrap_or_default(),
            acknowledged: members.ack_of(node),
        };
        ReplicationState {
            cluster: sync.standing().cluster,
            node: machine.node(),
            head: history.head().to_string(),
            commits: history.len(),
            joining: machine.is_joining(),
            fresh: machine.is_fresh(),
            evicted: members.is_evicted(machine.node()),
            clock_doubt: machine.doubt().map(describe),
            alarms: machine.alarms().cloned().collect(),
            peers: known.into_iter().map(peer).collect(),
        }
    }

    /// Returns the values of a message's commits, to be sent along. An error ends the session.
    pub fn values_of(&self, message: &Message) -> Result<Vec<Option<Bytes>>, StoreError> {
        let Body::Commits { commits, .. } = &message.body else { return Ok(Vec::new()) };
        commits.iter().map(|carried| self.value_of(&carried.commit)).collect()
    }

    fn value_of(&self, commit: &Commit) -> Result<Option<Bytes>, StoreError> {
        if !matches!(commit.location, Location::Log { .. }) {
            return Ok(None);
        }
        if let Some(value) = self.shared.cache().get(commit.location) {
            return Ok(Some(value));
        }
        // The value may have been moved since the session saw it.
        let (now, file) = {
            let machine = self.shared.machine();
            let held = machine.replica().history().get(commit.at);
            let now = held.cloned().ok_or_else(|| gone(commit))?;
            let file = self.shared.file_of(&now).ok_or_else(|| gone(commit))?;
            (now, file)
        };
        self.shared.read(&now, &file).map(Some)
    }

    /// Sets the location of a commit whose large value is in a file here already.
    pub fn locate(&self, commit: &mut Commit) {
        if let CommitAction::Set { hash, size, .. } = commit.action
            && size > INLINE_VALUE_MAX as u64
            && self.shared.values.renew(&hash).is_ok()
        {
            commit.location = Location::File;
        }
    }
}

fn describe(doubt: ClockDoubt) -> String {
    match doubt {
        ClockDoubt::Behind { by_ms } => {
            format!("this machine's clock is {by_ms} ms behind what the store knows")
        }
        ClockDoubt::Leapt { by_ms } => {
            format!(
                "this machine's clock is {} h ahead of the store's last write",
                by_ms / 3_600_000
            )
        }
    }
}

fn gone(commit: &Commit) -> StoreError {
    StoreError::Refused(format!("the commit of '{}' was squashed meanwhile", commit.key))
}

/// Checks a value that came from outside: it must be what its commit says.
pub fn check_value(commit: &Commit, value: Option<&[u8]>) -> Result<(), LieError> {
    if commit.key.split("::").next() == Some(model::Key::LOCAL) {
        return Err(LieError::Key(commit.key.clone()));
    }
    let CommitAction::Set { hash, sha1, size, .. } = commit.action else { return Ok(()) };
    let small = size <= INLINE_VALUE_MAX as u64;
    match value {
        None if small => Err(LieError::Misplaced(commit.key.clone())),
        Some(_) if !small => Err(LieError::Misplaced(commit.key.clone())),
        None => Ok(()),
        Some(bytes) => {
            let own: [u8; 20] = Sha1::digest(bytes).into();
            if *blake3::hash(bytes).as_bytes() == hash && own == sha1 {
                Ok(())
            } else {
                Err(LieError::Mismatch(commit.key.clone()))
            }
        }
    }
}
