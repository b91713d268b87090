//! One application's actor: feeds the machine with records and reports, and performs its effects.
//! Everything slow runs in tasks of its own and comes back as an event.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_core::application::Application;
use agent_core::application::{Adopted, Effect, Event, Exit, IncarnationId, merge};
use anyhow::bail;
use model::key::BoardKey;
use model::probe::Verdict;
use model::{
    ApplicationName, BuildId, Claim, Incarnation, InstanceState, Key, Prefix, ProcessType, Release,
    TypedKey,
};
use model::{key, record};
use serde::de::DeserializeOwned;
use tokio::sync::{Mutex, mpsc, watch};

use super::launcher::Held;
use super::placing::{Assignments, Placing};
use super::ready::{Missing, Readiness, ReadyCriteria, await_healthy};
use super::registry::StopOutcome;
use super::{AgentContext, builders, claims, remains, taking_back};
use runtime::driver::{Shell, drive};
use shim::spec::Purpose;
use store::{StoreError, Value, readable};

/// The maximum number of events that wait while a claim is being written; far more than an
/// application has instances.
const EVENTS_MAX: usize = 4096;

/// The pause before unwritten claims are tried again: somebody has to free space first.
const WRITE_AGAIN: Duration = Duration::from_secs(5);
/// The interval at which launches under way are polled for; there are some only after a fault.
const SETTLE_POLL: Duration = Duration::from_millis(20);

/// A message from the supervisor of actors to one of them.
#[derive(Debug)]
pub enum Letter {
    /// A record changed and is to be read again.
    Changed(Key),
    Memory {
        id: IncarnationId,
        bytes: u64,
    },
    Shutdown,
}

/// Runs until nothing of the application runs here any more and nothing is wanted.
pub async fn run(
    context: Arc<AgentContext>,
    name: ApplicationName,
    letters: &mut mpsc::Receiver<Letter>,
) -> anyhow::Result<()> {
    let (events, mut inbox) = mpsc::channel(EVENTS_MAX);
    let (all_stopped, mut has_stopped) = watch::channel(false);
    let mut machine = Application::new(context.node.clone(), name.clone());
    let mut shell = ActorShell {
        context: context.clone(),
        name: name.clone(),
        events: events.clone(),
        all_stopped,
        unwritten: Arc::default(),
    };
    let unwritten = shell.unwritten.clone();
    let fail_point = format!("application.{name}");
    let feed = async {
        // An actor that faulted left them; the launcher limits how long. What they start must be
        // known before anything is decided, or nobody would ever stop it.
        while context.registry.is_launching(&name) {
            tokio::time::sleep(SETTLE_POLL).await;
        }
        // Nothing is decided before it is known what is to run here.
        let mut placed = context.placing.as_ref().map(Placing::decided);
        if let Some(placed) = &mut placed {
            let decided = placed.wait_for(Option::is_some).await?.clone();
            tell_places(&name, decided, &events).await?;
        }
        read_all(&context, &name, &events).await?;
        for (id, held) in context.registry.of(&name) {
            report_exit(&held, id, &events);
        }
        if context.is_shutting_down() {
            events.send(Event::Shutdown).await?;
        }
        loop {
            let letter = tokio::select! {
                letter = letters.recv() => letter,
                Ok(()) = moved(placed.as_mut()) => {
                    let decided = placed.as_mut().and_then(|p| p.borrow_and_update().clone());
                    tell_places(&name, decided, &events).await?;
                    continue;
                }
            };
            let Some(letter) = letter else { break };
            context.faults.check_async(&fail_point).await?;
            let event = match letter {
                Letter::Changed(key) => read_one(&context, &key).await?,
                Letter::Memory { id, bytes } => Some(Event::Memory { id, bytes }),
                Letter::Shutdown => Some(Event::Shutdown),
            };
            if let Some(event) = event {
                events.send(event).await?;
            }
        }
        anyhow::Ok(())
    };
    tokio::select! {
        result = feed => result,
        result = drive(&mut machine, &mut shell, &mut inbox, context.clock) => result,
        _ = has_stopped.wait_for(|stopped| *stopped) => Ok(()),
        () = write_again(&context, &unwritten) => Ok(()),
    }
}

