//! Routes: which instances serve which names now, for programs other than the router that bring
//! requests to them.

use axum::extract::State;
use axum::{Extension, Json};
use model::InstanceState;
use router_core::routes::{HOST_LENGTH_MAX, default_host, normalize};

use super::caller::Caller;
use super::problem::Problem;
use super::records::{self, ApplicationRecords};
use super::{Api, Shared, domains};
use api_types::{RouteInstance, RouteRow};

pub async fn list(
    State(api): State<Shared>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Vec<RouteRow>>, Problem> {
    let clashes = domains::clashes(&api).await?;
    let mut rows = Vec::new();
    let visible = caller.visible(&api.store).await?;
    let mut names = records::names(&*api.store).await?;
    names.retain(|name| visible.as_ref().is_none_or(|visible| visible.contains(name)));
    for name in names {
        if let Some(app) = records::find(&*api.store, &name).await? {
            let mut row = row(&api, &app.without_lost(&api));
            let other = |host: &String| clashes.iter().any(|one| one.is_lost_by(host, &name));
            row.hosts.retain(|host| !other(host));
            rows.push(row);
        }
    }
    Ok(Json(rows))
}

fn row(api: &Api, app: &ApplicationRecords) -> RouteRow {
    let serving = app.serving();
    let ready = app.incarnations().filter(|(id, _, one)| {
        id.process.is_web()
            && one.state == InstanceState::Ready
            && serving.is_some_and(|release| release.id == one.release)
    });
    let (mut instances, mut nodes) = (Vec::new(), Vec::new());
    for (id, node, one) in ready {
        if *node != api.node {
            nodes.push(node.to_string());
        } else if let Some(port) = one.port {
            instances.push(RouteInstance { slot: id.slot, port, concurrency: one.concurrency });
        }
    }
    nodes.sort();
    nodes.dedup();
    let files = serving.map(|release| &release.recipe.statics[..]).unwrap_or_default();
    RouteRow {
        application: app.name.to_string(),
        hosts: hosts(app),
        instances,
        nodes,
        files: files.iter().map(|mount| mount.prefix.clone()).collect(),
    }
}

fn hosts(app: &ApplicationRecords) -> Vec<String> {
    let mut hosts = vec![default_host(&app.name)];
    for domain in &app.spec.domains {
        let mut buffer = [0; HOST_LENGTH_MAX];
        let host = normalize(domain.as_bytes(), &mut buffer).map(str::to_owned);
        hosts.extend(host.filter(|host| !hosts.contains(host)));
    }
    hosts
}
