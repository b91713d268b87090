//! For how long a connection that is passed on may be silent.

use std::time::Duration;

use crate::table::Service;

/// Where the release sets no limit: longer than anything lives.
pub const IDLE_NEVER: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// As the release has it.
pub fn idle(service: &Service) -> Duration {
    service.recipe.idle_ms.map_or(IDLE_NEVER, Duration::from_millis)
}
