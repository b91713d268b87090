//! Public ports of applications: which one an application gets, and which it has. Knows the
//! specifications and what releases ask for, and asks the operating system.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::ops::RangeInclusive;

use axum::extract::{Path, State};
use axum::{Extension, Json};
use model::port::{PortRecipe, Transport};
use model::{
    ApplicationName, ApplicationSpec, PortId, Release, ReleaseId, Rollout, RolloutPhase, TypedKey,
};
use schemars::JsonSchema;
use serde::Deserialize;

use super::audit::Underway;
use super::domains::DomainStanding;
use super::json_body::JsonBody;
use super::problem::Problem;
use super::records::ApplicationRecords;
use super::undo::parts;
use super::{Api, Shared, records};
use api_types::{ApplicationRow, PortRow, ServiceRow};

/// The ports that are given out when none is asked for: they begin where developers expect, and a
/// thousand applications are more than one machine runs.
const AUTOMATIC: RangeInclusive<u16> = 8000..=8999;

/// Returns a port for HTTP for `app`: the one asked for if it is free, else the first free one that
/// is not in `beside`, the ports that the application is to have as well.
pub async fn allot(
    api: &Api,
    app: &ApplicationName,
    asked: Option<u16>,
    beside: &[PortRecipe],
) -> Result<Option<u16>, Problem> {
    let taken = taken(api, app).await?;
    let is_free = |port: u16| {
        let id = PortId::tcp(port);
        !taken.contains_key(&id) && beside.iter().all(|one| one.id != id)
    };
    match asked {
        Some(port) => check(api, app, PortId::tcp(port), &taken).map(|()| Some(port)),
        None => AUTOMATIC
            .into_iter()
            .find(|port| is_free(*port) && can_bind(api, PortId::tcp(*port)).is_ok())
            .map(Some)
            .ok_or_else(|| {
                Problem::conflict(
                    "no_free_port",
                    format!("no port from {} to {} is free", AUTOMATIC.start(), AUTOMATIC.end()),
                )
                .hint("choose another with `apps create --port`, or as `port` in cortex.toml")
            }),
    }
}

/// Checks that `app` can have the port of HTTP of an earlier release again.
pub async fn check_http(
    api: &Api,
    app: &ApplicationRecords,
    port: Option<u16>,
) -> Result<(), Problem> {
    let Some(port) = port else { return Ok(()) };
    check(api, &app.name, PortId::tcp(port), &taken(api, &app.name).await?)
}

/// Checks that `app` can have the ports that a release asks for besides that of HTTP.
pub async fn check_services(
    api: &Api,
    app: &ApplicationRecords,
    ports: &[PortRecipe],
    http: Option<u16>,
) -> Result<(), Problem> {
    if ports.is_empty() {
        return Ok(());
    }
    let taken = taken(api, &app.name).await?;
    for port in ports {
        if http.map(PortId::tcp) == Some(port.id) {
            let hint = match app.spec.port_chosen {
                true => {
                    "a command chose it, so `port` in cortex.toml does not change it: choose \
                     another in [[ports]]"
                }
                false => "choose another in cortex.toml, as `port` or in [[ports]]",
            };
            return Err(Problem::conflict(
                "port_taken",
                format!("port {} is where this application answers HTTP", port.id),
            )
            .hint(hint));
        }
        check(api, &app.name, port.id, &taken)?;
    }
    Ok(())
}

/// Returns the application's ports besides HTTP, and why one is not open on this node.
pub fn services(api: &Api, name: &ApplicationName, release: &Release) -> Vec<ServiceRow> {
    let open = api.control.ports();
    let (ip, host) = (api.http.ip(), api.url_host());
    let row = |port: &PortRecipe| {
        let PortId { port: number, transport } = port.id;
        let (protocol, bound) = (transport.to_string(), SocketAddr::new(ip, number).to_string());
        let is_it = |one: &&PortRow| one.protocol == protocol && one.address == bound;
        let mut mine = open.iter().filter(|one| one.application.as_deref() == Some(name.as_str()));
        let mine = mine.find(is_it);
        ServiceRow {
            address: format!("{host}:{number}"),
            port: number,
            error: mine.and_then(|one| one.error.clone()),
            traffic: mine.and_then(|one| one.traffic),
            protocol,
            process: port.process.to_string(),
            env: port.env.clone(),
        }
    };
    release.recipe.ports.iter().map(row).collect()
}

#[derive(Debug, Deserialize, JsonSchema)]
pub struct PortChosen {
    port: u16,
}

/// Changes the port at which the application answers from now on.
pub async fn change(
    State(api): State<Shared>,
    Extension(entry): Extension<Underway>,
    Path(app): Path<String>,
    JsonBody(PortChosen { port }): JsonBody<PortChosen>,
) -> Result<Json<ApplicationRow>, Problem> {
    let _changing = api.changes.lock().await;
    let mut app = records::require(&*api.store, &app).await?;
    let before = app.spec.clone();
    app.spec.port = allot(&api, &app.name, Some(port), &[]).await?;
    app.spec.port_chosen = true;
    // One that is on its way must find its ports, too.
    for release in [app.serving(), app.current()].into_iter().flatten() {
        check_services(&api, &app, &release.recipe.ports, Some(port)).await?;
    }
    entry.describe(&app, api.now(), parts::of_spec(&before, &app.spec)).await?;
    records::write(&*api.store, TypedKey::Spec(app.name.clone()), &app.spec).await?;
    Ok(Json(app.row(&api)))
}

/// The owner of a port, and whether it keeps the port from the application that asks.
struct PortOwner {
    owner: ApplicationName,
    holds: bool,
}

