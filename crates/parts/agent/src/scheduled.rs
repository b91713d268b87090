//! Scheduled commands on this node: looks twice a minute at what is due, runs what is this node's,
//! and keeps the record of each last run. Decides nothing itself; started with the node's other
//! parts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use agent_core::application::Exit;
use anyhow::Context;
use model::application::Holder;
use model::cron::{CronRecipe, CronRun};
use model::node::NodeInfo;
use model::record::{self, RECORD_VERSION, Unknown};
use model::{ApplicationName, Key, NodeId, Prefix, Release, Rollout, Timestamp, TypedKey};
use recipe_core::cron::{CronEntry, Decision, TimeZone, decide};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::launcher::Held;
use super::specification::mark_of;
use super::{AgentContext, is_wanted};
use store::lookup_record;

/// The directory where systems keep their time zones.
const ZONES: &str = "/usr/share/zoneinfo";
/// The maximum size of a time zone's file in bytes; the largest one there has 4 KB.
const ZONE_BYTES_MAX: u64 = 64 << 10;
/// The interval between two looks in milliseconds, with one right after each minute begins: times
/// are to the minute, and the next look takes over a run whose node is lost.
const LOOK_MS: u64 = 30_000;
/// The maximum number of failures that are not reported again; beyond it, each is reported once
/// more.
const TOLD_MAX: usize = 256;
/// The grace when everything is stopped, or the application is gone.
const GRACE: Duration = Duration::from_secs(5);

type Id = (ApplicationName, String);

/// The commands that run here now.
#[derive(Default)]
pub struct RunningCommands {
    /// The processes; `None` while one is being prepared.
    runs: Mutex<BTreeMap<Id, Option<Arc<dyn Held>>>>,
}

impl RunningCommands {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Id, Option<Arc<dyn Held>>>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops all commands; returns when that is under way, as shims see to the rest.
    pub async fn stop_all(&self) {
        let held: Vec<Arc<dyn Held>> = self.lock().values().flatten().cloned().collect();
        stop(held).await;
    }

    async fn stop_unless(&self, names: &BTreeSet<ApplicationName>) {
        let gone = |id: &Id| !names.contains(&id.0);
        let runs = self.lock().clone().into_iter().filter(|(id, _)| gone(id));
        stop(runs.filter_map(|(_, held)| held).collect()).await;
    }
}

async fn stop(held: Vec<Arc<dyn Held>>) {
    for one in held {
        if let Err(error) = one.stop(GRACE).await {
            tracing::warn!(error = format!("{error:#}"), "cron.not_stopped");
        }
    }
}

/// Runs for as long as the node does.
pub async fn run(
    context: Arc<AgentContext>,
    stopping: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let mut told = BTreeSet::new();
    loop {
        let into = context.clock.now().0 % LOOK_MS;
        tokio::time::sleep(Duration::from_millis(LOOK_MS - into)).await;
        if !*stopping.borrow() {
            look(&context, &mut told).await?;
        }
    }
}

async fn look(context: &Arc<AgentContext>, told: &mut BTreeSet<String>) -> anyhow::Result<()> {
    let Some(placing) = &context.placing else { return Ok(()) };
    let decided = placing.decided().borrow().clone();
    let Some(decided) = decided else { return Ok(()) };
    let drained = drained(context).await?;
    let mut names = BTreeSet::new();
    for key in context.store.keys(&Prefix::from("app".parse::<Key>()?)).await? {
        if let Some(TypedKey::Spec(name)) = TypedKey::parse(&key)
            && is_wanted(&*context.store, &key).await?
        {
            names.insert(name);
        }
    }
    context.scheduled.stop_unless(&names).await;
    for name in names {
        let Some(release) = serving(context, &name).await? else { continue };
        if release.recipe.cron.is_empty() {
            continue;
        }
        let able = able(context, &name, &release, &decided.live, &drained).await?;
        for recipe in &release.recipe.cron {
            let due = due(context, &name, &release, recipe, &able, &decided.live).await;
            match due {
                Ok(Decision::Nothing) => {}
                Ok(Decision::Run { due, attempt }) => {
                    start(context, &name, &release, recipe, due, attempt);
                }
                Err(error) => {
                    let said = format!("cron.{} cannot run: {error:#}", recipe.name);
                    // It is reported once, not twice a minute.
                    if told.len() >= TOLD_MAX {
                        told.clear();
                    }
                    if told.insert(format!("{name} {} {said}", release.id)) {
                        context.preparer.note(&name, &said);
                    }
                }
            }
        }
    }
    Ok(())
}

