//! How a person's client comes to a token: an invitation, which is a token for one use, and what a
//! client has to know of the cluster.

use std::time::Duration;

use access_core::{TOKEN_AGE_DEFAULT, TokenState};
use anyhow::Context;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use model::hex::to_hex;
use model::people::Token;
use model::record::{RECORD_VERSION, Unknown};
use model::value::ContentHash;
use model::{NodeId, TokenName, TypedKey};
use tokio::time::timeout;

use super::caller::Caller;
use super::calls::{self, CallKind, CallRefused};
use super::door::token::find_token;
use super::json_body::{JsonBody, OptionalJson};
use super::problem::Problem;
use super::{Api, Shared, records, tokens, users};
use api_types::login::{
    ClusterUrl, InviteUser, LogIn, LoggedIn, LoginLine, NodeReach, UserInvitation, Whoami,
    check_addresses,
};

/// The name of the token that an invitation is, of which a user has one at a time.
const INVITATION: &str = "invitation";
/// The time for which an invitation is good unless somebody says otherwise: a day to read mail.
const INVITATION_HOURS: u32 = 24;
/// The longest time for which an invitation is good.
const INVITATION_HOURS_MAX: u32 = 7 * 24;
/// The time in which another node gives a token for its invitation.
const REDEEM_TIME_MAX: Duration = Duration::from_secs(20);
const HOUR: Duration = Duration::from_secs(3600);

/// Returns where clients find the nodes of the cluster that have said which key they show.
pub fn roster(api: &Api) -> Vec<NodeReach> {
    let roster = api.peers.as_ref().and_then(|peers| peers.roster()).unwrap_or_default();
    let reach = roster.addresses.into_iter().filter_map(|(node, addresses)| {
        let fingerprint = to_hex(roster.pins.get(&node)?);
        let id = node.to_string();
        (!addresses.is_empty()).then_some(NodeReach { id, addresses, fingerprint })
    });
    let mut nodes: Vec<NodeReach> = reach.collect();
    // Last of all: the way to it leads past whatever stands before web servers.
    nodes.extend(api.control.own_name().map(|own| NodeReach {
        id: own.name.to_string(),
        addresses: vec![own.to_string()],
        fingerprint: String::new(),
    }));
    nodes
}

/// Returns what tells this roster from others, short enough for each answer.
pub fn roster_hash(roster: &[NodeReach]) -> String {
    let bytes = serde_json::to_vec(roster).unwrap_or_default();
    to_hex(&blake3::hash(&bytes).as_bytes()[..8])
}

