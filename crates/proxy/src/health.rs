//! The health checks: ask every back end again and again whether it is well, and tell the parts
//! that choose. A single failure decides nothing.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use checker_core::probe::{BadProbes, ProbeOutcome};
use model::probe::HealthState;
use tokio::task::JoinSet;

use super::back_ends::BackEnds;
use runtime::probe::{self, ProbeError};

/// The maximum time of a probe: a back end that needs longer is not well.
const TIMEOUT_MAX: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HealthCheck {
    /// Passes if it accepts connections.
    Tcp,
    /// Passes if a GET of this path answers 200 to 399, asked by this name or else by the address.
    Http { path: String, host: Option<String> },
}

/// Runs for as long as the proxy does.
pub async fn run(back_ends: Arc<BackEnds>, check: HealthCheck, interval: Duration) {
    let mut tallies: BTreeMap<u64, BadProbes> = BTreeMap::new();
    let mut turn = tokio::time::interval(interval);
    turn.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let timeout = TIMEOUT_MAX.min(interval.max(Duration::from_secs(1)));
    loop {
        turn.tick().await;
        let probed = back_ends.probed();
        tallies.retain(|serial, _| probed.iter().any(|one| one.serial == *serial));
        let mut probes = JoinSet::new();
        for one in probed {
            let check = check.clone();
            probes.spawn(async move { (one.serial, ask(one.address, &check, timeout).await) });
        }
        while let Some(Ok((serial, outcome))) = probes.join_next().await {
            let verdict = tallies.entry(serial).or_default().count(&outcome);
            let reason = match outcome {
                ProbeOutcome::Absent { detail } | ProbeOutcome::Unwell { detail } => Some(detail),
                ProbeOutcome::Well | ProbeOutcome::Unreached => None,
            };
            if let Some(health) = verdict {
                back_ends.judge(serial, health == HealthState::Healthy, reason);
            }
        }
    }
}

async fn ask(address: SocketAddr, check: &HealthCheck, timeout: Duration) -> ProbeOutcome {
    let asked = match check {
        HealthCheck::Tcp => probe::tcp(address, timeout).await.map(|()| None),
        HealthCheck::Http { path, host } => {
            let host = host.clone().unwrap_or_else(|| address.to_string());
            probe::http_get(address, &host, path, &BTreeMap::new(), timeout).await.map(Some)
        }
    };
    match asked {
        Ok(None | Some(200..=399)) => ProbeOutcome::Well,
        Ok(Some(status)) => ProbeOutcome::Unwell { detail: format!("its check answers {status}") },
        Err(ProbeError::Refused) => ProbeOutcome::Absent { detail: "connection refused".into() },
        Err(error) => ProbeOutcome::Unwell { detail: error.to_string() },
    }
}
