//! A process that another one has taken the node over from: it has let go of everything but the
//! connections that were under way, and passes their bytes on until they end by themselves, the
//! router's limit is over, or too many successors have come. For whatever started it, it stands for
//! the node meanwhile: it passes signals on, and ends when the node does.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, timeout};

use super::attend::{Below, Interrupts};
use super::succession::UnderWay;
use os::finishing::Finishing;
use os::layout::DataDirectory;

/// The interval at which it looks whether later processes need its place.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The time that is left for what is under way when the node was stopped, or a later process needs
/// this one's place. What it is for has taken long already, and those below end one after the
/// other.
const STOP_LIMIT: Duration = Duration::from_secs(2);
/// The longest wait for what was stopped, beyond its limit.
const STOPPED_MAX: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// Nothing is under way any more, or may be; the node is below this child.
    Finished(u32),
    /// The node has ended, with this exit code.
    WithNode(u8),
}

/// Finishes what was taken on before, while the process `node`, a child, runs the node.
pub async fn leave(
    layout: &DataDirectory,
    node: u32,
    interrupts: Interrupts,
    under_way: Vec<UnderWay>,
) -> anyhow::Result<Over> {
    let mut below = Below::watch(layout, node, interrupts)?;
    let finishing = Finishing::begin(&layout.finishing());
    if let Err(error) = &finishing {
        tracing::warn!(error = format!("{error:#}"), "upgrade.finishing_uncounted");
    }
    let (finish, stop) = parts(under_way);
    let mut done = tokio::task::spawn_blocking(|| finish.into_iter().for_each(|finish| finish()));
    let mut look = interval(LOOK_INTERVAL);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (over, limit) = loop {
        tokio::select! {
            _ = &mut done => return Ok(Over::Finished(below.child())),
            code = below.ended() => {
                // Whatever started this process is to start the next node at once if this failed.
                let limit = if code == 0 { STOP_LIMIT } else { Duration::ZERO };
                break (Over::WithNode(code), limit);
            }
            _ = look.tick() => {
                if finishing.as_ref().is_ok_and(|own| !own.may_go_on()) {
                    tracing::warn!("upgrade.makes_room");
                    break (Over::Finished(below.child()), STOP_LIMIT);
                }
            }
        }
    };
    stop.iter().for_each(|stop| stop(limit));
    timeout(limit + STOPPED_MAX, done).await.ok();
    Ok(over)
}

/// Leaves what is under way the time that it has when the node was stopped, and waits for it.
pub async fn stop(under_way: Vec<UnderWay>) {
    let (finish, stop) = parts(under_way);
    stop.iter().for_each(|stop| stop(STOP_LIMIT));
    let done = tokio::task::spawn_blocking(|| finish.into_iter().for_each(|finish| finish()));
    timeout(STOP_LIMIT + STOPPED_MAX, done).await.ok();
}

type Parts = (Vec<Box<dyn FnOnce() + Send>>, Vec<Box<dyn Fn(Duration) + Send>>);

fn parts(under_way: Vec<UnderWay>) -> Parts {
    under_way.into_iter().map(|one| (one.finish, one.stop)).unzip()
}
