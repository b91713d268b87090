//! What is stored of applications that were destroyed, and came late: it is read here for those
//! that have to tell it from what belongs to the application that has the name now, and removed.
//! Asked by actors and by placement's feed; what is left is decided by `agent_core::remains`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use agent_core::remains::{Owner, Remains};
use model::application::Destruction;
use model::key::{application_prefix, destroyed_prefix, prefixes_of};
use model::{ApplicationName, ApplicationSpec, Release, ReleaseId, Timestamp, TypedKey, record};

use super::AgentContext;
use store::{Store, lookup_record, readable};

/// Configuration variables as commands write them.
type Variables = BTreeMap<String, String>;

/// Returns when the applications of this name that were destroyed had been created.
pub async fn destroyed(
    store: &dyn Store,
    name: &ApplicationName,
) -> anyhow::Result<BTreeSet<Timestamp>> {
    let keys = store.keys(&destroyed_prefix(name)).await?;
    let created_at = keys.iter().filter_map(|key| match TypedKey::parse(key) {
        Some(TypedKey::Destroyed(_, created_at)) => Some(created_at),
        _ => None,
    });
    Ok(created_at.collect())
}

/// Returns whether the files that applications of this name kept are to go: none of them is there
/// any more, or will be.
pub async fn are_files_gone(store: &dyn Store, name: &ApplicationName) -> anyhow::Result<bool> {
    if store.lookup(&TypedKey::Spec(name.clone()).key()).await?.is_some() {
        return Ok(false);
    }
    let mut gone = false;
    for key in store.keys(&destroyed_prefix(name)).await? {
        let end: Option<Destruction> = lookup_record(store, key).await?;
        gone = gone || end.is_some_and(|end| end.with_files);
    }
    Ok(gone)
}

/// Returns what tells the applications of this name apart; nothing at all where none of them was
/// destroyed, as a rule.
pub async fn read(store: &dyn Store, name: &ApplicationName) -> anyhow::Result<Remains> {
    let mut remains = Remains { destroyed: destroyed(store, name).await?, ..Remains::default() };
    if remains.destroyed.is_empty() {
        return Ok(remains);
    }
    for key in store.keys(&application_prefix(name)).await? {
        match TypedKey::parse(&key) {
            Some(TypedKey::Spec(_)) => {
                let spec = lookup_record::<ApplicationSpec>(store, key).await?;
                spec.iter().for_each(|spec| remains.note_spec(spec));
            }
            Some(TypedKey::Release(..)) => {
                let entry = store.lookup(&key).await?;
                let release: Option<Release> =
                    readable(&key, entry.as_ref().map(|entry| &entry.value));
                release.iter().for_each(|release| remains.note_release(release));
            }
            _ => {}
        }
    }
    Ok(remains)
}

/// Writes an application's specification again, unless the store has it meanwhile.
pub async fn write_again(context: Arc<AgentContext>, name: ApplicationName, spec: ApplicationSpec) {
    let written = async {
        let _changing = context.changes.lock().await;
        let key = TypedKey::Spec(name.clone()).key();
        let stored = lookup_record::<ApplicationSpec>(&*context.store, key.clone()).await?;
        if stored.is_none_or(|stored| stored.created_at != spec.created_at) {
            context.store.set(key, record::encode(&spec).into()).await?;
        }
        anyhow::Ok(())
    };
    report(&name, written.await);
}

/// Removes what is left. Commands wait meanwhile; an actor must not, as they may write much.
pub async fn clear(context: Arc<AgentContext>, name: ApplicationName) {
    let _changing = context.changes.lock().await;
    report(&name, try_clear(&*context.store, &name).await);
}

fn report(name: &ApplicationName, result: anyhow::Result<()>) {
    if let Err(error) = result {
        tracing::warn!(application = %name, error = format!("{error:#}"), "agent.remains_stay");
    }
}

async fn try_clear(store: &dyn Store, name: &ApplicationName) -> anyhow::Result<()> {
    let remains = read(store, name).await?;
    if remains.destroyed.is_empty() {
        return Ok(());
    }
    mend_variables(store, name, &remains).await?;
    let mut keys = Vec::new();
    for prefix in prefixes_of(name) {
        keys.extend(store.keys(&prefix).await?);
    }
    for key in keys {
        let left = match TypedKey::parse(&key) {
            Some(typed) => remains.is_left(&typed),
            // A newer version may know what it is.
            None => remains.owner() == Owner::Nobody,
        };
        if left {
            store.delete(key).await?;
        }
    }
    Ok(())
}

async fn mend_variables(
    store: &dyn Store,
    name: &ApplicationName,
    remains: &Remains,
) -> anyhow::Result<()> {
    let key = TypedKey::Config(name.clone()).key();
    let now = lookup_record::<Variables>(store, key.clone()).await?;
    let mut at: BTreeMap<ReleaseId, Variables> = BTreeMap::new();
    for id in remains.releases.keys() {
        let key = TypedKey::ConfigAt(name.clone(), id.clone()).key();
        at.extend(lookup_record(store, key).await?.map(|variables| (id.clone(), variables)));
    }
    match remains.mended(now.as_ref(), &at) {
        Some(Some(variables)) => {
            store.set(key, record::encode(&variables).into()).await?;
        }
        Some(None) => drop(store.delete(key).await?),
        None => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests;
