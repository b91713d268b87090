//! Opens the store of a data directory: takes the lock, recovers and starts the threads.

use std::sync::Arc;

use model::NodeId;
use store_core::event::Standing;
use store_core::sync::message::ClusterId;

use super::SharedStore;
use super::local::LocalStore;
use super::log::{CommitLog, SegmentedLog};
use super::options::{OpenError, Options, lock, make_dir};
use super::values::ValueFiles;
use os::layout::DataDirectory;
use runtime::driver::Clock;

/// Opens the store of one node on this disk; blocks while it recovers. `cluster` is called with the
/// cluster that the log knows, and returns the one that the node belongs to.
pub fn open(
    layout: &DataDirectory,
    node: NodeId,
    clock: Clock,
    options: Options,
    cluster: impl FnOnce(Standing) -> Result<ClusterId, OpenError>,
) -> Result<SharedStore, OpenError> {
    let dir = layout.store();
    make_dir(&dir)?;
    let lock = lock(&dir)?;
    make_dir(&layout.values())?;
    let values = ValueFiles::open(layout.values(), options.value_age_min)
        .map_err(OpenError::io(&layout.values()))?;
    let (recovered, log) = SegmentedLog::open(&dir, &options)?;
    let cluster = cluster(recovered.past.standing)?;
    let (log, at) = (Box::new(log), dir.clone());
    let store = LocalStore::start(recovered, log, node, cluster, clock, at, options, values, lock);
    Ok(Arc::new(store.map_err(OpenError::io(&dir))?))
}

/// Opens a store that no other node will share: its cluster is the one of its log, or a new one.
pub fn open_alone(
    layout: &DataDirectory,
    node: NodeId,
    clock: Clock,
    options: Options,
) -> Result<SharedStore, OpenError> {
    open(layout, node, clock, options, |standing| {
        if standing.incarnation != 0 {
            return Ok(standing.cluster);
        }
        let mut fresh = [0; 16];
        rustix::rand::getrandom(&mut fresh, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| OpenError::Backend(format!("no random bytes: {error}")))?;
        Ok(ClusterId(fresh))
    })
}