pub async fn whoami(
    State(api): State<Shared>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Whoami>, Problem> {
    Ok(Json(describe(&api, &caller).await?))
}

async fn describe(api: &Api, caller: &Caller) -> Result<Whoami, Problem> {
    let mut roles = Vec::new();
    for grant in caller.grants() {
        roles.push(users::grant_row(api, grant).await?);
    }
    let token = match caller.token_on_record() {
        Some((hash, token)) => Some(tokens::row(api, hash, token).await?),
        None => None,
    };
    let nodes = roster(api);
    Ok(Whoami {
        user: caller.name(),
        machine: caller.is_machine(),
        roles,
        token,
        node: api.node.to_string(),
        cluster: cluster(api)?,
        roster: roster_hash(&nodes),
        nodes,
    })
}

fn cluster(api: &Api) -> Result<String, Problem> {
    let id = api.peers.as_ref().map(|peers| peers.cluster()).transpose();
    Ok(id.map_err(|error| Problem::internal(format!("{error:#}")))?.unwrap_or_default())
}

/// Makes an invitation for a user, in place of the one before.
pub async fn invite(
    State(api): State<Shared>,
    Path(user): Path<String>,
    OptionalJson(asked): OptionalJson<InviteUser>,
) -> Result<(StatusCode, Json<UserInvitation>), Problem> {
    let hours = asked.hours.unwrap_or(INVITATION_HOURS);
    if hours == 0 || hours > INVITATION_HOURS_MAX {
        let detail = format!("an invitation is good for 1 to {INVITATION_HOURS_MAX} hours");
        return Err(Problem::invalid("invalid_expiry", detail));
    }
    let peers = api.peers.as_ref().ok_or_else(|| {
        let detail = "a node whose store is in etcd has no port for people's clients";
        Problem::missing("no_peers", detail)
            .hint("give them an account on the machine, or keep the store on the nodes")
    })?;
    let _changing = api.changes.lock().await;
    let (user, record) = users::require(&api.store, &user).await?;
    let (own, pin) = peers.open_port().await.map_err(|error| {
        Problem::conflict("no_port", format!("clients cannot reach this node: {error:#}"))
    })?;
    // The web vouches for the platform's own name, for a node its key does.
    let platform = api
        .control
        .own_name()
        .filter(|own| asked.addresses.is_empty() && api.control.covers(own.name.as_str()));
    let (addresses, fingerprint) = match (platform, asked.addresses) {
        (Some(platform), _) => (vec![platform.to_string()], String::new()),
        (None, addresses) if addresses.is_empty() => (vec![own.to_string()], to_hex(&pin)),
        (None, addresses) => (addresses, to_hex(&pin)),
    };
    check_addresses(&addresses)
        .map_err(|error| Problem::invalid("invalid_address", error.to_string()))?;
    let name: TokenName = INVITATION.parse()?;
    tokens::revoke_named(&api, &user, &name).await?;
    let now = api.now();
    let (text, row) = tokens::make(&api, |created_at| Token {
        v: RECORD_VERSION,
        name,
        user: user.clone(),
        user_created_at: record.created_at,
        created_at,
        expires_at: now.after(HOUR * hours),
        limit: None,
        revoked_at: None,
        invites: Some(api.node.clone()),
        unknown: Unknown::new(),
    })
    .await?;
    let url = ClusterUrl { addresses, fingerprint };
    let line = LoginLine { url, code: text.as_str().into() };
    Ok((
        StatusCode::CREATED,
        Json(UserInvitation {
            user: user.to_string(),
            line: line.to_string(),
            addresses: line.url.addresses,
            fingerprint: line.url.fingerprint,
            expires_at: row.expires_at,
        }),
    ))
}

/// Gives a token for an invitation, which is good for nothing after it.
pub async fn log_in(
    State(api): State<Shared>,
    Extension(caller): Extension<Caller>,
    JsonBody(asked): JsonBody<LogIn>,
) -> Result<(StatusCode, Json<LoggedIn>), Problem> {
    let wanted: TokenName = asked.name.parse()?;
    let Some((hash, _)) = caller.token_on_record().filter(|_| caller.is_invited()) else {
        let detail = "the owner of the machine needs no token there";
        return Err(Problem::conflict("not_invited", detail)
            .hint("`cortex users invite NAME` makes an invitation for somebody"));
    };
    let issuer = caller.token_on_record().and_then(|(_, token)| token.invites.as_ref());
    let made = match issuer.filter(|issuer| **issuer != api.node) {
        None => redeem(&api, hash, wanted).await?,
        Some(issuer) => redeem_at(&api, issuer, hash, wanted).await?,
    };
    Ok((StatusCode::CREATED, Json(made)))
}

/// Has the node that made an invitation give the token, so that it gives no more than one.
async fn redeem_at(
    api: &Api,
    issuer: &NodeId,
    invitation: ContentHash,
    name: TokenName,
) -> Result<LoggedIn, Problem> {
    let failed = |why: String| {
        let detail = format!("node {issuer} made this invitation, and {why}");
        Problem::conflict("other_node", detail)
            .hint(format!("try again when {issuer} is there, or ask for another invitation"))
    };
    let Some(peers) = &api.peers else { return Err(failed("no other node is known".into())) };
    let asked = async {
        let ask = CallKind::LogIn { invitation, name };
        let mut stream = calls::call(&**peers, issuer, ask).await?;
        let made: Option<LoggedIn> = calls::receive(&mut stream).await?;
        made.context("it hung up")
    };
    let made = timeout(REDEEM_TIME_MAX, asked).await;
    let made = made.unwrap_or_else(|_| Err(anyhow::anyhow!("it does not answer")));
    made.map_err(|error| match error.downcast::<CallRefused>() {
        Ok(CallRefused(why)) => failed(format!("refuses: {why}")),
        Err(error) => failed(format!("it cannot be asked: {error:#}")),
    })
}

/// Gives a token for an invitation that this node made.
pub async fn redeem(api: &Api, hash: ContentHash, wanted: TokenName) -> Result<LoggedIn, Problem> {
    let _changing = api.changes.lock().await;
    // Of two clients that come with it at once, the second finds it used.
    let (state, invitation, user) = find_token(&api.store, hash, api.now()).await?;
    let (TokenState::Valid, Some(mut invitation), Some(user)) = (state, invitation, user) else {
        return Err(Problem::new(StatusCode::UNAUTHORIZED, "token_revoked", "it was used already")
            .hint("ask for another invitation"));
    };
    if invitation.invites.as_ref() != Some(&api.node) {
        let detail = format!("node {} made no such invitation", api.node);
        return Err(Problem::conflict("other_node", detail).hint("ask for another invitation"));
    }
    let name = tokens::free_name(api, &invitation.user, &user, wanted).await?;
    invitation.revoked_at = Some(api.now());
    records::write(&*api.store, TypedKey::Token(hash), &invitation).await?;
    let owner = invitation.user.clone();
    let (text, row) = tokens::make(api, |created_at| Token {
        name,
        created_at,
        expires_at: created_at.after(TOKEN_AGE_DEFAULT),
        revoked_at: None,
        invites: None,
        ..invitation
    })
    .await?;
    tracing::info!(user = %owner, token = row.name, "api.logged_in");
    let nodes = roster(api);
    let (roster, cluster) = (roster_hash(&nodes), cluster(api)?);
    let token = text.as_str().into();
    Ok(LoggedIn { token, row, cluster, roster, nodes })
}
