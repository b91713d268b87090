//! The settling of a process: it lets go of the code that only its start needed.

use std::time::Duration;

/// The time after which what was to be done once is done.
const SETTLED: Duration = Duration::from_secs(2);

pub async fn settle() {
    tokio::time::sleep(SETTLED).await;
    os::footprint::let_go();
}
