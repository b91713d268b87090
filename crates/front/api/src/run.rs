//! `POST /v1/apps/NAME/run`: becomes a stream on which a command runs (`session`). Chooses the
//! node, and carries the stream there if that is another one.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, header};
use axum::response::Response;
use hyper_util::rt::TokioIo;
use model::{NodeId, Release};

use super::caller::Caller;
use super::problem::Problem;
use super::records::{self, ApplicationRecords};
use super::sessions::{self, Carried};
use super::{Shared, isolation};
use crate::calls;
use crate::calls::{CallKind, CallRefused};
use agent::AgentContext;
use agent::one_off;
use agent::one_off::{CarryEnd, Order};
use cluster::peers::Peers;
use runtime::members::BoxedStream;
use session_core::PROTOCOL;

/// The header that names the node that runs it.
const NODE_HEADER: &str = "cortex-node";

/// The node on which the command is to run.
enum CommandLocation {
    Here(Arc<AgentContext>),
    There(NodeId, BoxedStream),
}

pub async fn run(
    State(api): State<Shared>,
    Path(name): Path<String>,
    Extension(caller): Extension<Caller>,
    mut request: Request,
) -> Result<Response, Problem> {
    check_protocol(&request)?;
    let app = records::require(&*api.store, &name).await?;
    let release = release(&app)?;
    isolation::check(&api, &caller, app.isolation_of(&release)).await?;
    let by = caller.name();
    let session = sessions::fresh_id(&api.node)?;
    let mut order = Order { application: app.name.clone(), release, by, session };
    let place = place(&api, &app, &mut order).await?;
    let node = match &place {
        CommandLocation::Here(_) => api.node.clone(),
        CommandLocation::There(node, _) => node.clone(),
    };
    let upgrade = hyper::upgrade::on(&mut request);
    let (application, session) = (app.name.clone(), order.session.clone());
    let carried = Carried { api, caller, application, session };
    runtime::task::spawn(async move {
        let Ok(upgraded) = upgrade.await else { return };
        let client: BoxedStream = Box::new(TokioIo::new(upgraded));
        let end = match place {
            CommandLocation::Here(agent) => {
                one_off::serve(agent, order, client).await.unwrap_or(CarryEnd::Session)
            }
            CommandLocation::There(node, stream) => {
                sessions::carry(client, stream, &node, carried.api.peers.clone()).await
            }
        };
        carried.ended(end).await;
    });
    switching(&node)
}

/// Refuses a request for anything but the protocol of this version.
pub fn check_protocol(request: &Request) -> Result<(), Problem> {
    let asked = request.headers().get(header::UPGRADE);
    if asked.is_some_and(|asked| asked.as_bytes() == PROTOCOL.as_bytes()) {
        return Ok(());
    }
    let detail = format!("a command runs over a connection that is upgraded to {PROTOCOL}");
    Err(Problem::new(StatusCode::UPGRADE_REQUIRED, "upgrade_required", detail)
        .hint("use `cortex run` of the node's own version"))
}

/// Returns the answer behind which the connection is a session's.
pub fn switching(node: &NodeId) -> Result<Response, Problem> {
    Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(header::CONNECTION, "upgrade")
        .header(header::UPGRADE, PROTOCOL)
        .header(NODE_HEADER, node.as_str())
        .body(Body::empty())
        .map_err(|error| Problem::internal(error.to_string()))
}

/// Returns the serving release, else the newest: a release that failed may wait for what is to be
/// run in it.
fn release(app: &ApplicationRecords) -> Result<Release, Problem> {
    let release = app.serving().or(app.current()).or(app.releases.last());
    release.cloned().ok_or_else(|| {
        let name = &app.name;
        Problem::conflict("no_release", format!("{name} has no release to run it in"))
            .hint(format!("push one with `cortex push -a {name}`"))
    })
}

/// Chooses where it runs: where its files are, else here if the release is built here, else on
/// another node that has it, else here once it is built.
async fn place(
    api: &Shared,
    app: &ApplicationRecords,
    order: &mut Order,
) -> Result<CommandLocation, Problem> {
    let tied = order.release.recipe.is_tied();
    let holder = app.holder.as_ref().map(|holder| &holder.node).filter(|_| tied);
    if let Some(holder) = holder.filter(|holder| **holder != api.node) {
        let away = || {
            Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "holder_away",
                format!("{} is waiting: {holder} holds its data and is not reached", app.name),
            )
            .hint("commands run where the files are: start that node, or see `cortex nodes`")
        };
        let peers = api.peers.as_ref().filter(|_| !api.is_lost(holder)).ok_or_else(away)?;
        return match call(peers, holder, order, true).await {
            Ok(stream) => Ok(CommandLocation::There(holder.clone(), stream)),
            Err(error) if error.is::<CallRefused>() => Err(refused(holder, &error)),
            Err(error) => Err(away().hint(format!("node {holder}: {error:#}"))),
        };
    }
    let agent = api.agent.clone();
    if let Some(agent) = &agent
        && agent.preparer.is_built(&app.name, &order.release)
    {
        return Ok(CommandLocation::Here(agent.clone()));
    }
    let mut failed = None;
    if let Some(peers) = &api.peers {
        for node in having(api, app, &order.release) {
            match call(peers, &node, order, agent.is_none()).await {
                Ok(stream) => return Ok(CommandLocation::There(node, stream)),
                Err(error) => failed = Some(refused(&node, &error)),
            }
        }
    }
    let nowhere = || {
        let detail = format!("no node that is there has the release of {}", app.name);
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "nowhere", detail)
            .hint("this node runs no applications: ask at one that does (`cortex nodes`)")
    };
    order.session = sessions::fresh_id(&api.node)?;
    agent.map(CommandLocation::Here).ok_or_else(|| failed.unwrap_or_else(nowhere))
}

fn refused(node: &NodeId, error: &anyhow::Error) -> Problem {
    let detail = format!("node {node} does not run it: {error:#}");
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "not_run", detail).hint("see `cortex nodes`")
}

/// Returns other nodes that are there: first those that run instances of the release, then its
/// coordinator.
fn having(api: &Shared, app: &ApplicationRecords, release: &Release) -> Vec<NodeId> {
    let mut nodes: Vec<NodeId> = Vec::new();
    let running = app.incarnations().filter(|(_, _, one)| one.release == release.id);
    let coordinator = app.rollout.as_ref().map(|rollout| &rollout.coordinator);
    for node in running.map(|(_, node, _)| node).chain(coordinator) {
        if *node != api.node && !api.is_lost(node) && !nodes.contains(node) {
            nodes.push(node.clone());
        }
    }
    nodes
}

/// Has another node run it; the session has its id from that node then.
async fn call(
    peers: &Peers,
    node: &NodeId,
    order: &mut Order,
    prepare: bool,
) -> anyhow::Result<BoxedStream> {
    let session = sessions::fresh_id(node).map_err(|problem| anyhow::anyhow!("{problem:?}"))?;
    order.session.clone_from(&session);
    let Order { application, release, by, .. } = order.clone();
    let release = release.id;
    let ask = CallKind::RunSession { application, release, by, prepare, session };
    calls::call(peers, node, ask).await
}
