//! The part of a node that keeps its keys and takes the steps of `secret_core::rotation`: at the
//! start as far as it can alone, then whenever something changes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ::store::{SharedStore, Store, WatchEvent, lookup_record};
use anyhow::Context;
use model::record;
use model::secrets::{NodeSecrets, RotationOrder, SealingKeyId, SealingRecord};
use model::upgrade::{NodeUpgrade, TrialPhase};
use model::{Key, NodeId, Prefix, TypedKey};
use os::layout::DataDirectory;
use ring::rand::{SecureRandom, SystemRandom};
use runtime::faults::Faults;
use runtime::members::Members;
use secret_core::rotation::{Next, Picture, Step, Wait};
use secret_core::sealed::{KEY_BYTES, SealingKey};
use tokio::sync::watch;
use zeroize::Zeroizing;

use crate::file::KeyFile;
use crate::handing;
use crate::keys::Keys;
use crate::store::{SealedStore, secrets_of};

/// The interval between two looks while something is waited for.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The interval while everything is settled.
const IDLE_INTERVAL: Duration = Duration::from_secs(60);
/// The most steps of a start, before anything is served: a key, its record, and a few values.
const FIRST_STEPS_MAX: usize = 16;
/// The beginning of the names of the places before each step, where tests hold a node up.
const FAIL_POINTS: &str = "secrets.";

/// All that a node has for its secrets.
pub struct Secrets {
    store: Arc<SealedStore>,
    keys: Arc<Keys>,
    node: NodeId,
    faults: Faults,
    /// The other members; unset if something else keeps the store together.
    members: OnceLock<Arc<dyn Members>>,
    waits: watch::Sender<Option<Next>>,
}

impl Secrets {
    /// Reads the keys of this node, and returns its store with secrets sealed. `cluster` is the id
    /// of the cluster that it belongs to.
    pub async fn open(
        layout: &DataDirectory,
        node: NodeId,
        cluster: String,
        beneath: SharedStore,
        faults: Faults,
    ) -> anyhow::Result<(Arc<Secrets>, SharedStore)> {
        let keys = Arc::new(Keys::open(KeyFile::of(layout, cluster, node.clone()))?);
        let record: Option<SealingRecord> =
            lookup_record(&*beneath, TypedKey::Sealing.key()).await?;
        keys.seal_with(record.and_then(|record| record.seals));
        let store = Arc::new(SealedStore::new(beneath, keys.clone()));
        let (members, waits) = (OnceLock::new(), watch::Sender::new(None));
        let secrets = Secrets { store: store.clone(), keys, node, faults, members, waits };
        Ok((Arc::new(secrets), store))
    }

    /// Returns what the last look found that is to be done or waited for; `None` before the first.
    pub fn standing(&self) -> Option<Next> {
        self.waits.borrow().clone()
    }

    /// Returns how many secrets of this node are sealed with which key.
    pub async fn picture(&self) -> anyhow::Result<Picture> {
        let beneath = self.beneath();
        let found = secrets_of(beneath).await?;
        let mut values = BTreeMap::new();
        for (_, of) in &found.sealed {
            *values.entry(*of).or_default() += 1;
        }
        let order: Option<RotationOrder> =
            lookup_record(beneath, TypedKey::RotationOrder.key()).await?;
        let mut members = BTreeMap::new();
        let roster: Prefix = "cluster::nodes".parse().context("a well-formed prefix")?;
        for key in beneath.keys(&roster).await? {
            if let Some(TypedKey::Member(node)) = TypedKey::parse(&key) {
                let said = TypedKey::NodeSecrets(node.clone()).key();
                let said: Option<NodeSecrets> = lookup_record(beneath, said).await?;
                members.insert(node, said);
            }
        }
        let alive = self.members.get().map(|members| members.alive().borrow().clone());
        let mut alive = alive.unwrap_or_default();
        alive.insert(self.node.clone());
        Ok(Picture {
            own: self.node.clone(),
            held: self.keys.ring().ids(),
            record: lookup_record(beneath, TypedKey::Sealing.key()).await?,
            asked: order.map(|order| order.asked_at),
            members,
            alive,
            values,
            unseen: found.unseen,
        })
    }

    fn beneath(&self) -> &dyn Store {
        self.store.beneath().map_or(&*self.store as &dyn Store, |beneath| &**beneath)
    }

