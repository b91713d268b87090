//! Several nodes on this machine, each with an address of loopback and a data directory of its own.
//! The module starts them, uses them by command line and API, kills single ones, and kills all in
//! the end.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use serde::de::DeserializeOwned;

use super::lost;
use crate::interrupted::Interrupted;
use crate::process::output_of;
use api_types::{InstanceRow, NodeRow};
use client::Client;
use os::layout::DataDirectory;

/// The time limit for any state that is waited for: a machine that others use may stand still for
/// minutes.
pub const STATE_TIME_MAX: Duration = Duration::from_secs(300);
/// The pause between two looks at a state, and so the resolution of what is timed here.
const POLL: Duration = Duration::from_millis(20);
/// The pause between two looks at what is not timed: each look asks all nodes, on the processors
/// that are measured.
const QUIET_POLL: Duration = Duration::from_millis(250);
/// The time limit for an answer of a node's own API; one that takes longer counts as none.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);
/// The path of Python itself: a version manager puts a script before it that takes longer.
const SYSTEM_PYTHON: &str = "/usr/bin/python3";
/// The load that every node reports: all are on one machine, whose load is no reason to prefer any.
const LOAD: &str = "--load=20";

pub struct Cluster {
    members: Vec<Member>,
    runtime: tokio::runtime::Runtime,
    interrupted: Interrupted,
}

struct Member {
    id: String,
    http: SocketAddr,
    data: PathBuf,
    options: Vec<String>,
    child: Option<Child>,
}

/// What was lost with a node, and when.
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    pub at: Instant,
    pub processes: usize,
}

impl Cluster {
    /// Starts a node for each of `roles`, where `None` means all roles. The others ask the first to
    /// let them in.
    pub fn start(
        directory: &Path,
        roles: &[Option<&str>],
        interrupted: &Interrupted,
    ) -> anyhow::Result<Cluster> {
        fs::create_dir(directory)?;
        let directory = directory.canonicalize()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut cluster =
            Cluster { members: Vec::new(), runtime, interrupted: interrupted.clone() };
        for (place, roles) in roles.iter().enumerate() {
            eprintln!("node {} starts", place + 1);
            let join = match place {
                0 => None,
                _ => Some(cluster.invitation()?),
            };
            let address = address(place)?;
            let (http, listen) = (free_port(address)?, free_port(address)?);
            let mut options = vec![format!("--http={http}"), format!("--listen={listen}")];
            options.push(LOAD.into());
            options.extend(roles.map(|roles| format!("--roles={roles}")));
            let data = directory.join(format!("node{place}"));
            let (id, child) = (String::new(), None);
            cluster.members.push(Member { id, http, data, options, child });
            cluster.spawn(place, join.as_deref())?;
            cluster.await_api(place)?;
            let id = fs::read_to_string(cluster.members[place].data.join("node.id"))?;
            cluster.members[place].id = id.trim().into();
        }
        cluster.await_acquaintance()?;
        Ok(cluster)
    }

    pub fn size(&self) -> usize {
        self.members.len()
    }

    pub fn http(&self, member: usize) -> SocketAddr {
        self.members[member].http
    }

    pub fn id(&self, member: usize) -> &str {
        &self.members[member].id
    }

    pub fn interrupted(&self) -> &Interrupted {
        &self.interrupted
    }

    fn spawn(&mut self, place: usize, join: Option<&str>) -> anyhow::Result<()> {
        let member = &mut self.members[place];
        let log = OpenOptions::new().create(true).append(true).open(member.log())?;
        let mut command = Command::new(crate::cortex()?);
        command.args(["up", "--data-dir"]).arg(&member.data).args(&member.options);
        command.args(join.map(|word| format!("--join={word}")));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        member.child = Some(command.spawn().context("a node cannot be started")?);
        Ok(())
    }

    fn invitation(&self) -> anyhow::Result<String> {
        let line = self.wait("an invitation", || {
            output_of(self.command(0).args(["nodes", "invite"])).map(Some)
        })?;
        let word = line.trim().rsplit(' ').next().context("no word was printed")?;
        Ok(word.into())
    }

