//! The agent's shell: one actor per application, the launcher, and what is prepared on disk. This
//! file keeps the actors: it reads the store, hands changed records to them and starts one again
//! that faulted.

pub mod actor;
pub mod builders;
mod claims;
pub mod disk;
pub mod launcher;
pub mod load;
pub mod moving;
pub mod one_off;
pub mod placing;
pub mod plain;
pub mod ports;
pub mod prepare;
pub mod ready;
pub mod registry;
pub mod remains;
mod roster;
pub mod scheduled;
mod specification;
pub mod taking_back;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use agent_core::application::IncarnationId;
use futures_util::FutureExt;
use model::key::BoardKey;
use model::{ApplicationName, ApplicationSpec, Key, NodeId, Prefix, TypedKey};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use self::actor::Letter;
use self::launcher::Launcher;
use self::placing::Placing;
use self::ports::Ports;
use self::prepare::{Preparer, end_all};
use self::registry::Registry;
use runtime::driver::Clock;
use runtime::faults::Faults;
use runtime::supervise;
use shim::spec::Purpose;
use store::{SharedStore, Store, WatchEvent, readable};

/// The maximum number of letters that wait while an actor reads the store; an actor that falls
/// behind is started again, which reads everything.
const LETTERS_MAX: usize = 1024;
/// The beginning of keys that say which applications were destroyed.
const DESTROYED: &str = "cluster::destroyed";
/// The interval between two memory samples: a leak that matters takes longer than that.
const MEMORY_INTERVAL: Duration = Duration::from_secs(2);
const ACTOR_PAUSE_MIN: Duration = Duration::from_millis(100);
/// The maximum pause before an actor starts again: a stalled disk, or a record that trips the
/// machine, is not retried in a hurry.
const ACTOR_PAUSE_MAX: Duration = Duration::from_secs(10);
/// The time after which an actor is taken to have started well: its next pause is short again.
const ACTOR_RAN_WELL: Duration = Duration::from_secs(30);

/// The state that all actors of a node share.
pub struct AgentContext {
    pub store: SharedStore,
    pub node: NodeId,
    /// This node's platform as its record gives it; empty if nothing is known of it.
    pub platform: String,
    pub clock: Clock,
    pub faults: Faults,
    pub launcher: Arc<dyn Launcher>,
    pub preparer: Preparer,
    pub ports: Ports,
    pub registry: Registry,
    /// Scheduled commands that run here.
    pub scheduled: scheduled::RunningCommands,
    /// Commands that people run here.
    pub one_offs: one_off::Sessions,
    /// The placement of slots on nodes; `None` where this node runs everything.
    pub placing: Option<Placing>,
    /// Whether what earlier processes left running is held.
    pub adopted: Arc<AtomicBool>,
    /// Set before actors are told, so that one which starts again meanwhile knows it too.
    pub shutting_down: AtomicBool,
    /// The lock that `ApiContext` holds too while it gives out numbers and ports.
    pub changes: Arc<tokio::sync::Mutex<()>>,
}

impl AgentContext {
    /// Returns whether what earlier processes left running is held.
    pub fn has_adopted(&self) -> bool {
        self.adopted.load(Ordering::Relaxed)
    }

    fn is_shutting_down(&self) -> bool {
        self.shutting_down.load(Ordering::Relaxed)
    }
}

/// Runs until the store stops, or until everything has stopped after `shutdown` became true.
pub async fn run(
    context: Arc<AgentContext>,
    mut shutdown: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    adopt(&context).await?;
    context.adopted.store(true, Ordering::Relaxed);
    let mut watch = context.store.watch(Prefix::all(), None).await?;
    let mut actors = Actors::new(context.clone());
    actors.start_all().await?;
    let following = context.preparer.follow_members();
    tokio::pin!(following);
    let mut memory = tokio::time::interval(MEMORY_INTERVAL);
    memory.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        // `shutdown` may also have been set before anybody listened, while processes were adopted.
        if *shutdown.borrow() && !context.is_shutting_down() {
            actors.shut_down();
        }
        if *shutdown.borrow() && actors.are_gone() {
            context.scheduled.stop_all().await;
            context.one_offs.stop_all().await;
            context.preparer.stop_all().await;
            return Ok(());
        }
        tokio::select! {
            change = watch.next() => match change {
                None => return Ok(()),
                Some(WatchEvent::Resync { .. }) => actors.start_all().await?,
                Some(WatchEvent::Changed { key, .. }) => actors.changed(&key),
            },
            Some(ended) = actors.tasks.join_next(), if !actors.tasks.is_empty() => {
                if let Ok(name) = ended {
                    actors.ended(name).await?;
                }
            }
            _ = memory.tick() => actors.sample_memory().await,
            ended = &mut following => return ended,
            Ok(()) = shutdown.changed(), if !*shutdown.borrow() => {}
        }
    }
}