/// Resolves when placement has decided anew; never resolves if nothing is placed on this node.
async fn moved(placed: Option<&mut watch::Receiver<Option<Arc<Assignments>>>>) -> Result<(), ()> {
    match placed {
        Some(placed) => placed.changed().await.map_err(drop),
        None => std::future::pending().await,
    }
}

/// Sends all that placement says of one application; sending the same again changes nothing.
async fn tell_places(
    name: &ApplicationName,
    decided: Option<Arc<Assignments>>,
    events: &mpsc::Sender<Event>,
) -> anyhow::Result<()> {
    let Some(decided) = decided else { return Ok(()) };
    events.send(Event::Live(decided.live.clone())).await?;
    let places = decided.places.get(name).cloned().unwrap_or_default();
    events.send(Event::Places(places)).await?;
    Ok(())
}

/// Sends everything that is stored about the application, then what runs.
async fn read_all(
    context: &AgentContext,
    name: &ApplicationName,
    events: &mpsc::Sender<Event>,
) -> anyhow::Result<()> {
    let probes: Key = format!("probe::{}::{name}", context.node).parse()?;
    let drained: Key = format!("local::drained::{name}").parse()?;
    let adopted = context.registry.of(name).into_iter().map(|(id, held)| Adopted {
        id,
        process: held.process().clone(),
        port: held.port(),
        ports: held.ports().clone(),
        exit: held.exit().borrow().clone(),
    });
    let adopted = Event::Adopted(adopted.collect());
    for prefix in [
        // What is stored of one that was destroyed counts for nothing from the beginning.
        key::destroyed_prefix(name),
        key::application_prefix(name),
        key::instances_prefix(name),
        Prefix::from(probes),
        Prefix::from(drained),
    ] {
        for entry in context.store.prefix(&prefix).await? {
            let claim = claim_of(context, &entry.key, &entry.value);
            let event = claim.or_else(|| event_of(context, &entry.key, Some(&entry.value)));
            if event.is_none()
                && matches!(TypedKey::parse(&entry.key), Some(TypedKey::Spec(_)))
                && !context.is_shutting_down()
            {
                // If it were treated as absent, everything would be stopped.
                bail!("{} cannot be read: write it anew, or delete it", entry.key);
            }
            if let Some(event) = event {
                events.send(event).await?;
            }
        }
    }
    for key in context.store.keys(&key::unkept_prefix(Some(name))).await? {
        if let Some(event) = read_one(context, &key).await? {
            events.send(event).await?;
        }
    }
    events.send(adopted).await?;
    Ok(())
}

async fn read_one(context: &AgentContext, key: &Key) -> anyhow::Result<Option<Event>> {
    let typed = TypedKey::parse(key);
    let claim = typed.as_ref().and_then(claims::changed_by);
    if let Some((instance, node)) = claim.filter(|(_, node)| **node != context.node) {
        let (at, value) = claims::newest(&*context.store, instance, node).await?;
        let claim = present::<Claim>(&at, value.as_ref());
        return Ok(claim.map(|claim| Event::Other(instance.clone(), node.clone(), claim)));
    }
    let entry = context.store.lookup(key).await?;
    Ok(event_of(context, key, entry.as_ref().map(|entry| &entry.value)))
}

fn claim_of(context: &AgentContext, key: &Key, value: &Value) -> Option<Event> {
    match TypedKey::parse(key) {
        Some(TypedKey::Claim(instance, node)) if node == context.node => {
            Some(Event::Claim(instance, readable::<Claim>(key, Some(value))?))
        }
        _ => None,
    }
}

fn event_of(context: &AgentContext, key: &Key, value: Option<&Value>) -> Option<Event> {
    match TypedKey::parse(key)? {
        TypedKey::Spec(_) => Some(Event::Spec(present(key, value)?)),
        TypedKey::Destroyed(_, created_at) => {
            Some(Event::Destroyed { created_at, destroyed: value.is_some() })
        }
        TypedKey::Release(_, id) => Some(Event::Release(id, present(key, value)?)),
        TypedKey::Outcome(_, id) => Some(Event::Outcome(id, present(key, value)?)),
        TypedKey::Rollout(_) => Some(Event::Rollout(present(key, value)?)),
        TypedKey::Holder(_) => Some(Event::Holder(present(key, value)?)),
        TypedKey::Artefact(_, build, builder, platform) => {
            let fits = value.map(|_| builders::are_alike(&platform, &context.platform));
            Some(Event::Artefact { build, builder, fits })
        }
        TypedKey::Claim(instance, node) if node != context.node => {
            Some(Event::Other(instance, node, present::<Claim>(key, value)?))
        }
        TypedKey::Probe(node, instance) if node == context.node => {
            Some(Event::Verdict(instance, present::<Verdict>(key, value)?))
        }
        TypedKey::Board(BoardKey::Drained(instance, generation)) if value.is_some() => {
            Some(Event::Drained { id: IncarnationId { instance, generation } })
        }
        _ => None,
    }
}

