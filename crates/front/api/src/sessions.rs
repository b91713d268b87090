//! Sessions of one-off commands: who attaches to which, wherever in the cluster it is, and which
//! there are. What passes between a client and a command is carried and not looked at.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::{Extension, Json};
use futures_util::future::join_all;
use hyper_util::rt::TokioIo;
use model::{ApplicationName, NodeId};
use tokio::time::timeout;

use super::caller::Caller;
use super::door::token::find_token;
use super::problem::Problem;
use super::{Api, Shared, records, run};
use crate::calls::{self, CallKind, CallRefused};
use access_core::TokenState;
use agent::AgentContext;
use agent::one_off::{self, CarryEnd, OneOffSession, SessionHandle};
use api_types::{InstanceRow, SessionRow};
use cluster::peers::Peers;
use runtime::members::{BoxedStream, Members};

/// The time for the other nodes to say which commands run there; a listing does not wait for one
/// that hangs.
const LISTING_TIME_MAX: Duration = Duration::from_secs(1);
/// The bytes of the random part of an id: no two sessions of a node have the same.
const ID_BYTES: usize = 5;
/// The letters of ids, of which none looks like another.
const ID_LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";

/// Returns the id of a session that is to begin on that node, which is found by it later.
pub fn fresh_id(node: &NodeId) -> Result<String, Problem> {
    let mut bytes = [0; ID_BYTES];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Problem::internal(error.to_string()))?;
    let bits = bytes.iter().fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
    let letter = |n: usize| char::from(ID_LETTERS[(bits >> (5 * n)) as usize & 31]);
    let random: String = (0..ID_BYTES * 8 / 5).map(letter).collect();
    Ok(format!("{node}.{random}"))
}

/// The node of a session.
pub enum SessionLocation {
    Here(SessionHandle),
    There(NodeId),
}

fn no_session(id: &str) -> Problem {
    let detail = format!("there is no command {id}: it has ended, or never began");
    Problem::new(StatusCode::NOT_FOUND, "no_session", detail)
        .hint("`cortex ps` lists those that run, and for an hour those that have ended")
}

/// Finds the session, and refuses if its node is not there.
fn find(api: &Api, application: &ApplicationName, id: &str) -> Result<SessionLocation, Problem> {
    let node = id.rsplit_once('.').and_then(|(node, _)| node.parse::<NodeId>().ok());
    let node = node.ok_or_else(|| no_session(id))?;
    if node != api.node {
        if api.peers.is_none() {
            return Err(no_session(id));
        }
        if api.is_lost(&node) {
            return Err(away(&node));
        }
        return Ok(SessionLocation::There(node));
    }
    let agent = api.agent.as_ref().ok_or_else(|| no_session(id))?;
    if !agent.has_adopted() {
        return Err(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "starting",
            "the node is starting, and looks for what ran before",
        )
        .hint("try again in a moment"));
    }
    let found = SessionHandle::find(agent, application, id).ok_or_else(|| no_session(id))?;
    Ok(SessionLocation::Here(found))
}

fn away(node: &NodeId) -> Problem {
    let detail = format!("node {node}, on which the command runs, is not reached");
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "node_away", detail)
        .hint("the command goes on there; see `cortex nodes`, and attach again")
}

async fn call(api: &Api, node: &NodeId, id: &str, ask: CallKind) -> Result<BoxedStream, Problem> {
    let peers = api.peers.as_ref().ok_or_else(|| away(node))?;
    calls::call(&**peers, node, ask).await.map_err(|error| match error.is::<CallRefused>() {
        true => no_session(id),
        false => away(node),
    })
}

/// `POST /v1/apps/NAME/sessions/ID/attach`: becomes a stream on which the session goes on.
pub async fn attach(
    State(api): State<Shared>,
    Path((name, id)): Path<(String, String)>,
    Extension(caller): Extension<Caller>,
    mut request: Request,
) -> Result<Response, Problem> {
    run::check_protocol(&request)?;
    let app = records::require(&*api.store, &name).await?;
    let location = find(&api, &app.name, &id)?;
    let by = caller.name();
    let far = match &location {
        SessionLocation::Here(_) => None,
        SessionLocation::There(node) => {
            let (application, session) = (app.name.clone(), id.clone());
            let ask = CallKind::Attach { application, session, by: by.clone() };
            Some(call(&api, node, &id, ask).await?)
        }
    };
    let node = match &location {
        SessionLocation::Here(_) => api.node.clone(),
        SessionLocation::There(node) => node.clone(),
    };
    let upgrade = hyper::upgrade::on(&mut request);
    let carried = Carried { api, caller, application: app.name, session: id };
    runtime::task::spawn(async move {
        let Ok(upgraded) = upgrade.await else { return };
        let client: BoxedStream = Box::new(TokioIo::new(upgraded));
        let end = match (location, far) {
            (SessionLocation::Here(session), _) => {
                one_off::attach(session, &by, client).await.unwrap_or(CarryEnd::Session)
            }
            (SessionLocation::There(node), Some(far)) => {
                carry(client, far, &node, carried.api.peers.clone()).await
            }
            (SessionLocation::There(_), None) => CarryEnd::Session,
        };
        carried.ended(end).await;
    });
    run::switching(&node)
}

