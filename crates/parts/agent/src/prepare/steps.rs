//! The build and release steps: run under shims, so that a killed node leaves nothing behind that
//! nobody holds, and within their cap.

use std::time::Duration;

use agent_core::application::{Exit, StepFailure, absent};
use model::release::Step;
use model::{ApplicationName, Release};
use tokio::time::Instant;

use super::isolation::Reach;
use super::{LaunchSpec, Preparer, Purpose, caps, failure, quiet};
use os::platform_log;

/// The time between SIGTERM and SIGKILL for a step that takes too long.
const STEP_GRACE: Duration = Duration::from_secs(5);
/// The place where a project says that its builds need more.
const SETTINGS: &str = "under [limits] in cortex.toml";

/// The kind of step that may reach the network as the node does.
pub(super) const BUILD: &str = "build";

impl Preparer {
    /// Runs steps one after the other; `kind` tells those of a build from others.
    pub(super) async fn steps(
        &self,
        application: &ApplicationName,
        release: &Release,
        kind: &str,
        steps: &[Step],
    ) -> Result<(), StepFailure> {
        let end = Instant::now() + caps::time_max(&release.settings.limits);
        for (number, step) in steps.iter().enumerate() {
            self.step(application, release, step, (kind, number), end).await?;
        }
        Ok(())
    }

    /// Runs one step. Kind and number are unique among the steps of one release.
    async fn step(
        &self,
        application: &ApplicationName,
        release: &Release,
        step: &Step,
        (kind, number): (&str, usize),
        end: Instant,
    ) -> Result<(), StepFailure> {
        let limits = &release.settings.limits;
        let log = self.layout.build_log(application, &release.id);
        let now = self.clock.now();
        platform_log::append(&log, now, &format!("-----> {}", step.name));
        let launch = async {
            let reach = Reach { builds: kind == BUILD, ..Reach::default() };
            let (mut environment, sandbox) = self.surroundings(application, release, reach).await?;
            if kind == BUILD {
                self.network.add_to(&mut environment);
            }
            let spec = LaunchSpec {
                purpose: Purpose::Task {
                    application: application.clone(),
                    name: format!("{kind}-{number}.{}", release.id),
                },
                // With `-e`, a compound command's first failure counts.
                argv: vec!["/bin/sh".into(), "-ec".into(), step.command.clone()],
                directory: self.directory(application, release),
                sandbox,
                environment,
                log: log.clone(),
                port: None,
                ports: Default::default(),
                cap: Some(caps::of_this_machine(limits)),
            };
            self.running.launch(&*self.launcher, spec).await
        };
        let held = launch.await.map_err(failure("starting a step"))?;
        let mut exits = held.exit();
        let ended = tokio::time::timeout_at(end, exits.wait_for(Option::is_some));
        let in_time = tokio::select! {
            ended = ended => ended.is_ok(),
            never = quiet::watch(log, held.process().pid, self.clock) => match never {},
        };
        if !in_time {
            held.stop(STEP_GRACE).await.map_err(failure("stopping a step that hangs"))?;
            exits.wait_for(Option::is_some).await.ok();
        }
        let exit = exits.borrow().clone();
        held.forget().await.ok();
        let how = match &exit {
            None => ": its shim was lost".into(),
            Some(Exit { over_cap: Some(excess), .. }) => over_cap(excess),
            Some(_) if !in_time => {
                let seconds = caps::time_max(limits).as_secs_f64();
                format!(
                    " was stopped: all steps together took longer than {seconds} s; raise it with \
                     build_time {SETTINGS}"
                )
            }
            Some(exit) if exit.success => return Ok(()),
            Some(exit) => match absent::advice(&exit.how, &exit.last_words) {
                Some(advice) => format!(" failed: {}; {advice}", exit.how),
                None => format!(" failed: {}", exit.how),
            },
        };
        let exit = exit.unwrap_or_default();
        let lacks_tool = exit.how == absent::NOT_FOUND;
        let why = format!("{}{how}", step.name);
        Err(StepFailure { why, last_words: exit.last_words, lacks_tool })
    }
}

fn over_cap(excess: &str) -> String {
    let advice = match excess.contains("memory") {
        true => format!("; raise it with build_memory {SETTINGS}"),
        false => ": run less at once".into(),
    };
    format!(" was stopped: the build {excess}{advice}")
}
