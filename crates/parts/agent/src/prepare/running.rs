//! The steps that run on this node now, so that none outlives a node that is stopped.

use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::ensure;
use tokio::sync::Mutex;

use crate::launcher::{Held, Launcher};
use shim::spec::LaunchSpec;

/// The time between SIGTERM and SIGKILL: a step that was cut short is repeated; it need not finish.
const GRACE: Duration = Duration::from_secs(2);
/// The maximum wait for steps to end: SIGKILL has come long before; only the kernel could hold them
/// that long.
const END_TIME_MAX: Duration = Duration::from_secs(10);

#[derive(Default)]
pub struct RunningSteps {
    steps: Mutex<Steps>,
}

#[derive(Default)]
struct Steps {
    is_closed: bool,
    held: Vec<Weak<dyn Held>>,
}

impl RunningSteps {
    /// Launches steps one after the other, so that one which is being launched when all are stopped
    /// is known by then.
    pub async fn launch(
        &self,
        launcher: &dyn Launcher,
        spec: LaunchSpec,
    ) -> anyhow::Result<Arc<dyn Held>> {
        let mut steps = self.steps.lock().await;
        ensure!(!steps.is_closed, "the node is being stopped");
        let held: Arc<dyn Held> = launcher.launch(spec).await?.into();
        steps.held.retain(|one| one.strong_count() > 0);
        steps.held.push(Arc::downgrade(&held));
        Ok(held)
    }

    /// Stops all steps; nothing is launched after this.
    pub async fn stop_all(&self) {
        let held = {
            let mut steps = self.steps.lock().await;
            steps.is_closed = true;
            std::mem::take(&mut steps.held)
        };
        end_all(held.iter().filter_map(Weak::upgrade).collect()).await;
    }
}

/// Ends processes that nobody waits for any more; steps are safe to repeat.
pub async fn end_all(held: Vec<Arc<dyn Held>>) {
    let ends = held.into_iter().map(|held| async move {
        held.stop(GRACE).await.ok();
        held.exit().wait_for(Option::is_some).await.ok();
        held.forget().await.ok();
    });
    let all = futures_util::future::join_all(ends);
    if tokio::time::timeout(END_TIME_MAX, all).await.is_err() {
        tracing::warn!("agent.tasks_left_running");
    }
}