    /// Takes the steps of a start, so that a new node seals its first secret. What fails here, as
    /// on a full disk, is tried again later.
    pub async fn begin(&self) {
        for _ in 0..FIRST_STEPS_MAX {
            let done = match self.look().await {
                Ok(Next::Do(Step::Fetch { .. }) | Next::Wait(_) | Next::Settled) => return,
                Ok(Next::Do(step)) => self.take(step).await,
                Err(error) => Err(error),
            };
            if let Err(error) = done {
                tracing::warn!(error = format!("{error:#}"), "secrets.step_failed");
                return;
            }
        }
    }

    /// Takes the steps there are, for as long as the node runs.
    pub async fn run(self: Arc<Self>) -> anyhow::Result<()> {
        let members = self.members.get();
        let beneath = self.beneath();
        let mut cluster = beneath.watch("cluster".parse().context("a prefix")?, None).await?;
        let mut nodes = beneath.watch("node".parse().context("a prefix")?, None).await?;
        let mut alive = members.map(|members| members.alive());
        loop {
            let next = self.look().await?;
            let pause = match next {
                Next::Do(step) => {
                    let done = self.take(step).await;
                    let Err(error) = done else { continue };
                    tracing::warn!(error = format!("{error:#}"), "secrets.step_failed");
                    LOOK_INTERVAL
                }
                Next::Wait(_) => LOOK_INTERVAL,
                Next::Settled => IDLE_INTERVAL,
            };
            let heard = async {
                tokio::select! {
                    heard = concerning(&mut cluster) => heard,
                    heard = concerning(&mut nodes) => heard,
                    () = changed(&mut alive) => true,
                }
            };
            if let Ok(false) = tokio::time::timeout(pause, heard).await {
                return Ok(());
            }
        }
    }

    /// Hands this node's keys to members that ask, and asks them from now on.
    pub fn connect(&self, members: Arc<dyn Members>) {
        handing::serve(&*members, self.store.clone(), self.keys.clone());
        self.members.set(members).ok();
    }

    /// Gives up what no key opens, and the key that nobody has any more: removes those secrets and
    /// returns their keys of the store. The next step makes another key. Refused while a member of
    /// the roster says that it has one of those keys, alive or not.
    pub async fn give_up_lost(&self) -> anyhow::Result<Vec<Key>> {
        let picture = self.picture().await?;
        let is_lost = |id: &SealingKeyId| !picture.held.contains(id);
        let named = picture.record.as_ref().map(|record| [record.seals, record.next]);
        let wanted = picture.values.keys().copied().chain(named.unwrap_or_default());
        for id in wanted.flatten().filter(is_lost) {
            let others = picture.members.iter().filter(|(node, _)| **node != self.node);
            let mut holders = others.filter_map(|(node, said)| Some((node, said.as_ref()?)));
            if let Some((node, _)) = holders.find(|(_, said)| said.holds.contains(&id)) {
                anyhow::bail!(
                    "{node} has the key {id}: start it, or remove it first (`cortex nodes remove \
                     {node}`)"
                );
            }
        }
        let mut lost = Vec::new();
        for (entry, of) in secrets_of(self.beneath()).await?.sealed {
            if of.as_ref().is_some_and(is_lost) {
                self.beneath().delete(entry.key.clone()).await?;
                lost.push(entry.key);
            }
        }
        let named = picture.record.map(|record| (record.seals, record.next));
        let (seals, next) = named.unwrap_or_default();
        if seals.as_ref().is_some_and(is_lost) || next.as_ref().is_some_and(is_lost) {
            self.beneath().delete(TypedKey::Sealing.key()).await?;
        }
        Ok(lost)
    }

    /// Returns the file with this node's keys.
    pub fn file(&self) -> &Path {
        self.keys.file().path()
    }

    async fn look(&self) -> anyhow::Result<Next> {
        let picture = self.picture().await?;
        self.keys.seal_with(picture.record.as_ref().and_then(|record| record.seals));
        let next = self.hold_back(picture.next()).await?;
        let before = self.waits.send_replace(Some(next.clone()));
        if before.as_ref() != Some(&next)
            && let Next::Wait(wait) = &next
        {
            match wait {
                Wait::NoHolder(key) => {
                    let file = self.keys.file().path().display();
                    tracing::error!(
                        %key, %file,
                        "secrets.key_missing: put a copy of the file back, or start a member that \
                         has it"
                    );
                }
                wait => tracing::info!(?wait, "secrets.waits"),
            }
        }
        Ok(next)
    }

