//! Runs one build or release step under a shim, so that a killed node leaves nothing behind that
//! nobody holds.

use std::time::Duration;

use agent::application::Failure;
use model::release::Step;
use model::{ApplicationName, Release};

use super::{LaunchSpec, Preparer, Purpose, failure};
use crate::agent::platform_log;

/// One that takes longer hangs; compiling large native packages takes minutes.
const STEP_MAX: Duration = Duration::from_secs(30 * 60);
/// Between SIGTERM and SIGKILL when it does.
const STEP_GRACE: Duration = Duration::from_secs(5);

impl Preparer {
    /// `name` is unique among the steps of one release.
    pub(super) async fn step(
        &self,
        application: &ApplicationName,
        release: &Release,
        step: &Step,
        name: &str,
    ) -> Result<(), Failure> {
        let log = self.layout.build_log(application, &release.id);
        let now = self.clock.now();
        platform_log::append(&log, now, &format!("-----> {}", step.name));
        let launch = async {
            let environment = self.environment(application, release).await?;
            let spec = LaunchSpec {
                purpose: Purpose::Task {
                    application: application.clone(),
                    name: format!("{name}.{}", release.id),
                },
                // A compound command's first failure counts.
                argv: vec!["/bin/sh".into(), "-ec".into(), step.command.clone()],
                directory: self.layout.release(application, &release.id),
                environment,
                log,
                port: None,
            };
            self.launcher.launch(spec).await
        };
        let held = launch.await.map_err(failure("starting a step"))?;
        let mut exits = held.exit();
        let ended = exits.wait_for(Option::is_some);
        let in_time = tokio::time::timeout(STEP_MAX, ended).await.is_ok();
        if !in_time {
            held.stop(STEP_GRACE).await.map_err(failure("stopping a step that hangs"))?;
            exits.wait_for(Option::is_some).await.ok();
        }
        let exit = exits.borrow().clone();
        held.forget().await.ok();
        match exit {
            Some(exit) if !in_time => Err(Failure {
                why: format!("{} took longer than {} s", step.name, STEP_MAX.as_secs()),
                last_words: exit.last_words,
            }),
            Some(exit) if exit.success => Ok(()),
            Some(exit) => Err(Failure {
                why: format!("{} failed: {}", step.name, exit.how),
                last_words: exit.last_words,
            }),
            None => Err(Failure {
                why: format!("{}: its shim was lost", step.name),
                last_words: String::new(),
            }),
        }
    }
}
