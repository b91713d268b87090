//! Opening the store of a data directory: the lock, recovery, and the start of its threads.

use std::sync::Arc;

use model::NodeId;
use store_core::event::Standing;
use store_core::sync::message::ClusterId;

use super::SharedStore;
use super::local::LocalStore;
use super::log::{CommitLog, SegmentedLog};
use super::options::{OpenError, Options, lock, make_dir};
use super::peers::identity::Membership;
use super::values::ValueFiles;
use os::layout::DataDirectory;
use runtime::driver::Clock;

/// The store of one node on this disk; blocks while it recovers.
pub fn open(layout: &DataDirectory, node: NodeId, clock: Clock) -> Result<SharedStore, OpenError> {
    open_with(layout, node, clock, Options::default())
}

pub fn open_with(
    layout: &DataDirectory,
    node: NodeId,
    clock: Clock,
    options: Options,
) -> Result<SharedStore, OpenError> {
    let dir = layout.store();
    make_dir(&dir)?;
    let lock = lock(&dir)?;
    make_dir(&layout.values())?;
    let values = ValueFiles::open(layout.values(), options.value_age_min)
        .map_err(OpenError::io(&layout.values()))?;
    let (recovered, log) = SegmentedLog::open(&dir, &options)?;
    let cluster = cluster(layout, recovered.past.standing)?;
    let (log, at) = (Box::new(log), dir.clone());
    let store = LocalStore::start(recovered, log, node, cluster, clock, at, options, values, lock);
    Ok(Arc::new(store.map_err(OpenError::io(&dir))?))
}

/// The cluster that DATA/cluster names. Where the log knows of another, either that directory is
/// younger, as its node has just been let in somewhere, or the log is right.
fn cluster(layout: &DataDirectory, standing: Standing) -> Result<ClusterId, OpenError> {
    let dir = layout.cluster();
    let failed = |error: anyhow::Error| OpenError::Backend(format!("{error:#}"));
    let mut membership = Membership::load_or_found(&dir).map_err(failed)?;
    let logged = (standing.incarnation != 0).then_some(standing.cluster);
    let differs = logged.is_some_and(|logged| logged != membership.id());
    if differs && !membership.joining {
        match (membership.redeemed.is_some(), logged) {
            // An old copy of the log was restored.
            (true, _) => membership.joining = true,
            (false, Some(logged)) => membership = Membership::of(logged),
            (false, None) => {}
        }
        membership.save(&dir).map_err(failed)?;
    }
    Ok(membership.id())
}
