//! The node itself: its state, its metrics, and its end.

use std::collections::BTreeSet;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use model::TypedKey;
use model::node::NodeLoad;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::json_body::JsonBody;
use super::problem::Problem;
use super::{Api, Shared, applications, backups, machine, own_names, records};
use api_types::{ApplicationRow, NodeStatus, PortRow};

pub async fn status(State(api): State<Shared>) -> Result<Json<NodeStatus>, Problem> {
    let applications = applications::rows(&api).await?;
    let ports = api.control.ports();
    let load: Option<NodeLoad> =
        records::read(&*api.store, TypedKey::NodeLoad(api.node.clone())).await?;
    let mut problems = alarms(&api).await;
    problems.extend(backups::standing(&api).await.flatten());
    let own_names = own_names::status(&api).await?;
    problems.extend(own_names::problems(&own_names));
    problems.extend(of_applications(&applications, &ports));
    Ok(Json(NodeStatus {
        node: api.node.to_string(),
        version: env!("CARGO_PKG_VERSION").into(),
        pid: std::process::id(),
        uptime_seconds: api.now().since(api.started_at).as_secs(),
        memory_bytes: machine::own_memory_bytes(),
        data: api.layout.root().display().to_string(),
        http: api.http.to_string(),
        load_percent: load.map(|load| load.percent),
        problems,
        ports,
        applications,
        own_names,
    }))
}

/// Returns what the store wants looked into, and what is odd about the clock.
async fn alarms(api: &Api) -> Vec<String> {
    let status = match &api.peers {
        Some(peers) => peers.status().await.ok(),
        None => None,
    };
    let alarms =
        status.into_iter().flat_map(|status| status.clock_doubt.into_iter().chain(status.alarms));
    api.clock.leap().map(|leap| leap.to_string()).into_iter().chain(alarms).collect()
}

fn of_applications(applications: &[ApplicationRow], ports: &[PortRow]) -> Vec<String> {
    let ports = ports.iter().filter_map(|port| {
        let error = port.error.as_ref()?;
        let whose = match &port.application {
            Some(app) => format!("the port of {app}, {} ({})", port.address, port.protocol),
            None => port.address.clone(),
        };
        Some(format!("{whose}: {error}"))
    });
    let applications = applications.iter().filter_map(|app| match app.state.as_str() {
        "degraded" | "down" | "failed" => Some(format!(
            "{} is {}: {} of {} instances are ready; see `cortex logs -a {}`",
            app.name, app.state, app.ready, app.wanted, app.name
        )),
        _ => None,
    });
    ports.chain(applications).collect()
}

/// Returns the applications of which this node runs something.
async fn here(api: &Api) -> Result<Vec<ApplicationRow>, Problem> {
    let mut rows = applications::rows(api).await?;
    let mut running = BTreeSet::new();
    for name in records::names(&*api.store).await? {
        if let Some(app) = records::find(&*api.store, &name).await? {
            let mut own = app.incarnations().filter(|(_, node, _)| **node == api.node);
            if own.any(|(_, _, one)| records::is_alive(one.state)) {
                running.insert(name.to_string());
            }
        }
    }
    rows.retain(|row| running.contains(&row.name));
    Ok(rows)
}

pub async fn metrics(State(api): State<Shared>) -> String {
    api.control.metrics()
}

pub async fn shut_down(State(api): State<Shared>) -> (StatusCode, Json<Vec<ApplicationRow>>) {
    // What will be stopped here is read for the client to show; the stop itself needs no store.
    let running = here(&api).await.unwrap_or_default();
    api.control.shut_down();
    (StatusCode::ACCEPTED, Json(running))
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct FailPointSet {
    fail_point: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub struct FailPointAsked {
    /// The way to fail; `off` if missing.
    #[serde(default)]
    action: Option<String>,
}

pub async fn set_fail_point(
    State(api): State<Shared>,
    Path(name): Path<String>,
    JsonBody(asked): JsonBody<FailPointAsked>,
) -> Result<Json<FailPointSet>, Problem> {
    let action = asked.action.as_deref().unwrap_or("off");
    api.control
        .set_fail_point(&name, action)
        .map_err(|why| Problem::conflict("no_fail_point", why))?;
    Ok(Json(FailPointSet { fail_point: name }))
}
