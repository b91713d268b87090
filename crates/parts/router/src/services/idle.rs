//! The time for which a connection that is passed on may be silent.

use std::time::Duration;

use crate::table::Service;

/// The limit if the release sets none: longer than anything lives.
pub const IDLE_NEVER: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// Returns the limit that the release sets.
pub fn idle(service: &Service) -> Duration {
    service.recipe.idle_ms.map_or(IDLE_NEVER, Duration::from_millis)
}
