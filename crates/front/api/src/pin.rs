//! The node on which an application with persistent files runs, which is the one that has them.
//! Shows it, and asks for the files to be moved; the nodes concerned do that (`agent::moving`).

use axum::Json;
use axum::extract::{Path, State};
use model::application::{Holder, Move, MovePhase};
use model::record::{RECORD_VERSION, Unknown};
use model::{NodeId, RolloutPhase, TypedKey};
use schemars::JsonSchema;
use serde::Deserialize;

use super::json_body::JsonBody;
use super::nodes::ClusterView;
use super::problem::Problem;
use super::records::{self, ApplicationRecords};
use super::{Api, Shared};
use api_types::{MoveShown, PinShown};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct PinAsked {
    node: String,
    #[serde(default)]
    without_files: bool,
}

pub async fn show(
    State(api): State<Shared>,
    Path(app): Path<String>,
) -> Result<Json<PinShown>, Problem> {
    Ok(Json(shown(&api, &app).await?))
}

async fn shown(api: &Api, app: &str) -> Result<PinShown, Problem> {
    let name = records::require(&*api.store, app).await?.name;
    let moving: Option<Move> = records::read(&*api.store, TypedKey::Move(name)).await?;
    // The application is read after the move; otherwise a move that ends here would show as over
    // with its files where they were before.
    let app = records::require(&*api.store, app).await?;
    let moving = moving.map(|moving| MoveShown {
        to: moving.to.to_string(),
        phase: match moving.phase {
            MovePhase::Asked => "asked",
            MovePhase::Copying => "copying",
            MovePhase::Stopped => "stopped",
            MovePhase::Failed => "failed",
        }
        .into(),
        message: moving.message,
    });
    Ok(PinShown {
        application: app.name.to_string(),
        holder: app.tied_to().map(ToString::to_string),
        moving,
    })
}

pub async fn pin(
    State(api): State<Shared>,
    Path(app): Path<String>,
    JsonBody(asked): JsonBody<PinAsked>,
) -> Result<Json<PinShown>, Problem> {
    {
        let _changing = api.changes.lock().await;
        let app = records::require(&*api.store, &app).await?;
        let cluster = ClusterView::read(&api).await?;
        let to = cluster.find(&asked.node)?;
        let Some(holder) = app.tied_to().cloned() else { return Err(not_tied(&app)) };
        if holder != to {
            check(&app, &cluster, &to)?;
            match asked.without_files {
                true => start_anew(&api, &app, &cluster, &holder, &to).await?,
                false => ask(&api, &app, &cluster, &holder, &to).await?,
            }
        }
    }
    Ok(Json(shown(&api, &app).await?))
}

fn not_tied(app: &ApplicationRecords) -> Problem {
    let name = &app.name;
    let what = format!("{name} keeps no files on one node: it runs wherever there is room");
    let hint = match app.rollout {
        None => format!("push it first: `cortex push -a {name}`"),
        Some(_) => "'persist' in cortex.toml says what outlives a release".into(),
    };
    Problem::conflict("not_tied", what).hint(hint)
}

fn check(app: &ApplicationRecords, cluster: &ClusterView, to: &NodeId) -> Result<(), Problem> {
    if !cluster.takes(to) {
        let what = format!("node {} is down or drained", cluster.called(to));
        return Err(Problem::conflict("node_takes_nothing", what).hint(format!(
            "start it, or use it again with `cortex nodes activate {to}`; see `cortex nodes`"
        )));
    }
    let wall = app.serving().and_then(|release| app.wall_of(release));
    if !cluster.can_build(to, wall) {
        let what = format!("node {} cannot build the wall that it asks for", cluster.called(to));
        return Err(Problem::conflict("no_wall", what)
            .hint("`cortex doctor` on that node says what to do about it"));
    }
    let under_way = app
        .rollout
        .as_ref()
        .is_some_and(|rollout| !matches!(rollout.phase, RolloutPhase::Done | RolloutPhase::Failed));
    if under_way {
        let what = format!("a release of {} is being rolled out", app.name);
        return Err(Problem::conflict("rollout_under_way", what)
            .hint(format!("try again when it is over: `cortex info -a {}`", app.name)));
    }
    Ok(())
}

/// Makes another node the holder without the files, as the user decided: the application begins
/// with whatever files there are.
async fn start_anew(
    api: &Api,
    app: &ApplicationRecords,
    cluster: &ClusterView,
    holder: &NodeId,
    to: &NodeId,
) -> Result<(), Problem> {
    if !api.is_lost(holder) {
        let what = format!("node {}, which holds its files, is alive", cluster.called(holder));
        return Err(Problem::conflict("holder_alive", what)
            .hint("leave out --without-files, and they are moved along"));
    }
    let holder = Holder {
        v: RECORD_VERSION,
        node: to.clone(),
        since: api.now(),
        created_at: Some(app.spec.created_at),
        unknown: Unknown::new(),
    };
    records::write(&*api.store, TypedKey::Holder(app.name.clone()), &holder).await?;
    api.store.delete(TypedKey::Move(app.name.clone()).key()).await?;
    Ok(())
}

async fn ask(
    api: &Api,
    app: &ApplicationRecords,
    cluster: &ClusterView,
    holder: &NodeId,
    to: &NodeId,
) -> Result<(), Problem> {
    if api.peers.is_none() {
        let what = "nodes whose store is in etcd do not speak to each other";
        return Err(Problem::conflict("no_peers", what));
    }
    if api.is_lost(holder) {
        let what = format!("node {}, which holds the files of {}, is not there", holder, app.name);
        return Err(Problem::conflict("holder_down", what).hint(format!(
            "start it; or, if it is gone for good, begin with no files: `cortex pin {} {to} \
             --without-files`",
            app.name
        )));
    }
    let key = TypedKey::Move(app.name.clone());
    let before: Option<Move> = records::read(&*api.store, key.clone()).await?;
    let before = before.filter(|before| before.phase != MovePhase::Failed);
    match before {
        Some(before) if before.to == *to && !api.is_lost(to) => return Ok(()),
        Some(before) if !api.is_lost(&before.to) => {
            let other = cluster.called(&before.to);
            let what = format!("its files are on their way to {other} already");
            return Err(Problem::conflict("being_moved", what)
                .hint(format!("`cortex pin {}` shows how far that is", app.name)));
        }
        _ => {}
    }
    let asked = Move {
        v: RECORD_VERSION,
        to: to.clone(),
        asked_at: api.now(),
        created_at: Some(app.spec.created_at),
        phase: MovePhase::Asked,
        message: None,
        unknown: Unknown::new(),
    };
    records::write(&*api.store, key, &asked).await
}
