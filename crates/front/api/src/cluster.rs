//! The cluster as the store keeps it: its members, its invitations, and what a person may decide.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use model::Timestamp;
use schemars::JsonSchema;
use serde::Deserialize;

use super::json_body::{JsonBody, OptionalJson};
use super::problem::Problem;
use super::{Api, Shared, records};
use api_types::{Invitation, SingleValue};
use cluster::invitation::INVITATION_AGE_MAX;
use cluster::peers::Peers;
use cluster::status::ClusterStatus;

fn peers(api: &Api) -> Result<&Peers, Problem> {
    api.peers.as_deref().ok_or_else(|| {
        Problem::missing("no_peers", "this node's store is replicated by etcd".to_string())
            .hint("use etcd's own tools for its members")
    })
}

fn failed(code: &'static str) -> impl Fn(anyhow::Error) -> Problem {
    move |error| Problem::new(StatusCode::CONFLICT, code, format!("{error:#}"))
}

pub async fn status(State(api): State<Shared>) -> Result<Json<ClusterStatus>, Problem> {
    let mut status = peers(&api)?.status().await.map_err(failed("no_status"))?;
    status.alarms.extend(api.clock.leap().map(|leap| leap.to_string()));
    Ok(Json(status))
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
pub struct InvitationAsked {
    #[serde(default)]
    address: Option<String>,
    /// How long the invitation is valid; the longest time allowed if `None`.
    #[serde(default)]
    seconds: Option<u64>,
}

pub async fn invite(
    State(api): State<Shared>,
    OptionalJson(InvitationAsked { address, seconds }): OptionalJson<InvitationAsked>,
) -> Result<Json<Invitation>, Problem> {
    let age_max = seconds.map_or(INVITATION_AGE_MAX, Duration::from_secs);
    let age_max = age_max.min(INVITATION_AGE_MAX);
    let token = peers(&api)?.invite(address, age_max).await.map_err(failed("not_invited"))?;
    Ok(Json(Invitation {
        invitation: token.to_string(),
        address: token.address,
        expires_at: records::rfc3339(api.now().after(age_max)),
    }))
}

pub async fn sync(State(api): State<Shared>) -> Result<Json<SingleValue>, Problem> {
    peers(&api)?.sync().await.map_err(failed("not_synced"))?;
    Ok(Json(SingleValue::new()))
}

pub async fn trust_clock(State(api): State<Shared>) -> Result<Json<SingleValue>, Problem> {
    peers(&api)?.trust_clock().await.map_err(failed("not_trusted"))?;
    Ok(Json(SingleValue::new()))
}

#[derive(Debug, Deserialize, JsonSchema)]
pub struct SquashAsked {
    /// The time before which superseded commits are dropped.
    before_ms: u64,
}

pub async fn squash(
    State(api): State<Shared>,
    JsonBody(SquashAsked { before_ms }): JsonBody<SquashAsked>,
) -> Result<Json<SingleValue>, Problem> {
    api.store.squash(Timestamp(before_ms)).await?;
    Ok(Json(SingleValue::new()))
}
