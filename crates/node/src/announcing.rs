//! What a node says of itself when it starts: its entry on the roster, its record, and the walls
//! that it can build.

use std::path::Path;

use anyhow::Context;
use cluster::roster;
use model::node::{Feature, NodeInfo};
use model::record::{self, RECORD_VERSION, Unknown};
use model::role::{Role, Roles};
use model::{NodeId, TypedKey, Wall, Walls};
use runtime::driver::Clock;
use store::SharedStore;

use crate::{NodeConfig, agreement, platform};

/// Puts this node on the roster and writes its record.
pub async fn announce(
    store: SharedStore,
    config: &NodeConfig,
    node: &NodeId,
    roles: Roles,
    clock: Clock,
    enters: bool,
) -> anyhow::Result<()> {
    if enters && !roster::was_ever_entered(&*store, node).await? {
        let entry = TypedKey::Member(node.clone());
        roster::enter(&*store, entry, node, Vec::new(), None, clock.now()).await?;
    }
    let walls = if roles.has(Role::Agent) { walls().await? } else { Vec::new() };
    let system = rustix::system::sysinfo();
    let info = NodeInfo {
        v: RECORD_VERSION,
        hostname: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        version: env!("CARGO_PKG_VERSION").into(),
        cores: std::thread::available_parallelism()
            .map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX)),
        memory_bytes: system.totalram.saturating_mul(u64::from(system.mem_unit)),
        platform: platform::of_this_machine().into(),
        started_at: clock.now(),
        http: config.http.to_string(),
        roles,
        walls,
        features: Feature::words(),
        unknown: Unknown::new(),
    };
    let key = TypedKey::NodeInfo(node.clone()).key();
    store.set(key, record::encode(&info).into()).await.context("the node's record")?;
    agreement::keep(&store, config, node, clock).await
}

/// Returns the walls that this machine can build, by trying.
async fn walls() -> anyhow::Result<Vec<String>> {
    let attempt = |wall| shim::sandbox::attempt::run(Path::new(os::binaries::OWN_BINARY), wall);
    let try_all = move || {
        let able = |wall: &Wall| {
            let tried = attempt(*wall);
            if let Err(error) = &tried {
                tracing::warn!(wall = wall.word(), error = format!("{error:#}"), "node.no_wall");
            }
            tried.is_ok()
        };
        // Where one of these cannot be built, the next cannot.
        let walls = [Wall::Standard, Wall::Full, Wall::FullEgress];
        let built = walls.into_iter().take_while(able);
        Walls::from_iter([Wall::Landlock].into_iter().filter(able).chain(built)).words()
    };
    Ok(runtime::task::spawn_blocking(try_all).await?)
}