async fn read<T: DeserializeOwned>(
    context: &AgentContext,
    key: TypedKey,
) -> anyhow::Result<Option<T>> {
    lookup_record(&*context.store, key.key()).await
}

async fn drained(context: &AgentContext) -> anyhow::Result<BTreeSet<NodeId>> {
    let keys = context.store.keys(&Prefix::from("cluster::drained".parse::<Key>()?)).await?;
    let node = |key: &Key| match TypedKey::parse(key) {
        Some(TypedKey::Drained(node)) => Some(node),
        _ => None,
    };
    Ok(keys.iter().filter_map(node).collect())
}

async fn serving(
    context: &AgentContext,
    name: &ApplicationName,
) -> anyhow::Result<Option<Release>> {
    let rollout: Option<Rollout> = read(context, TypedKey::Rollout(name.clone())).await?;
    match rollout.and_then(|rollout| rollout.serving) {
        Some(id) => read(context, TypedKey::Release(name.clone(), id)).await,
        None => Ok(None),
    }
}

/// Returns the nodes where it may run: the one with its files if it has any, else those that live,
/// can build its wall and are not drained.
async fn able(
    context: &AgentContext,
    name: &ApplicationName,
    release: &Release,
    live: &BTreeSet<NodeId>,
    drained: &BTreeSet<NodeId>,
) -> anyhow::Result<Vec<NodeId>> {
    if release.recipe.is_tied() {
        let holder: Option<Holder> = read(context, TypedKey::Holder(name.clone())).await?;
        let application_created_at = release.settings.application_created_at;
        let own =
            |holder: &Holder| application_created_at.is_none_or(|created| holder.is_of(created));
        let holder = holder.filter(own);
        if let Some(holder) = holder {
            return Ok(live.get(&holder.node).cloned().into_iter().collect());
        }
    }
    let mark = mark_of(&*context.store, name).await?;
    let wall = release.recipe.wall_behind(mark.as_ref());
    let mut walled = Vec::new();
    for node in live {
        let info: Option<NodeInfo> = read(context, TypedKey::NodeInfo(node.clone())).await?;
        if wall.is_none() || info.is_some_and(|info| info.can_build(wall)) {
            walled.push(node.clone());
        }
    }
    let free: Vec<NodeId> =
        walled.iter().filter(|node| !drained.contains(*node)).cloned().collect();
    Ok(if free.is_empty() { walled } else { free })
}

async fn due(
    context: &AgentContext,
    name: &ApplicationName,
    release: &Release,
    recipe: &CronRecipe,
    able: &[NodeId],
    live: &BTreeSet<NodeId>,
) -> anyhow::Result<Decision> {
    let key = TypedKey::Cron(name.clone(), recipe.name.clone());
    let last: Option<CronRun> = read(context, key).await?;
    let zone = zone(&recipe.timezone)?;
    let entry = CronEntry {
        application: name,
        name: &recipe.name,
        schedule: &recipe.schedule.parse()?,
        zone: &zone,
        since: release.created_at,
        last: last.as_ref(),
        alive: last.as_ref().is_some_and(|last| live.contains(&last.node)),
        running: context.scheduled.lock().contains_key(&(name.clone(), recipe.name.clone())),
    };
    Ok(decide(context.clock.now(), &context.node, able, &entry))
}

