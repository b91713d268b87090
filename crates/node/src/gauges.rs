//! What a node measures of itself for the others: its load, and what applications' files take.

use runtime::supervise::supervise;
use tokio::task::JoinSet;

use super::Node;

impl Node {
    pub(super) fn start_gauges(&self, parts: &mut JoinSet<()>) {
        let Node { config, id, clock, store, .. } = self;
        let (clock, fixed) = (*clock, config.load);
        let (loaded, of) = (store.clone(), id.clone());
        parts.spawn(supervise("load", move || {
            agent::load::run(loaded.clone(), of.clone(), clock, fixed)
        }));
        let (measured, of, layout) = (store.clone(), id.clone(), config.layout.clone());
        parts.spawn(supervise("disk", move || {
            agent::disk::run(measured.clone(), of.clone(), layout.clone())
        }));
    }
}