/// Returns `Some(None)` when the record was deleted, and `None` when it cannot be read: what was
/// known of it before goes on, or one bad value would stop an application.
fn present<T: DeserializeOwned>(key: &Key, value: Option<&Value>) -> Option<Option<T>> {
    match value {
        Some(_) => readable(key, value).map(Some),
        None => Some(None),
    }
}

/// Sends `Exited` once, as soon as the process has ended.
fn report_exit(held: &Arc<dyn Held>, id: IncarnationId, events: &mpsc::Sender<Event>) {
    let (mut exit, events) = (held.exit(), events.clone());
    runtime::task::spawn(async move {
        let Ok(exit) = exit.wait_for(Option::is_some).await.map(|exit| exit.clone()) else {
            return;
        };
        if let Some(exit) = exit {
            events.send(Event::Exited { id, exit }).await.ok();
        }
    });
}

struct ActorShell {
    context: Arc<AgentContext>,
    name: ApplicationName,
    events: mpsc::Sender<Event>,
    all_stopped: watch::Sender<bool>,
    unwritten: Arc<Unwritten>,
}

/// The claims that give up their slots and that the store did not take, at most one per slot.
type Unwritten = Mutex<BTreeMap<Key, Option<Vec<u8>>>>;

impl ActorShell {
    /// Runs work beside the machine; what it returns is sent as an event.
    fn spawn(&self, work: impl Future<Output = Option<Event>> + Send + 'static) {
        let events = self.events.clone();
        runtime::task::spawn(async move {
            if let Some(event) = work.await {
                events.send(event).await.ok();
            }
        });
    }

    fn start(&self, id: IncarnationId, release: Release, process: ProcessType) {
        if !self.context.registry.launching(&id) {
            return;
        }
        let (context, events) = (self.context.clone(), self.events.clone());
        self.spawn(async move {
            match launch(&context, &id, &release, &process).await {
                Ok(held) => {
                    let started = Event::Started {
                        id: id.clone(),
                        process: held.process().clone(),
                        port: held.port(),
                        ports: held.ports().clone(),
                    };
                    let stop = context.registry.launched(&id, held.clone());
                    events.send(started).await.ok()?;
                    report_exit(&held, id, &events);
                    if let Some(grace) = stop {
                        stop_held(&held, grace).await;
                    }
                    None
                }
                Err(error) => {
                    context.registry.remove(&id);
                    Some(Event::StartFailed { id, why: format!("{error:#}") })
                }
            }
        });
    }

    /// Removes old builds. A build that somebody's one-off command uses goes with a later call.
    fn prune_builds(&self, keep: Vec<BuildId>, needed: usize) {
        self.context.preparer.keep_builds(&self.name, &keep);
        let (context, name) = (self.context.clone(), self.name.clone());
        let open = context.one_offs.builds_of(&name);
        let needed = needed + open.len();
        let keep = open.into_iter().chain(keep).collect();
        runtime::task::spawn(async move {
            context.preparer.prune_builds(&name, keep, needed).await;
        });
    }

    fn set_fit(&self, fit: bool) {
        if let Some(placing) = &self.context.placing {
            placing.set_fit(self.name.clone(), fit);
        }
    }

    fn forget(&self, id: &IncarnationId) {
        let Some(held) = self.context.registry.remove(id) else { return };
        self.context.ports.release(held.port(), held.ports());
        let (store, id) = (self.context.store.clone(), id.clone());
        runtime::task::spawn(async move {
            if let Err(error) = held.forget().await {
                tracing::warn!(instance = %id.instance, %error, "agent.forget_failed");
            }
            let IncarnationId { instance, generation } = id;
            for board in [
                BoardKey::Drained(instance.clone(), generation),
                BoardKey::Memory(instance.clone(), generation),
                BoardKey::Suspect(instance, generation),
            ] {
                store.delete(TypedKey::Board(board).key()).await.ok();
            }
        });
    }

