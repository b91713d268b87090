//! The nodes that could build a release and how busy they are, from what the store says about them.

use agent_core::application::BuildCandidate;
use model::node::{NodeInfo, NodeLoad};
use model::role::Role;
use model::{ApplicationName, Key, Prefix, Release, ReleaseId, TypedKey};

use super::roster::is_listed;
use super::specification::mark_of;
use store::{Store, lookup_record};

/// Whether what was built on one platform runs on the other.
pub fn are_alike(platform: &str, other: &str) -> bool {
    !platform.is_empty() && platform == other
}

/// Returns the nodes that may build a release: on the roster, with an agent, not being drained, and
/// with the wall that it asks for.
pub async fn candidates(
    store: &dyn Store,
    own: &str,
    name: &ApplicationName,
    release: &ReleaseId,
) -> anyhow::Result<Vec<BuildCandidate>> {
    let release = TypedKey::Release(name.clone(), release.clone()).key();
    let release = lookup_record::<Release>(store, release).await?;
    let mark = mark_of(store, name).await?;
    let wall = release.and_then(|release| release.recipe.wall_behind(mark.as_ref()));
    let mut candidates = Vec::new();
    for key in store.keys(&Prefix::from("node".parse::<Key>()?)).await? {
        let Some(TypedKey::NodeInfo(node)) = TypedKey::parse(&key) else { continue };
        let Some(info) = lookup_record::<NodeInfo>(store, key).await? else { continue };
        let drained = store.lookup(&TypedKey::Drained(node.clone()).key()).await?.is_some();
        let able = info.can_build(wall);
        if drained || !able || !info.roles.has(Role::Agent) || !is_listed(store, &node).await? {
            continue;
        }
        let load = lookup_record::<NodeLoad>(store, TypedKey::NodeLoad(node.clone()).key()).await?;
        candidates.push(BuildCandidate {
            load_percent: load.map(|load| load.percent),
            alike: are_alike(&info.platform, own),
            node,
        });
    }
    Ok(candidates)
}