/// Takes hold of what earlier node processes left running.
async fn adopt(context: &Arc<AgentContext>) -> anyhow::Result<()> {
    context.registry.clear();
    let mut tasks = Vec::new();
    for held in context.launcher.adopt().await? {
        let held: Arc<dyn launcher::Held> = held.into();
        match held.purpose().clone() {
            Purpose::Instance { instance, generation } => {
                context.ports.keep(&*held);
                context.registry.launched(&IncarnationId { instance, generation }, held);
            }
            // Somebody may still be connected to it, or come back.
            Purpose::Task { .. } if held.session().is_some() => one_off::adopt(context, held),
            Purpose::Task { .. } => tasks.push(held),
        }
    }
    // This comes before any actor runs: it would start the same step beside the old one.
    end_all(tasks).await;
    Ok(())
}

struct Actors {
    context: Arc<AgentContext>,
    /// The actors' mailboxes; `None` while an actor that fell behind ends: there are never two of
    /// one application.
    mailboxes: BTreeMap<ApplicationName, Option<mpsc::Sender<Letter>>>,
    tasks: JoinSet<ApplicationName>,
}

impl Actors {
    fn new(context: Arc<AgentContext>) -> Actors {
        Actors { context, mailboxes: BTreeMap::new(), tasks: JoinSet::new() }
    }

    /// Starts an actor for each application that is stored or has something running; those that are
    /// there already read everything again.
    async fn start_all(&mut self) -> anyhow::Result<()> {
        let mut names = Vec::new();
        for prefix in ["app", "instance"] {
            for key in self.context.store.keys(&Prefix::from(prefix.parse::<Key>()?)).await? {
                match TypedKey::parse(&key) {
                    Some(TypedKey::Spec(name)) => names.push(name),
                    Some(TypedKey::Claim(id, node)) if node == self.context.node => {
                        names.push(id.application);
                    }
                    _ => {}
                }
                self.changed(&key);
            }
        }
        for key in self.context.store.keys(&Prefix::from(DESTROYED.parse::<Key>()?)).await? {
            // Something of it may lie here, if this node was away when it ended.
            if let Some(TypedKey::Destroyed(name, _)) = TypedKey::parse(&key)
                && self.context.preparer.has_files_of(&name)
            {
                names.push(name);
            }
            self.tell(&key);
        }
        let held = self.context.registry.all();
        names.extend(held.into_iter().map(|(id, _)| id.instance.application));
        names.sort();
        names.dedup();
        for name in names {
            self.start(name);
        }
        Ok(())
    }

    fn start(&mut self, name: ApplicationName) {
        // While everything is being stopped, only what still runs needs somebody to stop it.
        let needed =
            !self.context.is_shutting_down() || !self.context.registry.of(&name).is_empty();
        if needed && !self.mailboxes.contains_key(&name) {
            self.spawn(name);
        }
    }

    fn spawn(&mut self, name: ApplicationName) {
        let (sender, receiver) = mpsc::channel(LETTERS_MAX);
        self.mailboxes.insert(name.clone(), Some(sender));
        self.tasks.spawn(keep(self.context.clone(), name, receiver));
    }

    /// Hands a changed record to its application's actor.
    fn changed(&mut self, key: &Key) {
        let Some(typed) = TypedKey::parse(key) else { return };
        if matches!(typed, TypedKey::Board(BoardKey::Memory(..) | BoardKey::Suspect(..))) {
            return;
        }
        let Some(name) = typed.application() else { return };
        // Something may be left of one that was destroyed.
        if matches!(typed, TypedKey::Spec(_) | TypedKey::Destroyed(..)) {
            self.start(name.clone());
        }
        self.tell(key);
    }