/// Returns a time zone. Its file is small and stays in the system's cache.
pub fn zone(name: &str) -> anyhow::Result<TimeZone> {
    if name == "UTC" {
        return Ok(TimeZone::fixed(0)?);
    }
    let path = Path::new(ZONES).join(name);
    let known = std::fs::metadata(&path).is_ok_and(|m| m.is_file() && m.len() <= ZONE_BYTES_MAX);
    anyhow::ensure!(
        known,
        "{} has no time zone {name}; name another one in cortex.toml, or install tzdata",
        path.parent().unwrap_or(&path).display()
    );
    TimeZone::from_tz_data(&std::fs::read(&path)?)
        .with_context(|| format!("{} is no time zone", path.display()))
}

fn start(
    context: &Arc<AgentContext>,
    name: &ApplicationName,
    release: &Release,
    recipe: &CronRecipe,
    due: Timestamp,
    attempt: u32,
) {
    let id = (name.clone(), recipe.name.clone());
    context.scheduled.lock().insert(id.clone(), None);
    let run = CronRun {
        v: RECORD_VERSION,
        due,
        node: context.node.clone(),
        started_at: context.clock.now(),
        attempt,
        ended_at: None,
        success: false,
        how: None,
        pid: None,
        unknown: Unknown::new(),
    };
    let (context, release, recipe) = (context.clone(), release.clone(), recipe.clone());
    runtime::task::spawn(async move {
        if let Err(error) = perform(&context, &id, &release, &recipe, run).await {
            let said = format!("cron.{} failed: {error:#}", recipe.name);
            context.preparer.note(&id.0, &said);
        }
        context.scheduled.lock().remove(&id);
    });
}

/// Runs a command. A record is written before it starts, so that it is known after a crash.
async fn perform(
    context: &AgentContext,
    id: &Id,
    release: &Release,
    recipe: &CronRecipe,
    mut run: CronRun,
) -> anyhow::Result<()> {
    let key = TypedKey::Cron(id.0.clone(), id.1.clone()).key();
    context.store.set(key.clone(), record::encode(&run).into()).await?;
    tracing::info!(application = %id.0, entry = id.1, due = run.due.0, "cron.started");
    let exit = match execute(context, id, release, recipe, &key, &mut run).await {
        Ok(exit) => exit,
        Err(error) => Exit { how: format!("{error:#}"), ..Exit::default() },
    };
    (run.ended_at, run.success) = (Some(context.clock.now()), exit.success);
    (run.how, run.pid) = (Some(exit.how.clone()), None);
    context.store.set(key, record::encode(&run).into()).await?;
    anyhow::ensure!(exit.success, "{}", exit.how);
    Ok(())
}

async fn execute(
    context: &AgentContext,
    (application, entry): &Id,
    release: &Release,
    recipe: &CronRecipe,
    key: &Key,
    run: &mut CronRun,
) -> anyhow::Result<Exit> {
    let built = context.preparer.build(application, release).await;
    built.map_err(|failure| anyhow::anyhow!("{}\n{}", failure.why, failure.last_words))?;
    let task = format!("cron.{entry}");
    let mut spec =
        context.preparer.command_spec(application, release, &task, &recipe.command).await?;
    let due = run.due.0 / 1_000;
    spec.environment.insert("CORTEX_PROCESS".into(), task);
    spec.environment.insert("CORTEX_DUE".into(), due.to_string());
    let held: Arc<dyn Held> = context.launcher.launch(spec).await?.into();
    let id = (application.clone(), entry.clone());
    context.scheduled.lock().insert(id, Some(held.clone()));
    if context.is_shutting_down() {
        held.stop(GRACE).await?;
    }
    run.pid = Some(held.process().pid);
    context.store.set(key.clone(), record::encode(run).into()).await?;
    let mut exits = held.exit();
    let exit = exits.wait_for(Option::is_some).await?.clone().unwrap_or_default();
    held.forget().await.ok();
    Ok(exit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_come_from_the_system() {
        assert!(zone("UTC").is_ok());
        let error = zone("Atlantis/Center").unwrap_err().to_string();
        assert!(error.contains("no time zone Atlantis/Center"), "{error}");
        if Path::new(ZONES).join("Europe/Berlin").exists() {
            let winter = zone("Europe/Berlin").unwrap();
            let offset = winter.find_local_time_type(1_795_219_200).unwrap().ut_offset();
            assert_eq!(offset, 3_600);
        }
    }
}