    /// Says nothing of sealed values while another binary is on trial: the one from before, which
    /// may come back, could not read them.
    async fn hold_back(&self, next: Next) -> anyhow::Result<Next> {
        let Next::Do(Step::Tell(said)) = &next else { return Ok(next) };
        let key = TypedKey::NodeUpgrade(self.node.clone()).key();
        let upgrade: Option<NodeUpgrade> = lookup_record(self.beneath(), key).await?;
        let is_trial = upgrade
            .and_then(|upgrade| upgrade.trial)
            .is_some_and(|trial| matches!(trial.phase, TrialPhase::Trying));
        let is_first = said.holds.is_empty();
        Ok(match is_trial && is_first {
            true => Next::Wait(Wait::Older(vec![self.node.clone()])),
            false => next,
        })
    }

    async fn take(&self, step: Step) -> anyhow::Result<()> {
        let name = name_of(&step);
        tracing::info!(step = name, "secrets.step");
        self.faults.check_async(&format!("{FAIL_POINTS}{name}")).await?;
        match step {
            Step::Fetch { key, from } => {
                let members = self.members.get().context("there are no other nodes")?;
                let mut failed = None;
                for node in &from {
                    match handing::ask(&**members, node, key).await {
                        Ok(got) => return self.keys.keep(got),
                        Err(error) => failed = Some(error.context(format!("node {node}"))),
                    }
                }
                return Err(failed.context("nobody was asked")?);
            }
            Step::Tell(said) => {
                let key = TypedKey::NodeSecrets(self.node.clone()).key();
                self.write(key, record::encode(&said)).await?;
            }
            Step::Make(mut sealing) => {
                let mut bytes = Zeroizing::new([0; KEY_BYTES]);
                let filled = SystemRandom::new().fill(&mut *bytes);
                filled.ok().context("the kernel gave no randomness")?;
                let key = SealingKey::new(bytes);
                sealing.next = Some(key.id());
                self.keys.keep(key)?;
                self.faults.check_async(&format!("{FAIL_POINTS}made")).await?;
                self.write(TypedKey::Sealing.key(), record::encode(&sealing)).await?;
            }
            Step::Record(sealing) => {
                self.write(TypedKey::Sealing.key(), record::encode(&sealing)).await?;
            }
            Step::Reseal(from) => {
                let count = self.store.reseal(from).await?;
                tracing::info!(count, "secrets.resealed");
                // All that could not be opened would be tried again at once.
                anyhow::ensure!(count > 0, "no secret could be sealed anew");
            }
            Step::Drop(key) => self.keys.forget(&key)?,
        }
        Ok(())
    }

    async fn write(&self, key: Key, value: Vec<u8>) -> anyhow::Result<()> {
        self.beneath().set(key, value.into()).await?;
        Ok(())
    }
}

fn name_of(step: &Step) -> &'static str {
    match step {
        Step::Fetch { .. } => "fetch",
        Step::Tell(_) => "tell",
        Step::Make(_) => "make",
        Step::Record(_) => "record",
        Step::Reseal(_) => "reseal",
        Step::Drop(_) => "drop",
    }
}

/// Waits for a change that may ask for a step; returns `false` when the store has stopped.
async fn concerning(watch: &mut ::store::Watch) -> bool {
    loop {
        match watch.next().await {
            None => return false,
            Some(WatchEvent::Resync { .. }) => return true,
            Some(WatchEvent::Changed { key, .. }) => {
                let concerns = matches!(
                    TypedKey::parse(&key),
                    Some(
                        TypedKey::Sealing
                            | TypedKey::RotationOrder
                            | TypedKey::NodeSecrets(_)
                            | TypedKey::NodeUpgrade(_)
                            | TypedKey::Member(_)
                    )
                );
                if concerns {
                    return true;
                }
            }
        }
    }
}

async fn changed(alive: &mut Option<watch::Receiver<std::collections::BTreeSet<NodeId>>>) {
    if let Some(alive) = alive
        && alive.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}
