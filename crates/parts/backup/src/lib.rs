//! Whole clusters as one stream, and back: records, sources, secrets and, if asked for, the files
//! that applications keep, from whichever nodes have them; and files with such a stream, which a
//! pass-phrase opens (`archive`). Must not know how a stream travels. The API drives it, commands
//! wrap what it makes; `schedule` makes such files by itself.

pub mod archive;
pub mod exporter;
pub mod importer;
pub mod keys;
mod place;
pub mod schedule;
pub mod selection;

use std::sync::Arc;

use model::NodeId;

use os::layout::DataDirectory;
use runtime::driver::Clock;
use runtime::members::Members;
use store::SharedStore;

/// What exports and imports need of the node.
#[derive(Clone)]
pub struct BackupContext {
    pub store: SharedStore,
    pub node: NodeId,
    pub layout: DataDirectory,
    pub clock: Clock,
    /// The other nodes; `None` if something else replicates the store.
    pub members: Option<Arc<dyn Members>>,
}
