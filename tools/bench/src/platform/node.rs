//! A node that is started for a measurement and used by its command line alone.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;

use os::observe::process;

const START_TIMEOUT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);

pub struct BenchNode {
    binary: PathBuf,
    data: PathBuf,
    child: Child,
}

#[derive(Debug, Deserialize)]
pub struct Instance {
    pub pid: u32,
    pub state: String,
}

impl BenchNode {
    pub fn start(data: &Path) -> anyhow::Result<BenchNode> {
        let binary = crate::cortex()?;
        let http = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let child = Command::new(&binary)
            .args(["up", "--http", &http.to_string(), "--data-dir"])
            .arg(data)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("the node cannot be started")?;
        let node = BenchNode { binary, data: data.to_path_buf(), child };
        let deadline = Instant::now() + START_TIMEOUT;
        while node.command(&["status"]).is_err() {
            ensure!(Instant::now() < deadline, "the node did not come up");
            std::thread::sleep(POLL);
        }
        Ok(node)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Pushes a project and returns the URL that was printed.
    pub fn push(&self, source: &Path, name: &str) -> anyhow::Result<String> {
        let source = source.to_str().context("the temporary directory's name is not UTF-8")?;
        let output = self.command(&["push", source, "-a", name])?;
        let url = output.lines().find(|line| line.starts_with("http://"));
        Ok(url.with_context(|| format!("push printed no URL: {output}"))?.to_string())
    }

    pub fn destroy(&self, name: &str) -> anyhow::Result<()> {
        self.command(&["apps", "destroy", name]).map(drop)
    }

    /// Sets how many web instances are wanted.
    pub fn scale(&self, name: &str, count: u32) -> anyhow::Result<()> {
        self.command(&["scale", &format!("web={count}"), "-a", name]).map(drop)
    }

    /// Runs a command in an application that does nothing.
    pub fn run_nothing(&self, name: &str) -> anyhow::Result<()> {
        let run = ["run", "-a", name, "--data-dir"];
        let output = Command::new(&self.binary)
            .args(run)
            .arg(&self.data)
            .args(["--", "true"])
            .stdin(Stdio::null())
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "cortex run: {said}");
        Ok(())
    }

    /// Waits until all instances are ready, and returns them.
    pub fn instances(&self, name: &str) -> anyhow::Result<Vec<Instance>> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let output = self.command(&["ps", "-a", name, "--json"])?;
            let instances: Vec<Instance> = serde_json::from_str(&output).context("ps --json")?;
            if !instances.is_empty() && instances.iter().all(|one| one.state == "ready") {
                return Ok(instances);
            }
            ensure!(Instant::now() < deadline, "not all instances are ready: {instances:?}");
            std::thread::sleep(POLL);
        }
    }

    fn command(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = Command::new(&self.binary)
            .args(arguments)
            .arg("--data-dir")
            .arg(&self.data)
            .stdin(Stdio::null())
            .output()?;
        if !output.status.success() {
            bail!("cortex {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for BenchNode {
    fn drop(&mut self) {
        if self.command(&["down"]).is_err() {
            self.child.kill().ok();
        }
        self.child.wait().ok();
    }
}

/// Returns the sum of these fields of `/proc/PID/smaps_rollup`.
pub fn memory_kb(pid: u32, fields: &[&str]) -> anyhow::Result<u64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let file = fs::File::open(&path).with_context(|| path.clone())?;
    let mut sum = 0;
    for line in BufReader::new(file).lines() {
        let line = line?;
        let mut words = line.split_whitespace();
        if words.next().is_some_and(|field| fields.contains(&field)) {
            sum += words.next().unwrap_or_default().parse::<u64>().context("smaps_rollup")?;
        }
    }
    Ok(sum)
}

pub fn parent_of(pid: u32) -> anyhow::Result<u32> {
    Ok(process::stat(pid).with_context(|| format!("process {pid} is gone"))?.parent)
}

pub fn kill(pid: u32) -> anyhow::Result<()> {
    let pid = Pid::from_raw(i32::try_from(pid)?).context("no pid")?;
    Ok(kill_process(pid, Signal::KILL)?)
}
