//! The watch over the checker of this node. A checker that hangs judges nothing and overrules
//! everybody, as a node's own word counts: so it is stopped, the node says that it has no checker,
//! witnesses elsewhere are heard, and after a while it is tried again. Must not judge by itself.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use model::node::NodeInfo;
use model::role::Role;
use model::{Key, Machine, NodeId, Timestamp, TypedKey, record};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use runtime::driver::Clock;
use runtime::faults::Faults;
use runtime::members::Members;
use runtime::task;
use store::{SharedStore, lookup_record};

/// The interval at which a working checker sends a beat.
const BEAT: Duration = Duration::from_secs(1);
/// The maximum silence of a checker; its longest step is the writing of a verdict.
const SILENT_MAX: Duration = Duration::from_secs(10);
/// The time until a checker that hung is tried again.
const OFF: Duration = Duration::from_secs(30);

/// A machine that sends a beat every second while it is driven.
pub struct Beating<M> {
    machine: M,
    beats: watch::Sender<()>,
    next: Timestamp,
}

impl<M> Beating<M> {
    pub fn new(machine: M, beats: watch::Sender<()>, now: Timestamp) -> Beating<M> {
        Beating { machine, beats, next: now.after(BEAT) }
    }
}

impl<M: Machine> Machine for Beating<M> {
    type Event = M::Event;
    type Effect = M::Effect;

    fn handle(&mut self, now: Timestamp, event: M::Event, effects: &mut Vec<M::Effect>) {
        self.machine.handle(now, event, effects);
    }

    fn tick(&mut self, now: Timestamp, effects: &mut Vec<M::Effect>) {
        if self.machine.deadline().is_some_and(|deadline| deadline <= now) {
            self.machine.tick(now, effects);
        }
        if self.next <= now {
            self.beats.send_replace(());
            self.next = now.after(BEAT);
        }
    }

    fn deadline(&self) -> Option<Timestamp> {
        Some(self.machine.deadline().map_or(self.next, |deadline| deadline.min(self.next)))
    }

    fn check_invariants(&self) {
        self.machine.check_invariants();
    }
}

/// The checker of a node, and the peers that are asked while it hangs.
#[derive(Clone)]
pub struct WatchedChecker {
    pub store: SharedStore,
    pub node: NodeId,
    pub clock: Clock,
    pub faults: Faults,
    /// The other members; `None` where nobody else could testify.
    pub peers: Option<Arc<dyn Members>>,
}

enum Run {
    Ended,
    Silent,
}

impl WatchedChecker {
    /// Runs until the store stops.
    pub async fn run(self) -> anyhow::Result<()> {
        // An earlier run of this part may have ended while its checker was off.
        let mut listed = self.info().await?.is_none_or(|info| info.roles.has(Role::Checker));
        loop {
            if let Run::Ended = self.check(&mut listed).await? {
                return Ok(());
            }
            tracing::error!(silent_s = SILENT_MAX.as_secs(), "checker.hangs");
            listed = false;
            self.say_that_it_checks(false).await?;
            // The timeout is the usual end of this.
            match &self.peers {
                Some(peers) => {
                    let (store, node) = (self.store.clone(), self.node.clone());
                    let hearing = super::jury::run(store, node, peers.alive(), self.clock);
                    if let Ok(ended) = timeout(OFF, hearing).await {
                        return ended;
                    }
                }
                None => tokio::time::sleep(OFF).await,
            }
        }
    }

    /// Runs the checker in a task of its own: whatever holds it up does not hold up this one.
    async fn check(&self, listed: &mut bool) -> anyhow::Result<Run> {
        let WatchedChecker { store, node, clock, faults, .. } = self;
        let (beats, mut heard) = watch::channel(());
        let mut running = JoinSet::new();
        let checking = super::run(store.clone(), node.clone(), *clock, faults.clone(), beats);
        running.spawn(task::boxed(checking));
        let proven = clock.now().after(SILENT_MAX);
        let silent = async {
            loop {
                match timeout(SILENT_MAX, heard.changed()).await {
                    Err(_) => return anyhow::Ok(Run::Silent),
                    Ok(Err(_)) => std::future::pending().await,
                    Ok(Ok(())) if !*listed && clock.now() >= proven => {
                        tracing::info!("checker.works_again");
                        self.say_that_it_checks(true).await?;
                        *listed = true;
                    }
                    Ok(Ok(())) => {}
                }
            }
        };
        tokio::select! {
            ended = running.join_next() => match ended {
                Some(Err(error)) if error.is_panic() => resume_unwind(error.into_panic()),
                Some(Ok(ended)) => ended.map(|()| Run::Ended),
                _ => Ok(Run::Ended),
            },
            silent = silent => silent,
        }
    }

    /// Writes into this node's own record whether it checks; others look there for the nodes that
    /// they have to testify about.
    async fn say_that_it_checks(&self, checks: bool) -> anyhow::Result<()> {
        let Some(info) = self.info().await? else { return Ok(()) };
        let roles = info.roles.with(Role::Checker, checks);
        let info = NodeInfo { roles, ..info };
        self.store.set(self.key(), record::encode(&info).into()).await?;
        Ok(())
    }

    async fn info(&self) -> anyhow::Result<Option<NodeInfo>> {
        lookup_record(&*self.store, self.key()).await
    }

    fn key(&self) -> Key {
        TypedKey::NodeInfo(self.node.clone()).key()
    }
}