    fn tell(&mut self, key: &Key) {
        let typed = TypedKey::parse(key);
        if let Some(name) = typed.as_ref().and_then(TypedKey::application) {
            self.send(name, Letter::Changed(key.clone()));
        }
    }

    fn send(&mut self, name: &ApplicationName, letter: Letter) {
        let Some(Some(mailbox)) = self.mailboxes.get(name) else { return };
        if let Err(mpsc::error::TrySendError::Full(_)) = mailbox.try_send(letter) {
            tracing::warn!(application = %name, "agent.mailbox_full");
            // Without its mailbox the actor ends; `ended` starts the next, which reads everything.
            self.mailboxes.insert(name.clone(), None);
        }
    }

    /// Handles the end of an actor: nothing of its application runs here, or it fell behind.
    async fn ended(&mut self, name: ApplicationName) -> anyhow::Result<()> {
        self.mailboxes.remove(&name);
        let spec = TypedKey::Spec(name.clone()).key();
        let wanted = is_wanted(&*self.context.store, &spec).await?;
        let ending = self.context.is_shutting_down();
        if !self.context.registry.of(&name).is_empty() || (wanted && !ending) {
            self.spawn(name);
        } else if !ending {
            self.context.one_offs.stop_of(&name).await;
            let with_files = remains::are_files_gone(&*self.context.store, &name).await?;
            self.context.preparer.remove_application(&name, with_files).await;
        }
        Ok(())
    }

    fn shut_down(&mut self) {
        self.context.shutting_down.store(true, Ordering::Relaxed);
        let names: Vec<ApplicationName> = self.mailboxes.keys().cloned().collect();
        for name in names {
            self.send(&name, Letter::Shutdown);
        }
    }

    fn are_gone(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Samples memory; one look at all processes serves every application.
    async fn sample_memory(&mut self) {
        let held = self.context.registry.all();
        if held.is_empty() {
            return;
        }
        let pids: Vec<_> = held.iter().map(|(id, held)| (id.clone(), held.process().pid)).collect();
        let sampled = runtime::task::spawn_blocking(move || {
            let snapshot = os::observe::Snapshot::take()?;
            let memory = pids.into_iter().filter_map(|(id, pid)| Some((id, snapshot.memory(pid)?)));
            std::io::Result::Ok(memory.collect::<Vec<_>>())
        });
        let memory = match sampled.await {
            Ok(Ok(memory)) => memory,
            Ok(Err(error)) => return tracing::warn!(%error, "agent.memory_unknown"),
            Err(error) => return tracing::error!(%error, "agent.memory_unknown"),
        };
        for (id, memory) in memory {
            let board = BoardKey::Memory(id.instance.clone(), id.generation);
            let text = memory.bytes.to_string();
            self.context.store.set(TypedKey::Board(board).key(), text.into()).await.ok();
            let name = id.instance.application.clone();
            self.send(&name, Letter::Memory { id, bytes: memory.bytes });
        }
    }
}

/// Returns whether an application is wanted that has this specification. One that cannot be read
/// is: what runs goes on.
async fn is_wanted(store: &dyn Store, key: &Key) -> anyhow::Result<bool> {
    let Some(entry) = store.lookup(key).await? else { return Ok(false) };
    let spec: Option<ApplicationSpec> = readable(key, Some(&entry.value));
    Ok(spec.is_none_or(|spec| spec.end.is_none()))
}

/// Runs an actor and contains its faults: they are logged, and it starts again from the records.
async fn keep(
    context: Arc<AgentContext>,
    name: ApplicationName,
    mut letters: mpsc::Receiver<Letter>,
) -> ApplicationName {
    let mut pause = ACTOR_PAUSE_MIN;
    loop {
        let began = Instant::now();
        let run = actor::run(context.clone(), name.clone(), &mut letters);
        match AssertUnwindSafe(run).catch_unwind().await {
            Ok(Ok(())) => return name,
            Ok(Err(error)) => {
                tracing::error!(application = %name, error = format!("{error:#}"), "actor.failed");
            }
            Err(panic) => {
                let panic = supervise::panic_text(&*panic);
                tracing::error!(application = %name, panic, "actor.panicked");
            }
        }
        if began.elapsed() >= ACTOR_RAN_WELL {
            pause = ACTOR_PAUSE_MIN;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(ACTOR_PAUSE_MAX);
    }
}

#[cfg(test)]
mod tests;
