//! Which public port an application gets. Knows the specifications and asks the operating system.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::ops::RangeInclusive;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use model::{ApplicationName, ApplicationSpec, TypedKey};
use serde::Deserialize;

use super::problem::Problem;
use super::wire::ApplicationRow;
use super::{Api, Shared, parse, records};

/// Where ports are given out from when none is asked for: what developers expect, and a thousand
/// applications are more than one machine runs.
const AUTOMATIC: RangeInclusive<u16> = 8000..=8999;

/// A port for `app`: the one asked for if it is free, else the first free one.
pub async fn allot(
    api: &Api,
    app: &ApplicationName,
    asked: Option<u16>,
) -> Result<Option<u16>, Problem> {
    let taken = taken(api).await?;
    match asked {
        Some(port) => check(api, app, port, &taken).map(|()| Some(port)),
        None => AUTOMATIC
            .into_iter()
            .find(|port| !taken.contains_key(port) && can_bind(api, *port).is_ok())
            .map(Some)
            .ok_or_else(|| {
                Problem::conflict(
                    "no_free_port",
                    format!("no port from {} to {} is free", AUTOMATIC.start(), AUTOMATIC.end()),
                )
                .hint("choose another with `apps create --port`")
            }),
    }
}

#[derive(Debug, Deserialize)]
struct Chosen {
    port: u16,
}

/// From now on the application answers there.
pub async fn change(
    State(api): State<Shared>,
    Path(app): Path<String>,
    body: Bytes,
) -> Result<Json<ApplicationRow>, Problem> {
    let Chosen { port } = parse(&body)?;
    let _changing = api.changes.lock().await;
    let mut app = records::require(&*api.store, &app).await?;
    app.spec.port = allot(&api, &app.name, Some(port)).await?;
    app.spec.port_chosen = true;
    records::write(&*api.store, TypedKey::Spec(app.name.clone()), &app.spec).await?;
    Ok(Json(app.row(&api)))
}

async fn taken(api: &Api) -> Result<BTreeMap<u16, ApplicationName>, Problem> {
    let mut taken = BTreeMap::new();
    for name in records::names(&*api.store).await? {
        let spec: Option<ApplicationSpec> =
            records::read(&*api.store, TypedKey::Spec(name.clone())).await?;
        if let Some(port) = spec.and_then(|spec| spec.port) {
            taken.insert(port, name);
        }
    }
    Ok(taken)
}

fn check(
    api: &Api,
    app: &ApplicationName,
    port: u16,
    taken: &BTreeMap<u16, ApplicationName>,
) -> Result<(), Problem> {
    match taken.get(&port) {
        // It is bound already, by this node's router.
        Some(owner) if owner == app => return Ok(()),
        Some(owner) => {
            return Err(Problem::conflict(
                "port_taken",
                format!("port {port} belongs to the application '{owner}'"),
            )
            .hint("choose another (`apps create --port`, or in cortex.toml), or none to get a free one"));
        }
        None => {}
    }
    can_bind(api, port).map_err(|error| {
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

/// Without SO_REUSEPORT: with it a second bind by the same user would succeed unnoticed. Port 0
/// would be a different one every time.
fn can_bind(api: &Api, port: u16) -> std::io::Result<()> {
    if port == 0 {
        return Err(std::io::Error::other("0 is no port to be found at"));
    }
    TcpListener::bind((api.http.ip(), port)).map(drop)
}
