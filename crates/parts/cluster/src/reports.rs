//! Reports about strangers and failing peers, each of which is logged once.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// The time after which the same reason from the same address is logged again.
const REPORT_INTERVAL: Duration = Duration::from_secs(600);
/// The number of addresses and reasons that are remembered.
const REPORTS_MAX: usize = 512;

/// The reports made lately, so that strangers cannot fill the log.
#[derive(Default)]
pub struct Reports {
    said: BTreeMap<(String, String), Instant>,
}

impl Reports {
    pub fn is_news(&mut self, who: String, what: String) -> bool {
        let now = Instant::now();
        self.said.retain(|_, at| now.duration_since(*at) < REPORT_INTERVAL);
        if self.said.len() >= REPORTS_MAX {
            return false;
        }
        self.said.insert((who, what), now).is_none()
    }

    /// Forgets a peer's reports, so that they would be news again.
    pub fn forget(&mut self, who: &str) {
        self.said.retain(|(said_of, _), _| said_of != who);
    }
}
