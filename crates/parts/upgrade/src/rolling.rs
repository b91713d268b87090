//! One node's part in a roll: it looks at the records, and when it is this node's turn fetches the
//! binary, checks it, and decides that another process is to run the node. After a trial it writes
//! how that went. A part of the node, under supervision.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use agent_core::upgrade::{Picture, RollStanding, at_start};
use anyhow::Context;
use model::record::{self, RECORD_VERSION};
use model::upgrade::{NodeUpgrade, Roll, TrialPhase, TrialRecord};
use model::{NodeId, Prefix, TypedKey};
use tokio::sync::watch;

use super::succession::Testament;
use super::{OpenPorts, Own, ProcessOrigin, Upgrading, candidate};
use os::binaries::{self, BinaryRole};
use runtime::driver::Clock;
use store::{Store, StoreError, Value, lookup_record, readable};

/// The interval between two looks at the records, whatever was heard of them.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The interval while nothing is asked for.
const IDLE_INTERVAL: Duration = Duration::from_secs(30);

pub async fn run(
    upgrading: Arc<Upgrading>,
    open_ports: OpenPorts,
    clock: Clock,
) -> anyhow::Result<()> {
    let part = RollingPart { upgrading, open_ports, clock };
    let own = part.find_out().await?;
    part.settle(&own).await?;
    let mut asked = part.upgrading.store.watch(TypedKey::Roll.key().into(), None).await?;
    loop {
        let picture = picture(&part.upgrading).await?;
        let standing = picture.standing(clock.now());
        if standing == RollStanding::Turn(part.upgrading.node.clone())
            && let Some(roll) = &picture.roll
        {
            part.take_turn(roll, &own).await?;
        }
        let pause = match standing {
            RollStanding::None | RollStanding::Finished | RollStanding::Stopped(_) => IDLE_INTERVAL,
            _ => LOOK_INTERVAL,
        };
        tokio::select! {
            change = asked.next() => if change.is_none() {
                return Ok(());
            },
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Returns all that is stored about upgrades, and who is alive.
pub async fn picture(upgrading: &Upgrading) -> anyhow::Result<Picture> {
    let store = &*upgrading.store;
    let mut picture = Picture {
        roll: lookup_record::<Roll>(store, TypedKey::Roll.key()).await?,
        ..Picture::default()
    };
    picture.alive.insert(upgrading.node.clone());
    if let Some(peers) = &upgrading.peers {
        picture.alive.extend(peers.alive().borrow().iter().cloned());
    }
    let nodes: Prefix = "node".parse().context("a well-formed prefix")?;
    for key in store.keys(&nodes).await? {
        let Some(TypedKey::NodeUpgrade(node)) = TypedKey::parse(&key) else { continue };
        let entry = store.lookup(&key).await?;
        let record: Option<NodeUpgrade> = readable(&key, entry.as_ref().map(|entry| &entry.value));
        if upgrading.peers.is_none() {
            // Something else keeps them together: all that are stored count as alive.
            picture.alive.insert(node.clone());
        }
        picture.nodes.extend(record.map(|record| (node, record)));
    }
    Ok(picture)
}

async fn write(store: &dyn Store, node: &NodeId, to: &NodeUpgrade) -> Result<(), StoreError> {
    let key = TypedKey::NodeUpgrade(node.clone()).key();
    store.set(key, record::encode(to).into()).await.map(drop)
}

struct RollingPart {
    upgrading: Arc<Upgrading>,
    open_ports: OpenPorts,
    clock: Clock,
}

impl RollingPart {
    /// Finds out which binary this process runs, and keeps a copy of it, whatever becomes of the
    /// file.
    async fn find_out(&self) -> anyhow::Result<Own> {
        if let Some(own) = self.upgrading.own() {
            return Ok(own.clone());
        }
        let directory = self.upgrading.layout.bin();
        let found = tokio::task::spawn_blocking(move || {
            let copy = binaries::install_own(&directory)?;
            let hash = copy.hash.parse().map_err(anyhow::Error::msg)?;
            anyhow::Ok(Own { hash, path: copy.path })
        });
        let own = found.await??;
        Ok(self.upgrading.own.get_or_init(|| own).clone())
    }

    /// Writes how this process came to run the node; waits while it is on trial.
    async fn settle(&self, own: &Own) -> anyhow::Result<()> {
        let upgrading = &self.upgrading;
        if let Some(mut kept) = self.kept() {
            kept.wait_for(|kept| *kept).await.ok();
            tracing::info!(binary = %own.hash, "upgrade.kept");
        }
        let key = TypedKey::NodeUpgrade(upgrading.node.clone()).key();
        let before: Option<NodeUpgrade> = lookup_record(&*upgrading.store, key).await?;
        let mut record = at_start(before.clone(), own.hash, self.clock.now());
        if let Some((roll, why)) = self.returned() {
            tracing::warn!(why, "upgrade.returned");
            if let Some(trial) = record.trial.as_mut().filter(|trial| trial.roll == roll) {
                trial.phase = TrialPhase::Returned;
                trial.why = Some(why);
            }
        }
        let (directory, path) = (upgrading.layout.bin(), own.path.clone());
        let named = tokio::task::spawn_blocking(move || {
            let current = binaries::named(&directory, BinaryRole::Current);
            if let Some(before) = current.filter(|before| *before != path) {
                binaries::name(&directory, BinaryRole::Previous, &before)?;
            }
            binaries::name(&directory, BinaryRole::Current, &path)?;
            Ok::<_, anyhow::Error>(binaries::forget(&directory, BinaryRole::Candidate)?)
        });
        named.await??;
        if before.as_ref() != Some(&record) {
            write(&*upgrading.store, &upgrading.node, &record).await?;
        }
        // This comes last: a part that fails before is started again and has it all to do.
        upgrading.origin.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(())
    }

    fn kept(&self) -> Option<watch::Receiver<bool>> {
        match &*self.upgrading.origin.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(ProcessOrigin::OnTrial(heir)) => Some(heir.kept()),
            _ => None,
        }
    }

    fn returned(&self) -> Option<(String, String)> {
        match &*self.upgrading.origin.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(ProcessOrigin::Returned { roll, why }) => Some((roll.clone(), why.clone())),
            _ => None,
        }
    }

    async fn take_turn(&self, roll: &Roll, own: &Own) -> anyhow::Result<()> {
        let Upgrading { store, node, layout, .. } = &*self.upgrading;
        let entry = store.lookup(&TypedKey::Binary(roll.binary).key()).await?;
        let value = match entry {
            Some(entry) => entry.value.here().await?,
            None => return self.refuse(roll, own, "its bytes are not in the store").await,
        };
        let Value::File { path, .. } = value else {
            return self.refuse(roll, own, "it is too small to be a program").await;
        };
        let (directory, expected) = (layout.bin(), roll.binary);
        let checked = tokio::task::spawn_blocking(move || {
            let copy = binaries::install(&path, &directory)?.path;
            let hash = binaries::hash(&copy)?;
            if hash != expected.to_string() {
                return Ok(Err("its copy here is damaged".to_owned()));
            }
            binaries::name(&directory, BinaryRole::Candidate, &copy)?;
            anyhow::Ok(candidate::check(&copy).map(|_| copy))
        });
        let path = match checked.await?? {
            Ok(path) => path,
            Err(why) => return self.refuse(roll, own, &why).await,
        };
        let before = self.upgrading.vitals((self.open_ports)()).await?;
        self.note(roll, own, TrialPhase::Trying, None).await?;
        tracing::info!(%node, binary = %roll.binary, "upgrade.handing_over");
        self.upgrading.hand_over(Testament {
            roll: roll.id.clone(),
            binary: roll.binary,
            path,
            limit_ms: roll.limit_ms,
            before,
        });
        // The node stops its parts, this one too.
        std::future::pending().await
    }

    async fn refuse(&self, roll: &Roll, own: &Own, why: &str) -> anyhow::Result<()> {
        tracing::warn!(why, binary = %roll.binary, "upgrade.refused");
        self.note(roll, own, TrialPhase::Refused, Some(why.to_owned())).await
    }

    async fn note(
        &self,
        roll: &Roll,
        own: &Own,
        phase: TrialPhase,
        why: Option<String>,
    ) -> anyhow::Result<()> {
        let Upgrading { store, node, .. } = &*self.upgrading;
        let key = TypedKey::NodeUpgrade(node.clone()).key();
        let before: Option<NodeUpgrade> = lookup_record(&**store, key).await?;
        let trial = TrialRecord {
            roll: roll.id.clone(),
            binary: roll.binary,
            phase,
            why,
            since: self.clock.now(),
        };
        let record = NodeUpgrade {
            v: RECORD_VERSION,
            binary: own.hash,
            trial: Some(trial),
            unknown: before.map(|before| before.unknown).unwrap_or_default(),
        };
        Ok(write(&**store, node, &record).await?)
    }
}
