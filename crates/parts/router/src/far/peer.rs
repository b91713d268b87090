//! Another node as the router's threads know it: its id, and whether it still answers.

use std::time::Duration;

use model::NodeId;
use tokio::sync::watch;

/// The time without a byte after which requests to a node that does not answer others are given up:
/// it may only be slow.
const SILENCE_MAX: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub struct FarPeer {
    /// A number that is unique in this process: the key of the threads' pools.
    pub serial: u64,
    pub node: NodeId,
    down: watch::Sender<bool>,
}

impl FarPeer {
    pub fn new(serial: u64, node: NodeId) -> FarPeer {
        FarPeer { serial, node, down: watch::Sender::new(false) }
    }

    pub fn set_down(&self, down: bool) {
        self.down.send_if_modified(|known| std::mem::replace(known, down) != down);
    }

    pub fn is_down(&self) -> bool {
        *self.down.borrow()
    }

    /// Resolves when it is down.
    pub async fn gone(&self) {
        self.down.subscribe().wait_for(|down| *down).await.ok();
    }

    /// Resolves once it has been down for as long as anybody waits for it.
    pub async fn given_up(&self) {
        let mut down = self.down.subscribe();
        loop {
            // The sender lives as long as this borrow of it: neither wait can fail.
            down.wait_for(|down| *down).await.ok();
            let back = tokio::time::timeout(SILENCE_MAX, down.wait_for(|down| !*down)).await;
            if back.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests;
