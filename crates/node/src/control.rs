//! What the API may do with the running node; `lib.rs` makes it.

use std::sync::Arc;

use api::NodeControl;
use api_types::{PortRow, PortTraffic};
use metrics::Metrics;
use model::PlatformAddress;
use router::PublicPort;
use router::RouterHandle;
use runtime::faults::{Fault, Faults};
use serde_json::Value;
use tokio::sync::Notify;

/// The part of the running node that the API may use.
pub struct Control {
    /// The fail points; `None` unless tests enabled them.
    pub faults: Option<Faults>,
    pub stop: Notify,
    pub metrics: Metrics,
    /// The router; `None` if nothing is served.
    pub router: Option<Arc<RouterHandle>>,
}

impl NodeControl for Control {
    fn shut_down(&self) {
        self.stop.notify_one();
    }

    fn ports(&self) -> Vec<PortRow> {
        let row = |port: PublicPort| PortRow {
            address: port.address.to_string(),
            application: port.application.map(|name| name.to_string()),
            protocol: port.transport.map_or_else(|| "http".into(), |one| one.to_string()),
            error: port.error,
            traffic: port.traffic.map(|traffic| PortTraffic {
                connections: traffic.connections,
                open: traffic.open,
                bytes_in: traffic.bytes_in,
                bytes_out: traffic.bytes_out,
                refused: traffic.refused,
            }),
        };
        self.router.iter().flat_map(|router| router.ports()).map(row).collect()
    }

    fn serves(&self, name: &model::ApplicationName, release: &model::ReleaseId) -> bool {
        self.router.as_ref().is_none_or(|router| router.serves(name, release))
    }

    fn own_name(&self) -> Option<Arc<PlatformAddress>> {
        self.router.as_ref()?.own_name()
    }

    fn covers(&self, host: &str) -> bool {
        self.router.as_ref().is_some_and(|router| router.covers(host))
    }

    fn metrics(&self) -> String {
        self.metrics.prometheus()
    }

    fn faults(&self) -> Faults {
        self.faults.clone().unwrap_or_default()
    }

    fn set_fail_point(&self, name: &str, action: &str) -> Result<(), String> {
        let Some(faults) = &self.faults else {
            return Err("fail points are for tests: start the node with --fail-points".into());
        };
        if action == "off" {
            faults.disarm(name);
            return Ok(());
        }
        let fault: Fault = serde_json::from_value(Value::String(action.into()))
            .map_err(|_| format!("'{action}' is no fault: use panic-once, stall, error or off"))?;
        faults.arm(name, fault).map_err(|error| error.to_string())
    }
}
