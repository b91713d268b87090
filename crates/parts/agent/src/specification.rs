//! An application's specification, as the agent reads it from the store.

use model::{ApplicationName, ApplicationSpec, IsolationMark, TypedKey};
use store::{Store, lookup_record};

pub async fn specification(
    store: &dyn Store,
    application: &ApplicationName,
) -> anyhow::Result<Option<ApplicationSpec>> {
    lookup_record(store, TypedKey::Spec(application.clone()).key()).await
}

/// Returns what an owner wants around the application at the least.
pub async fn mark_of(
    store: &dyn Store,
    application: &ApplicationName,
) -> anyhow::Result<Option<IsolationMark>> {
    Ok(specification(store, application).await?.and_then(|spec| spec.isolation))
}