    /// Returns a command of that node's own command line.
    pub fn command(&self, member: usize) -> Command {
        // The link may lead to a newer program meanwhile, while this process goes on as it is.
        let mut command = Command::new(crate::cortex().unwrap_or_else(|_| "cortex".into()));
        command.arg("--data-dir").arg(&self.members[member].data).stdin(Stdio::null());
        command
    }

    fn get<T: DeserializeOwned>(&self, member: usize, path: &str) -> anyhow::Result<T> {
        let data = self.members[member].data.clone();
        // The node says in its data directory where its sockets are.
        let layout = DataDirectory::find(data.clone(), &data);
        let client = Client::new(&layout);
        self.runtime.block_on(async {
            tokio::time::timeout(ANSWER_TIME_MAX, client.get(path)).await.context("no answer")?
        })
    }

    /// Waits until `look` returns something; on a timeout the error has what `look` complained
    /// about last.
    pub fn wait<T>(
        &self,
        what: &str,
        look: impl FnMut() -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<T> {
        self.wait_looking(what, POLL, look)
    }

    fn wait_looking<T>(
        &self,
        what: &str,
        pause: Duration,
        mut look: impl FnMut() -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<T> {
        let deadline = Instant::now() + STATE_TIME_MAX;
        loop {
            self.interrupted.check()?;
            let wrong = match look() {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => anyhow!("it is not so"),
                Err(error) => error,
            };
            if Instant::now() > deadline {
                return Err(wrong.context(format!("{what}: not within {STATE_TIME_MAX:?}")));
            }
            std::thread::sleep(pause);
        }
    }

    fn await_api(&mut self, place: usize) -> anyhow::Result<()> {
        let deadline = Instant::now() + STATE_TIME_MAX;
        loop {
            self.interrupted.check()?;
            let member = &mut self.members[place];
            let ended = member.child.as_mut().map(Child::try_wait).transpose()?.flatten();
            if let Some(status) = ended {
                anyhow::bail!("a node ended at once, {status}: {}", member.last_words());
            }
            let alive = |rows: Vec<NodeRow>| rows.iter().any(|row| row.here);
            if self.get(place, "/v1/nodes").is_ok_and(alive) {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "a node did not come up");
            std::thread::sleep(POLL);
        }
    }

    /// Waits until all running nodes see all others as alive, and know their machines.
    pub fn await_acquaintance(&self) -> anyhow::Result<()> {
        let all: BTreeSet<&str> = self.members.iter().map(|member| member.id.as_str()).collect();
        for member in 0..self.members.len() {
            self.wait_looking("the nodes to know each other", QUIET_POLL, || {
                let rows: Vec<NodeRow> = self.get(member, "/v1/nodes")?;
                let known = rows.iter().filter(|row| row.state == "alive" && row.cores.is_some());
                let known: BTreeSet<&str> = known.map(|row| row.id.as_str()).collect();
                ensure!(known == all, "node {member} knows {known:?}");
                Ok(Some(()))
            })?;
        }
        Ok(())
    }

    pub fn rows(&self, member: usize, application: &str) -> anyhow::Result<Vec<InstanceRow>> {
        self.get(member, &format!("/v1/apps/{application}/ps"))
    }

    /// Returns the rows of an application if `count` slots are ready, as that member sees it. Rows
    /// for which `counts` is false are left out.
    pub fn ready(
        &self,
        member: usize,
        application: &str,
        count: usize,
        counts: impl Fn(&InstanceRow) -> bool,
    ) -> anyhow::Result<Option<Vec<InstanceRow>>> {
        let mut rows = self.rows(member, application)?;
        rows.retain(|row| row.state == "ready" && counts(row));
        let slots: BTreeSet<u32> = rows.iter().map(|row| row.slot).collect();
        ensure!(slots.len() == count, "{} of {count} slots are ready: {slots:?}", slots.len());
        Ok(Some(rows))
    }

    /// Waits until each slot runs once and is ready, in one release, and every node says the same.
    pub fn await_quiet(&self, application: &str, count: usize) -> anyhow::Result<Vec<InstanceRow>> {
        self.wait_looking("each slot to run once, as all nodes see it", QUIET_POLL, || {
            let mut seen = Vec::new();
            for member in 0..self.members.len() {
                let mut rows = self.rows(member, application)?;
                rows.sort_by_key(|row| row.slot);
                let ready = rows.iter().filter(|row| row.state == "ready");
                let slots: BTreeSet<u32> = ready.map(|row| row.slot).collect();
                let one = rows.windows(2).all(|pair| pair[0].release == pair[1].release);
                let exact = rows.len() == count && slots.len() == count && one;
                ensure!(exact, "node {member} sees {}", shown(&rows));
                seen.push(rows);
            }
            let places = |rows: &Vec<InstanceRow>| -> Vec<(String, Option<u32>)> {
                rows.iter().map(|row| (row.node.clone(), row.pid)).collect()
            };
            let agreed = seen.windows(2).all(|pair| places(&pair[0]) == places(&pair[1]));
            ensure!(agreed, "the nodes see different ones");
            Ok(seen.pop())
        })
    }

    /// Pushes through that member; an error says why it failed.
    pub fn push(&self, member: usize, project: &Path) -> anyhow::Result<()> {
        output_of(self.command(member).arg("push").arg(project)).map(drop)
    }

    /// Kills all processes of a member at once: the node, its shims and its instances.
    pub fn lose(&mut self, member: usize) -> anyhow::Result<Loss> {
        let lost = &mut self.members[member];
        let mut child = lost.child.take().context("that node does not run")?;
        let at = Instant::now();
        let processes = lost::kill_all(child.id(), &lost.data)?;
        child.wait()?;
        Ok(Loss { at, processes })
    }

    /// Starts a lost member as its machine would once its power is back.
    pub fn start_again(&mut self, member: usize) -> anyhow::Result<()> {
        self.spawn(member, None)?;
        self.await_api(member)?;
        self.await_acquaintance()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for member in &mut self.members {
            let Some(mut child) = member.child.take() else { continue };
            if let Err(error) = lost::kill_all(child.id(), &member.data) {
                eprintln!("{error:#}");
            }
            child.kill().ok();
            child.wait().ok();
        }
        for member in &self.members {
            let layout = DataDirectory::find(member.data.clone(), &member.data);
            fs::remove_dir_all(layout.sockets()).ok();
        }
    }
}

impl Member {
    fn log(&self) -> PathBuf {
        self.data.with_extension("log")
    }

    fn last_words(&self) -> String {
        let text = fs::read_to_string(self.log()).unwrap_or_default();
        text.lines().last().unwrap_or("it said nothing").into()
    }
}

fn shown(rows: &[InstanceRow]) -> String {
    let row =
        |row: &InstanceRow| format!("{}:{}:{}:{}", row.slot, row.node, row.release, row.state);
    rows.iter().map(row).collect::<Vec<_>>().join(" ")
}

/// Returns an address of this process's own part of loopback, so that measurements do not meet.
fn address(place: usize) -> anyhow::Result<Ipv4Addr> {
    let process = std::process::id();
    let last = u8::try_from(place + 1).context("so many nodes")?;
    Ok(Ipv4Addr::new(127, 64 + (process >> 8) as u8 % 128, process as u8, last))
}

fn free_port(address: Ipv4Addr) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind((address, 0))
        .with_context(|| format!("{address} is no address of this machine"))?;
    Ok(listener.local_addr()?)
}

/// Writes a project whose answers name its version, with `count` instances, each of which pauses
/// for `pause` per answer.
pub fn project(
    directory: &Path,
    name: &str,
    count: usize,
    pause: Duration,
) -> anyhow::Result<PathBuf> {
    let place = directory.join(format!("project-{name}"));
    fs::create_dir(&place)?;
    fs::write(place.join("page.py"), include_str!("page.py"))?;
    let python = if Path::new(SYSTEM_PYTHON).exists() { SYSTEM_PYTHON } else { "python3" };
    let command = format!("exec {python} -S page.py");
    fs::write(place.join("Procfile"), format!("web: {command}\n"))?;
    let pause = pause.as_secs_f64();
    let configuration = format!(
        "name = \"{name}\"\n\n[processes.web]\ncommand = \"{command}\"\n\
         count = {count}\n\n[env]\nPAUSE_SECONDS = \"{pause}\"\n"
    );
    fs::write(place.join("cortex.toml"), configuration)?;
    set_version(&place, 1)?;
    Ok(place)
}

pub fn set_version(project: &Path, version: u32) -> anyhow::Result<()> {
    Ok(fs::write(project.join("version.txt"), format!("{version}\n"))?)
}
