//! One run of a load: as fast as it is answered, by `wrk` or `h2load`, or at a fixed rate.

mod h2load;
mod paced;
mod sliced;
mod wrk;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::workload::{Over, Workload};
use crate::interrupted::Interrupted;
use crate::process::on_core;

/// The time that a program gets beyond the run itself, as it waits for the last answers.
const OVERTIME_MAX: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);

/// The percentiles that are reported.
const PERCENTILES: [f64; 2] = [0.5, 0.99];

/// The figures that the client saw.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    pub requests: u64,
    pub requests_per_second: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    /// The number of failed connections, reads, writes, time limits, and answers that were not the
    /// content.
    pub errors: u64,
}

pub struct Load<'a> {
    pub wrk: PathBuf,
    pub h2load: PathBuf,
    pub directory: &'a Path,
    /// The certificate of all contenders.
    pub certificate: PathBuf,
    pub core: Option<usize>,
    pub interrupted: &'a Interrupted,
}

impl Load<'_> {
    pub fn run(&self, workload: &Workload, port: u16, seconds: u32) -> anyhow::Result<Seen> {
        if workload.over != Over::Http2 {
            let text = self.output(wrk::command(&self.wrk, workload, port, seconds), seconds)?;
            return wrk::parse(&text)
                .with_context(|| format!("wrk's report was not understood: {text}"));
        }
        let command = h2load::command(&self.h2load, workload, port, seconds);
        self.http_2(command, seconds)?.whole(seconds)
    }

    /// Asks for so many requests a second, whichever contender answers.
    pub fn paced(
        &self,
        workload: &Workload,
        port: u16,
        per_second: f64,
        seconds: u32,
    ) -> anyhow::Result<Seen> {
        if workload.over != Over::Http2 {
            return paced::run(self, workload, port, per_second, seconds);
        }
        let mut command = h2load::command(&self.h2load, workload, port, seconds);
        command.arg(format!("--rps={}", per_second / f64::from(workload.connections)));
        self.http_2(command, seconds)?.sliced(seconds)
    }

    fn http_2(&self, mut command: Command, seconds: u32) -> anyhow::Result<h2load::Report> {
        let log = self.directory.join("h2load.log");
        command.arg(format!("--log-file={}", log.display()));
        let text = self.output(command, seconds)?;
        let lines = fs::read_to_string(&log).context("h2load's log")?;
        // `h2load` would append to an existing log.
        fs::remove_file(&log)?;
        h2load::Report::parse(&text, &lines)
    }

    /// Runs a command and returns what it printed.
    fn output(&self, mut command: Command, seconds: u32) -> anyhow::Result<String> {
        let name = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let started = on_core(self.core, || command.spawn())?;
        let mut child = started.with_context(|| format!("{name} cannot be started"))?;
        let limit = Duration::from_secs(seconds.into()) + OVERTIME_MAX;
        let result = self.wait(&mut child, &name, limit);
        if result.is_err() {
            child.kill().ok();
            child.wait()?;
        }
        let status = result?;
        let output = child.stdout.take().with_context(|| format!("{name} has no output"))?;
        let text = std::io::read_to_string(output)?;
        ensure!(status.success(), "{name} failed, {status}: {text}");
        Ok(text)
    }

    fn wait(&self, child: &mut Child, name: &str, limit: Duration) -> anyhow::Result<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            self.interrupted.check()?;
            ensure!(Instant::now() < deadline, "{name} did not end in {limit:?}");
            std::thread::sleep(POLL);
        }
    }
}