/// `DELETE /v1/apps/NAME/sessions/ID`: ends the command.
pub async fn stop(
    State(api): State<Shared>,
    Path((name, id)): Path<(String, String)>,
) -> Result<Json<()>, Problem> {
    let app = records::require(&*api.store, &name).await?;
    match find(&api, &app.name, &id)? {
        SessionLocation::Here(session) => {
            session.stop().await.map_err(|error| Problem::internal(format!("{error:#}")))?;
        }
        SessionLocation::There(node) => {
            let (application, session) = (app.name, id.clone());
            call(&api, &node, &id, CallKind::StopSession { application, session }).await?;
        }
    }
    Ok(Json(()))
}

/// A client whose stream is carried, and what follows when it is gone.
pub struct Carried {
    pub api: Shared,
    pub caller: Caller,
    pub application: ApplicationName,
    pub session: String,
}

impl Carried {
    /// Has the command hung up if the client cannot come back. A client elsewhere that was cut off
    /// can, as long as its token is good; a connection on this machine is not cut, so that its
    /// client has ended.
    pub async fn ended(self, end: CarryEnd) {
        if end == CarryEnd::Session {
            return;
        }
        let at_once = match self.caller.token_on_record() {
            None => false,
            Some((hash, _)) => {
                let found = find_token(&self.api.store, hash, self.api.now()).await;
                if matches!(found, Ok((TokenState::Valid, ..)) | Err(_)) {
                    return;
                }
                true
            }
        };
        let (application, session) = (self.application, self.session);
        match find(&self.api, &application, &session) {
            Ok(SessionLocation::Here(session)) => one_off::abandon(session, at_once).await,
            Ok(SessionLocation::There(node)) => {
                let id = session.clone();
                let ask = CallKind::AbandonSession { application, session, at_once };
                call(&self.api, &node, &id, ask).await.ok();
            }
            Err(_) => {}
        }
    }
}

/// Carries bytes both ways until one side ends or that node is lost.
pub async fn carry(
    client: BoxedStream,
    far: BoxedStream,
    node: &NodeId,
    peers: Option<Arc<Peers>>,
) -> CarryEnd {
    let lost = async {
        match &peers {
            // `wait_for` also returns when the sender is gone, as this node is ending then.
            Some(peers) => {
                drop(peers.alive().wait_for(|alive| !alive.contains(node)).await);
            }
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        end = one_off::carry(client, far) => end,
        () = lost => CarryEnd::Session,
    }
}

/// Returns the commands that run on this node, or have ended and are kept.
pub fn here(agent: Option<&Arc<AgentContext>>) -> Vec<OneOffSession> {
    agent.map(|agent| agent.one_offs.list()).unwrap_or_default()
}

/// Returns the commands of all nodes that answer, with their nodes.
pub async fn everywhere(api: &Api) -> Vec<(NodeId, OneOffSession)> {
    let mut all: Vec<(NodeId, OneOffSession)> = Vec::new();
    all.extend(here(api.agent.as_ref()).into_iter().map(|one| (api.node.clone(), one)));
    let Some(peers) = &api.peers else { return all };
    let nodes: Vec<NodeId> = peers.alive().borrow().iter().cloned().collect();
    let others = nodes.into_iter().filter(|node| *node != api.node).map(|node| async move {
        let asked = async {
            let mut stream = calls::call(&**peers, &node, CallKind::Sessions).await?;
            calls::receive::<Vec<OneOffSession>>(&mut stream).await
        };
        let listed = timeout(LISTING_TIME_MAX, asked).await.ok();
        // A node of an earlier version does not understand the question.
        let listed = listed.and_then(Result::ok).flatten().unwrap_or_default();
        listed.into_iter().map(|one| (node.clone(), one)).collect::<Vec<_>>()
    });
    all.extend(join_all(others).await.into_iter().flatten());
    all
}

/// Returns a session as a row among the processes of its application.
pub fn row(
    app: &records::ApplicationRecords,
    node: &NodeId,
    session: OneOffSession,
) -> InstanceRow {
    let state = match (&session.ended, session.pid) {
        (Some(_), _) => "stopped",
        (None, Some(_)) => "ready",
        (None, None) => "starting",
    };
    let reason = match &session.ended {
        Some(how) => format!("{how}: {}", session.command),
        None => session.command,
    };
    InstanceRow {
        application: app.name.to_string(),
        process: "run".into(),
        slot: session.number,
        node: node.to_string(),
        pid: session.pid,
        port: None,
        ports: Default::default(),
        release: app.label(&session.release),
        state: state.into(),
        started_at: Some(records::rfc3339(session.started_at)),
        memory_bytes: None,
        restarts: 0,
        reason: Some(reason),
        session: Some(SessionRow {
            id: session.id,
            by: session.by,
            attached: session.clients > 0,
            detached: session.detached,
        }),
    }
}