    /// Returns once the record is durable. While everything is being stopped, a full disk must not
    /// keep processes running: the next adoption finds out what was not written.
    async fn write(&self, key: TypedKey, record: Option<Vec<u8>>) -> anyhow::Result<()> {
        let key = key.key();
        match put(&self.context, &key, record).await {
            Err(error) if self.context.is_shutting_down() => {
                tracing::warn!(%key, %error, "agent.not_written");
                Ok(())
            }
            written => Ok(written?),
        }
    }

    /// Writes a claim. An instance that is given up is stopped even where that cannot be written:
    /// another node may run it by now. The claim is written as soon as it can be.
    async fn write_claim(&self, key: TypedKey, claim: Option<&Claim>) -> anyhow::Result<()> {
        let record = claim.map(record::encode);
        let mut unwritten = self.unwritten.lock().await;
        match self.write(key.clone(), record.clone()).await {
            Ok(()) => drop(unwritten.remove(&key.key())),
            Err(error) if gives_up(claim) => {
                let key = key.key();
                tracing::error!(%key, error = format!("{error:#}"), "agent.not_written");
                unwritten.insert(key, record);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

fn gives_up(claim: Option<&Claim>) -> bool {
    let starts =
        |one: &Incarnation| matches!(one.state, InstanceState::Starting | InstanceState::Ready);
    !claim.is_some_and(|claim| claim.incarnations.iter().any(starts))
}

async fn put(context: &AgentContext, key: &Key, record: Option<Vec<u8>>) -> Result<(), StoreError> {
    match record {
        Some(record) => context.store.set(key.clone(), record.into()).await.map(drop),
        None => context.store.delete(key.clone()).await.map(drop),
    }
}

/// Retries until the actor ends; the next actor writes what runs here.
async fn write_again(context: &AgentContext, unwritten: &Unwritten) {
    loop {
        tokio::time::sleep(WRITE_AGAIN).await;
        let mut unwritten = unwritten.lock().await;
        while let Some(entry) = unwritten.first_entry() {
            if put(context, entry.key(), entry.get().clone()).await.is_err() {
                break;
            }
            tracing::info!(key = %entry.key(), "agent.written");
            entry.remove();
        }
    }
}

async fn launch(
    context: &AgentContext,
    id: &IncarnationId,
    release: &Release,
    process: &ProcessType,
) -> anyhow::Result<Arc<dyn Held>> {
    let taken = context.ports.take_for(&release.recipe.ports, process)?;
    let spec = context.preparer.launch_spec(release, process, id, &taken).await?;
    debug_assert!(matches!(spec.purpose, Purpose::Instance { .. }));
    let held = context.launcher.launch(spec).await?;
    taken.keep();
    Ok(held.into())
}

async fn watch_until_healthy(
    events: mpsc::Sender<Event>,
    id: IncarnationId,
    held: Arc<dyn Held>,
    awaited: ReadyCriteria,
) {
    let host = awaited.health.host(&id.instance.application);
    let report = |Missing { detail, mistake }| {
        events.try_send(Event::NotYetHealthy { id: id.clone(), detail, mistake }).ok();
    };
    match await_healthy(held.process(), &awaited, &host, report).await {
        Ok(Readiness::Healthy { warning, remark }) => {
            events.send(Event::Healthy { id, warning, remark }).await.ok();
        }
        Ok(Readiness::Hopeless { detail, mistake }) => {
            events.send(Event::Hopeless { id, detail, mistake }).await.ok();
        }
        // `Exited` tells the rest.
        Ok(Readiness::Gone) => {}
        Err(error) => {
            let detail = format!("its sockets cannot be looked at: {error}");
            events.send(Event::NotYetHealthy { id, detail, mistake: None }).await.ok();
        }
    }
}

async fn stop_held(held: &Arc<dyn Held>, grace: Duration) {
    if let Err(error) = held.stop(grace).await {
        tracing::warn!(process = held.purpose().id(), %error, "agent.stop_failed");
    }
}

impl Shell for ActorShell {
    type Effect = Effect;

    async fn perform(&mut self, effect: Effect) -> anyhow::Result<()> {
        let (context, name) = (self.context.clone(), self.name.clone());
        match effect {
            Effect::Build { release } => self.spawn(async move {
                let result = context.preparer.build(&name, &release).await;
                Some(Event::Built { release: release.id, result })
            }),
            Effect::Fetch { release, builder } => self.spawn(async move {
                let (preparer, platform) = (&context.preparer, &context.platform);
                let result = preparer.fetch(&name, &release, &builder, platform).await;
                let result = result.map_err(|error| format!("{error:#}"));
                Some(Event::Fetched { release: release.id, result })
            }),
            Effect::Share { release } => self.spawn(async move {
                let result = context.preparer.share(&name, &release, &context.platform).await;
                let result = result.map_err(|error| format!("{error:#}"));
                Some(Event::Shared { release: release.id, result })
            }),
            Effect::FindBuilders { release } => self.spawn(async move {
                let (store, platform) = (&*context.store, &context.platform);
                let found = builders::candidates(store, platform, &name, &release).await;
                let found = found.inspect_err(|error| {
                    tracing::warn!(application = %name, %error, "agent.no_candidates");
                });
                Some(Event::Builders { release, candidates: found.unwrap_or_default() })
            }),
            Effect::RunReleaseSteps { release } => self.spawn(async move {
                let result = context.preparer.release_steps(&name, &release).await;
                Some(Event::Released { release: release.id, result })
            }),
            Effect::Start { id, release, process } => self.start(id, release, process),
            Effect::AwaitHealthy { id, port, ports, health, protocol } => {
                if let Some(held) = context.registry.get(&id) {
                    runtime::task::spawn(watch_until_healthy(
                        self.events.clone(),
                        id,
                        held,
                        ReadyCriteria { port, ports, health, protocol },
                    ));
                }
            }
            Effect::Stop { id, grace } => match context.registry.stop(&id, grace) {
                StopOutcome::Now(held) => {
                    runtime::task::spawn(async move { stop_held(&held, grace).await });
                }
                StopOutcome::OnceLaunched => {}
                StopOutcome::Unknown => self.spawn(async move {
                    let how = "its launch was lost".to_string();
                    let exit = Exit { how, ..Exit::default() };
                    Some(Event::Exited { id, exit })
                }),
            },
            Effect::Forget { id } => self.forget(&id),
            Effect::WriteClaim { instance, claim } => {
                let key = TypedKey::Claim(instance, context.node.clone());
                self.write_claim(key, claim.as_ref()).await?;
            }
            Effect::WriteRollout(rollout) => {
                let rollout_key = TypedKey::Rollout(name);
                let key = rollout_key.key();
                let stored = context.store.lookup(&key).await?;
                let stored = readable(&key, stored.as_ref().map(|entry| &entry.value));
                let merged = record::encode(&merge(stored, rollout));
                self.write(rollout_key, Some(merged)).await?;
            }
            Effect::WriteHolder(holder) => {
                self.write(TypedKey::Holder(name), Some(record::encode(&holder))).await?;
            }
            Effect::WriteSpec(spec) => {
                runtime::task::spawn(remains::write_again(context, name, spec));
            }
            Effect::ClearRemains => drop(runtime::task::spawn(remains::clear(context, name))),
            Effect::WriteOutcome { release: id, outcome } => {
                let record = outcome.as_ref().map(record::encode);
                self.write(TypedKey::Outcome(name, id), record).await?;
            }
            Effect::TakeBack { from, to } => {
                runtime::task::spawn(taking_back::take_back(context, name, from, to));
            }
            Effect::Unfit => self.set_fit(false),
            Effect::Fit => self.set_fit(true),
            Effect::Note(text) => {
                tracing::info!(application = %self.name, text, "agent.note");
                context.preparer.note(&self.name, &text);
            }
            Effect::NameWritten { old, new } => {
                runtime::task::spawn(async move {
                    context.preparer.name_written(&name, old, new).await;
                });
            }
            Effect::PruneBuilds { keep, needed } => self.prune_builds(keep, needed),
            Effect::AllStopped => drop(self.all_stopped.send(true)),
        }
        Ok(())
    }
}
