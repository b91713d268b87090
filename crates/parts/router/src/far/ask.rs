//! The lines that stand before a request that goes to another node.

use std::io::Result;
use std::time::Duration;

use model::ProcessType;
use router_core::far::FarRequest;

use crate::table::RoutedApplication;
use crate::wire::Wire;

/// The wait in the queue of the only node that has instances; then this node looks again who has.
const WAIT_ALONE: Duration = Duration::from_secs(1);

/// Returns how long a request may wait there. Where there is a choice, a busy node says so at once.
pub fn wait(application: &RoutedApplication) -> Duration {
    if application.only_far().is_some() { WAIT_ALONE } else { Duration::ZERO }
}

/// Adds the lines, which go out together with the request. `scratch` is left empty.
pub fn write(
    application: &RoutedApplication,
    upstream: &Wire,
    scratch: &mut Vec<u8>,
) -> Result<()> {
    let ask = FarRequest {
        wait_ms: u16::try_from(wait(application).as_millis()).unwrap_or(u16::MAX),
        application: application.name.clone(),
        process: ProcessType::web(),
        through: None,
    };
    scratch.clear();
    ask.write(scratch);
    let put = upstream.put(scratch);
    scratch.clear();
    put
}