/// Returns the ports that applications have, for HTTP or by a release that serves or is on its way.
async fn taken(
    api: &Api,
    asking: &ApplicationName,
) -> Result<BTreeMap<PortId, PortOwner>, Problem> {
    let (store, mut taken) = (&*api.store, BTreeMap::<PortId, PortOwner>::new());
    let rollout: Option<Rollout> = records::read(store, TypedKey::Rollout(asking.clone())).await?;
    let serves = DomainStanding::of(rollout.as_ref()) == DomainStanding::Serves;
    for name in records::names(store).await? {
        let spec: Option<ApplicationSpec> =
            records::read(store, TypedKey::Spec(name.clone())).await?;
        let Some(spec) = spec else { continue };
        let rollout: Option<Rollout> =
            records::read(store, TypedKey::Rollout(name.clone())).await?;
        let standing = DomainStanding::of(rollout.as_ref());
        // An application that never served keeps no port from one that serves.
        let weak = matches!(standing, DomainStanding::Failed | DomainStanding::Unreleased);
        let holds = name == *asking || !(serves && weak);
        for port in of_one(api, &name, &spec).await? {
            let known = taken.get(&port);
            if known.is_none_or(|known| known.owner != *asking && holds && !known.holds) {
                taken.insert(port, PortOwner { owner: name.clone(), holds });
            }
        }
    }
    Ok(taken)
}

/// Returns the other application that has this port; whether a program of the machine has it is for
/// routers to find out.
pub async fn owner_of(
    api: &Api,
    asking: &ApplicationName,
    id: PortId,
) -> Result<Option<ApplicationName>, Problem> {
    let owner = taken(api, asking).await?.remove(&id);
    Ok(owner.filter(|one| one.owner != *asking && one.holds).map(|one| one.owner))
}

/// Returns all ports of this application.
pub async fn of_one(
    api: &Api,
    name: &ApplicationName,
    spec: &ApplicationSpec,
) -> Result<BTreeSet<PortId>, Problem> {
    let mut ports: BTreeSet<PortId> = spec.port.map(PortId::tcp).into_iter().collect();
    let rollout: Option<Rollout> =
        records::read(&*api.store, TypedKey::Rollout(name.clone())).await?;
    for id in rollout.into_iter().flat_map(in_use) {
        let release: Option<Release> =
            records::read(&*api.store, TypedKey::Release(name.clone(), id)).await?;
        let Some(release) = release else { continue };
        ports.extend(spec.port_with(Some(&release.settings)).map(PortId::tcp));
        ports.extend(release.recipe.ports.iter().map(|port| port.id));
    }
    Ok(ports)
}

/// Returns whether this application has lost the port that it was given: while it did not serve,
/// another one came to serve there.
pub async fn has_lost_port(api: &Api, app: &ApplicationRecords) -> Result<bool, Problem> {
    let Some(port) = app.spec.port.map(PortId::tcp) else { return Ok(false) };
    if app.serving().is_some() {
        return Ok(false);
    }
    for name in records::names(&*api.store).await?.into_iter().filter(|name| *name != app.name) {
        let rollout: Option<Rollout> =
            records::read(&*api.store, TypedKey::Rollout(name.clone())).await?;
        let spec = records::read(&*api.store, TypedKey::Spec(name.clone())).await?;
        let Some(spec) =
            spec.filter(|_| DomainStanding::of(rollout.as_ref()) == DomainStanding::Serves)
        else {
            continue;
        };
        if of_one(api, &name, &spec).await?.contains(&port) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn in_use(rollout: Rollout) -> BTreeSet<ReleaseId> {
    let target = rollout.target.filter(|_| rollout.phase != RolloutPhase::Failed);
    rollout.serving.into_iter().chain(target).collect()
}

fn check(
    api: &Api,
    app: &ApplicationName,
    id: PortId,
    taken: &BTreeMap<PortId, PortOwner>,
) -> Result<(), Problem> {
    let port = match id.transport {
        Transport::Tcp => id.port.to_string(),
        Transport::Udp => id.to_string(),
    };
    match taken.get(&id) {
        // The application has the port already, so this node's router has bound it.
        Some(PortOwner { owner, holds }) if owner == app || !holds => return Ok(()),
        Some(PortOwner { owner, .. }) => {
            return Err(Problem::conflict(
                "port_taken",
                format!("port {port} belongs to the application '{owner}'"),
            )
            .hint("choose another (`apps create --port`, or in cortex.toml), or none to get a free one"));
        }
        None => {}
    }
    can_bind(api, id).map_err(|error| {
        let detail = format!("port {port} on {} cannot be used: {error}", api.http.ip());
        let hint = match error.kind() {
            std::io::ErrorKind::PermissionDenied => {
                "ports below 1024 belong to root; choose a higher one with --port"
            }
            _ => "another program listens there: stop it, or choose another port or none",
        };
        Problem::conflict("port_taken", detail).hint(hint)
    })
}

/// Tries to bind the port, without SO_REUSEPORT: with it, a second bind by the same user would
/// succeed unnoticed. Port 0 is refused, since it would be a different one every time.
fn can_bind(api: &Api, id: PortId) -> std::io::Result<()> {
    if id.port == 0 {
        return Err(std::io::Error::other("port 0 cannot be served; choose another number"));
    }
    let address = (api.http.ip(), id.port);
    match id.transport {
        Transport::Tcp => TcpListener::bind(address).map(drop),
        Transport::Udp => UdpSocket::bind(address).map(drop),
    }
}
