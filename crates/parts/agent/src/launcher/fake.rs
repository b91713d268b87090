//! A launcher without shims, for tests of what stands on a launcher: real programs whose output
//! goes straight to the log. Nothing outlives it.

use std::fs::{self, OpenOptions};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use agent_core::application::Exit;
use anyhow::Context;
use async_trait::async_trait;
use model::Timestamp;
use model::instance::ProcessIdentity;
use model::port::InstancePorts;
use tokio::sync::watch;

use super::{Held, Launcher};
use os::observe::process::identity;
use shim::spec::{LaunchSpec, Purpose};

/// The interval at which a process is checked for its end.
const POLL: Duration = Duration::from_millis(5);
/// The maximum length of last words, in characters.
const WORDS_MAX: usize = 2000;

#[derive(Default)]
pub struct FakeLauncher {
    pub launches: AtomicUsize,
    /// While set, launches begin and do not end.
    pub paused: AtomicBool,
    running: Mutex<Vec<Arc<FakeHeld>>>,
}

struct FakeHeld {
    purpose: Purpose,
    process: ProcessIdentity,
    port: Option<u16>,
    ports: InstancePorts,
    exit: watch::Receiver<Option<Exit>>,
    child: Arc<Mutex<Child>>,
}

impl FakeHeld {
    /// Signals the child's own process group, unless the child was reaped.
    fn signal(&self, signal: rustix::process::Signal) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(child.try_wait(), Ok(None)) {
            let pid = rustix::process::Pid::from_child(&child);
            rustix::process::kill_process_group(pid, signal).ok();
        }
    }
}

#[async_trait]
impl Launcher for FakeLauncher {
    async fn launch(&self, spec: LaunchSpec) -> anyhow::Result<Box<dyn Held>> {
        self.launch_here(spec).await
    }

    /// Does nothing: no process outlives this launcher anyway.
    fn lease(&self, _limit: Option<Duration>) {}

    /// Returns what this very launcher started.
    async fn adopt(&self) -> anyhow::Result<Vec<Box<dyn Held>>> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(running.iter().map(|held| Box::new(Shared(held.clone())) as Box<dyn Held>).collect())
    }
}

impl FakeLauncher {
    async fn launch_here(&self, spec: LaunchSpec) -> anyhow::Result<Box<dyn Held>> {
        self.launches.fetch_add(1, Ordering::Relaxed);
        while self.paused.load(Ordering::Relaxed) {
            tokio::time::sleep(POLL).await;
        }
        if let Some(directory) = spec.log.parent() {
            fs::create_dir_all(directory)?;
        }
        let log = OpenOptions::new().append(true).create(true).open(&spec.log)?;
        let mut command = Command::new(&spec.argv[0]);
        command.args(&spec.argv[1..]).current_dir(&spec.directory).env_clear();
        command.envs(&spec.environment).stdin(Stdio::null()).process_group(0);
        command.stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().context("no process")?;
        let process = identity(child.id())?;
        let (child, (told, exit)) = (Arc::new(Mutex::new(child)), watch::channel(None));
        let (watched, path) = (child.clone(), spec.log.clone());
        std::thread::spawn(move || {
            let status = loop {
                let ended = watched.lock().unwrap_or_else(PoisonError::into_inner).try_wait();
                match ended {
                    Ok(None) => std::thread::sleep(POLL),
                    Ok(Some(status)) => break status,
                    Err(_) => return,
                }
            };
            told.send(Some(exit_of(status, &fs::read_to_string(path).unwrap_or_default()))).ok();
        });
        let LaunchSpec { purpose, port, ports, .. } = spec;
        let held = Arc::new(FakeHeld { purpose, process, port, ports, exit, child });
        self.running.lock().unwrap_or_else(PoisonError::into_inner).push(held.clone());
        Ok(Box::new(Shared(held)))
    }
}

impl Drop for FakeLauncher {
    fn drop(&mut self) {
        for held in self.running.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            held.signal(rustix::process::Signal::KILL);
        }
    }
}

fn exit_of(status: ExitStatus, output: &str) -> Exit {
    let how = match status.signal() {
        Some(signal) => format!("killed by signal {signal}"),
        None => format!("exit status {}", status.code().unwrap_or_default()),
    };
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    let code = code.and_then(|code| u8::try_from(code).ok());
    let skipped = output.chars().count().saturating_sub(WORDS_MAX);
    let last_words = output.chars().skip(skipped).collect();
    Exit { how, success: status.success(), code, last_words, ..Exit::default() }
}

struct Shared(Arc<FakeHeld>);

#[async_trait]
impl Held for Shared {
    fn purpose(&self) -> &Purpose {
        &self.0.purpose
    }

    fn started_at(&self) -> Timestamp {
        Timestamp(0)
    }

    fn process(&self) -> &ProcessIdentity {
        &self.0.process
    }

    fn port(&self) -> Option<u16> {
        self.0.port
    }

    fn ports(&self) -> &InstancePorts {
        &self.0.ports
    }

    fn exit(&self) -> watch::Receiver<Option<Exit>> {
        self.0.exit.clone()
    }

    async fn stop(&self, grace: Duration) -> anyhow::Result<()> {
        self.0.signal(rustix::process::Signal::TERM);
        let held = self.0.clone();
        runtime::task::spawn(async move {
            let mut exit = held.exit.clone();
            if tokio::time::timeout(grace, exit.wait_for(Option::is_some)).await.is_err() {
                held.signal(rustix::process::Signal::KILL);
            }
        });
        Ok(())
    }

    async fn signal(&self, signal: i32) -> anyhow::Result<()> {
        if let Some(signal) = rustix::process::Signal::from_named_raw(signal) {
            self.0.signal(signal);
        }
        Ok(())
    }

    async fn forget(&self) -> anyhow::Result<()> {
        Ok(())
    }
}
