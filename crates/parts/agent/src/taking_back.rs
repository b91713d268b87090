//! The return to what served before a release that failed, as commands do it: a release of its own,
//! with the old one's variables. Asked by an application's actor; may be repeated.

use std::sync::Arc;
use std::time::Duration;

use agent_core::application::{TakeBackProgress, taken_back};
use anyhow::Context;
use model::key::application_prefix;
use model::{ApplicationName, BuildId, Release, ReleaseId};
use model::{Rollout, TypedKey, record};

use super::AgentContext;
use super::specification::mark_of;
use store::{Store, readable};

/// Configuration variables as commands write them.
type Variables = std::collections::BTreeMap<String, String>;

/// The pause between tries, as for claims: somebody has to free space first.
const WRITE_AGAIN: Duration = Duration::from_secs(5);
/// The maximum number of tries; after that people have seen what serves, and decide themselves.
const TRIES_MAX: u32 = 12;
/// The author that such releases name.
const AUTHOR: &str = "cortex";
/// The maximum number of commits that are searched for numbers that were given out and removed.
const HISTORY_SEEN_MAX: usize = 1_000;

/// Tries until the return is requested, or somebody else requested something. An actor must not
/// await it: the lock may be held while a large source is written.
pub async fn take_back(
    context: Arc<AgentContext>,
    name: ApplicationName,
    from: ReleaseId,
    to: ReleaseId,
) {
    for _ in 0..TRIES_MAX {
        match try_take_back(&context, &name, &from, &to).await {
            Ok(()) => return,
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!(application = %name, release = %from, error, "agent.not_taken_back");
            }
        }
        tokio::time::sleep(WRITE_AGAIN).await;
    }
}

async fn try_take_back(
    context: &AgentContext,
    name: &ApplicationName,
    from: &ReleaseId,
    to: &ReleaseId,
) -> anyhow::Result<()> {
    let _changing = context.changes.lock().await;
    let store = &*context.store;
    let (mut rollout, mut releases) = (None::<Rollout>, Vec::<Release>::new());
    for entry in store.prefix(&application_prefix(name)).await? {
        match TypedKey::parse(&entry.key) {
            Some(TypedKey::Rollout(_)) => rollout = readable(&entry.key, Some(&entry.value)),
            Some(TypedKey::Release(..)) => {
                releases.extend(readable::<Release>(&entry.key, Some(&entry.value)));
            }
            _ => {}
        }
    }
    let id = match taken_back(rollout.as_ref(), releases.iter(), from) {
        TakeBackProgress::Overtaken => return Ok(()),
        TakeBackProgress::Made(id) => id,
        TakeBackProgress::Unmade => {
            let known = releases.iter().map(|release| release.id.number);
            let number = next_number(store, name, known.max().unwrap_or(0)).await?;
            let id = ReleaseId { number, node: context.node.clone() };
            let old = releases.iter().find(|release| release.id == *to);
            let old = old.with_context(|| format!("there is no release {to} any more"))?;
            make(context, name, old, &id, from).await?;
            id
        }
    };
    let Some(mut rollout) = rollout else { return Ok(()) };
    rollout.request(id, context.node.clone(), context.clock.now());
    let key = TypedKey::Rollout(name.clone()).key();
    store.set(key, record::encode(&rollout).into()).await?;
    Ok(())
}

/// Writes the variables first, then the release: whatever is requested exists.
async fn make(
    context: &AgentContext,
    name: &ApplicationName,
    old: &Release,
    id: &ReleaseId,
    from: &ReleaseId,
) -> anyhow::Result<()> {
    let store = &*context.store;
    let frozen = TypedKey::ConfigAt(name.clone(), old.id.clone()).key();
    let entry = store.lookup(&frozen).await?;
    if let Some(config) = entry.map(|entry| entry.value.record::<Variables>()).transpose()? {
        let config = record::encode(&config);
        // The next push goes on from what serves, as after a rollback.
        store
            .set(TypedKey::ConfigAt(name.clone(), id.clone()).key(), config.clone().into())
            .await?;
        store.set(TypedKey::Config(name.clone()).key(), config.into()).await?;
    }
    let mark = mark_of(store, name).await?;
    let mut recipe = old.recipe.clone();
    recipe.put_behind(mark.as_ref());
    // What was built behind another wall is built again.
    let build = (recipe == old.recipe).then(|| old.build_id());
    let release = Release {
        id: id.clone(),
        created_at: context.clock.now(),
        author: AUTHOR.into(),
        note: format!("return to {}, as {} failed", old.id.short(), from.short()),
        replaces: Some(from.clone()),
        remark: None,
        takes_back: Some(from.clone()),
        build: Some(build.unwrap_or_else(|| BuildId::Of(id.clone()))),
        recipe,
        ..old.clone()
    };
    let key = TypedKey::Release(name.clone(), id.clone()).key();
    store.set(key, record::encode(&release).into()).await?;
    Ok(())
}

/// Returns one more than the highest number ever seen, also of removed releases and of an
/// application that was destroyed: directories and logs carry these numbers.
pub async fn next_number(
    store: &dyn Store,
    name: &ApplicationName,
    known: u64,
) -> anyhow::Result<u64> {
    let prefix = format!("app::{name}::release").parse()?;
    let history = store.history(&prefix, HISTORY_SEEN_MAX).await?;
    let numbers = history.iter().filter_map(|entry| match TypedKey::parse(&entry.key) {
        Some(TypedKey::Release(_, id)) => Some(id.number),
        _ => None,
    });
    let seen = numbers.max().unwrap_or(0);
    known.max(seen).checked_add(1).context("there is no number left for a release")
}
