//! The start of each contender: on a free port, with a directory of its own on the same disk, and
//! asked until it serves. The peers' configurations are beside this file.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::client::{Connection, TURN, etcd, postgres, resp, sqlite};
use super::contender::{Contender, Kind, ServerAddress};
use super::postgresql;
use crate::interrupted::Interrupted;
use crate::process::{Process, find, free_port, on_loopback, output_of};

pub const REDIS: &str = "redis-server";
pub const ETCD: &str = "etcd";
const REDIS_CONFIGURATION: &str = include_str!("redis.conf");
const ETCD_CONFIGURATION: &str = include_str!("etcd.yml");
/// The time limit for a server to serve, which may come after it accepts connections.
const READY_TIME_MAX: Duration = Duration::from_secs(30);
const READY_POLL: Duration = Duration::from_millis(20);
/// The turn of the first request, whose key no other turn has.
const READY_TURN: u64 = u64::MAX;

/// Starts a contender in a directory of its own within `directory`.
pub fn start(kind: Kind, directory: &Path, interrupted: &Interrupted) -> anyhow::Result<Contender> {
    let started = Site::new(directory.join(kind.name()), None)?.start(kind, interrupted);
    started.with_context(|| format!("{} was not started", kind.name()))
}

/// Starts a contender with at most so many open files, also in a directory of its own.
pub fn start_limited(
    kind: Kind,
    directory: &Path,
    descriptors: u64,
    interrupted: &Interrupted,
) -> anyhow::Result<Contender> {
    let place = directory.join(format!("{}-{descriptors}", kind.name()));
    let started = Site::new(place, Some(descriptors))?.start(kind, interrupted);
    started.with_context(|| format!("{} was not started with few descriptors", kind.name()))
}

/// What each contender is started with.
struct Site {
    directory: PathBuf,
    port: u16,
    /// The most open files; `None` for as many as are allowed.
    descriptors: Option<u64>,
}

impl Site {
    fn new(directory: PathBuf, descriptors: Option<u64>) -> anyhow::Result<Site> {
        fs::create_dir(&directory)?;
        Ok(Site { directory, port: free_port()?, descriptors })
    }

    fn start(self, kind: Kind, interrupted: &Interrupted) -> anyhow::Result<Contender> {
        match kind {
            Kind::Cortex => self.cortex(interrupted),
            Kind::CortexPair => self.cortex_pair(interrupted),
            Kind::Redis => self.redis(kind, "always", interrupted),
            Kind::RedisEverysec => self.redis(kind, "everysec", interrupted),
            Kind::RedisNo => self.redis(kind, "no", interrupted),
            Kind::Etcd => self.etcd(interrupted),
            Kind::Postgresql => self.postgresql(interrupted),
            Kind::Sqlite => self.sqlite(kind, "delete"),
            Kind::SqliteWal => self.sqlite(kind, "wal"),
        }
    }

    fn contender(
        &self,
        kind: Kind,
        version: String,
        place: ServerAddress,
        process: Process,
    ) -> Contender {
        Contender { kind, version, place, processes: vec![process], replica: None }
    }

    fn spawn(&self, kind: Kind, command: Command) -> anyhow::Result<Process> {
        let mut command = match self.descriptors {
            Some(descriptors) => limited(&command, descriptors),
            None => command,
        };
        Process::start_logging(kind.name(), &mut command, self.log())
    }

    fn address(&self) -> SocketAddr {
        on_loopback(self.port)
    }

    fn log(&self) -> PathBuf {
        self.directory.join("server.log")
    }

    fn configure(&self, name: &str, template: &str) -> anyhow::Result<PathBuf> {
        let directory = self.directory.to_str().context("the directory's name is not UTF-8")?;
        let path = self.directory.join(name);
        let text = template.replace("@PORT@", &self.port.to_string()).replace("@DIR@", directory);
        fs::write(&path, text)?;
        Ok(path)
    }

    /// Waits until a whole turn succeeds: a server that accepts may not serve yet.
    fn serve<C: Connection>(
        &self,
        mut process: Process,
        interrupted: &Interrupted,
    ) -> anyhow::Result<Process> {
        process.wait_for(self.address(), interrupted)?;
        let deadline = Instant::now() + READY_TIME_MAX;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let local = tokio::task::LocalSet::new();
        loop {
            let turn = async {
                let mut connection = C::open(self.address(), false).await?;
                for action in TURN {
                    connection.perform(action, READY_TURN).await?;
                }
                connection.close().await;
                anyhow::Ok(())
            };
            let left = deadline.saturating_duration_since(Instant::now());
            let ended =
                runtime.block_on(local.run_until(async { tokio::time::timeout(left, turn).await }));
            let error = match ended {
                Ok(Ok(())) => return Ok(process),
                Ok(Err(error)) => error,
                Err(_) => anyhow::anyhow!("no answer"),
            };
            interrupted.check()?;
            ensure!(Instant::now() < deadline, "not ready after {READY_TIME_MAX:?}: {error:#}");
            std::thread::sleep(READY_POLL);
        }
    }

    fn cortex_command(&self) -> anyhow::Result<Command> {
        let mut command = Command::new(crate::cortex()?);
        command.args(["store", "serve", "--redis", &self.address().to_string(), "--data-dir"]);
        command.arg(self.data());
        Ok(command)
    }

    fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    fn cortex(self, interrupted: &Interrupted) -> anyhow::Result<Contender> {
        let process = self.spawn(Kind::Cortex, self.cortex_command()?)?;
        let process = self.serve::<resp::Resp>(process, interrupted)?;
        let place = ServerAddress::Resp(self.address());
        Ok(self.contender(Kind::Cortex, crate::version(), place, process))
    }

    /// Creates an invitation; retries, as the API may come up a moment after the Redis port.
    fn invitation(&self, interrupted: &Interrupted) -> anyhow::Result<String> {
        let deadline = Instant::now() + READY_TIME_MAX;
        loop {
            let mut invite = Command::new(crate::cortex()?);
            invite.args(["store", "invite", "--data-dir"]).arg(self.data());
            match output_of(&mut invite) {
                Ok(token) => return Ok(token),
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => interrupted.check()?,
            }
            std::thread::sleep(READY_POLL);
        }
    }

    /// Starts two nodes, each with its own data; the load goes to the first.
    fn cortex_pair(self, interrupted: &Interrupted) -> anyhow::Result<Contender> {
        let mut command = self.cortex_command()?;
        command.args(["--listen", &on_loopback(free_port()?).to_string()]);
        let first = self.spawn(Kind::CortexPair, command)?;
        let first = self.serve::<resp::Resp>(first, interrupted)?;
        let token = self.invitation(interrupted)?;

        let other = Site::new(self.directory.join("other"), None)?;
        let mut command = other.cortex_command()?;
        command.args(["--listen", &on_loopback(free_port()?).to_string()]);
        command.args(["--join", token.trim()]);
        let second = other.spawn(Kind::CortexPair, command)?;
        let second = other.serve::<resp::Resp>(second, interrupted)?;
        Ok(Contender {
            kind: Kind::CortexPair,
            version: crate::version(),
            place: ServerAddress::Resp(self.address()),
            processes: vec![first, second],
            replica: Some(other.address()),
        })
    }

    fn redis(
        self,
        kind: Kind,
        fsync: &str,
        interrupted: &Interrupted,
    ) -> anyhow::Result<Contender> {
        let program = find(REDIS).context("redis-server is gone")?;
        let template = REDIS_CONFIGURATION.replace("@FSYNC@", fsync);
        let configuration = self.configure("redis.conf", &template)?;
        let mut command = Command::new(&program);
        command.arg(configuration);
        let process = self.spawn(kind, command)?;
        let process = self.serve::<resp::Resp>(process, interrupted)?;
        // The output looks like `Redis server v=7.0.15 sha=…`.
        let output = output_of(Command::new(program).arg("--version"))?;
        let version = output.split_whitespace().find_map(|word| word.strip_prefix("v="));
        let place = ServerAddress::Resp(self.address());
        Ok(self.contender(kind, version.unwrap_or("unknown").into(), place, process))
    }

    fn etcd(self, interrupted: &Interrupted) -> anyhow::Result<Contender> {
        let program = find(ETCD).context("etcd is gone")?;
        let template = ETCD_CONFIGURATION.replace("@PEER@", &free_port()?.to_string());
        let configuration = self.configure("etcd.yml", &template)?;
        let mut command = Command::new(&program);
        command.arg("--config-file").arg(configuration);
        let process = self.spawn(Kind::Etcd, command)?;
        let process = self.serve::<etcd::Etcd>(process, interrupted)?;
        let version = etcd::version(&output_of(Command::new(program).arg("--version"))?)?;
        Ok(self.contender(Kind::Etcd, version, ServerAddress::Etcd(self.address()), process))
    }

    fn postgresql(self, interrupted: &Interrupted) -> anyhow::Result<Contender> {
        let server = postgresql::Server::find()?;
        server.initialise(&self.directory)?;
        let command = server.command(&self.directory, self.port);
        let mut process = self.spawn(Kind::Postgresql, command)?;
        process.wait_for(self.address(), interrupted)?;
        postgresql::create_table(self.address(), interrupted)?;
        let process = self.serve::<postgres::Postgres>(process, interrupted)?;
        let version = server.version()?;
        Ok(self.contender(
            Kind::Postgresql,
            version,
            ServerAddress::Postgres(self.address()),
            process,
        ))
    }

    fn sqlite(self, kind: Kind, journal: &str) -> anyhow::Result<Contender> {
        let file = self.directory.join("kv.db");
        sqlite::prepare(&file, journal)?;
        let version = sqlite::version();
        let (place, processes) = (ServerAddress::Sqlite(file), Vec::new());
        Ok(Contender { kind, version, place, processes, replica: None })
    }
}

/// Returns whether `cortex store serve` takes this option; a build may lack it.
pub fn serves_with(option: &str) -> bool {
    let help = crate::cortex()
        .and_then(|program| output_of(Command::new(program).args(["store", "serve", "--help"])));
    help.is_ok_and(|help| help.contains(option))
}

/// Returns the same command with a limit on open files that its process cannot raise.
fn limited(command: &Command, descriptors: u64) -> Command {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", &format!("ulimit -n {descriptors} && exec \"$@\""), "sh"]);
    shell.arg(command.get_program()).args(command.get_args());
    shell
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_placeholder_is_left_in_a_configuration() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().into();
        let site = Site { directory: path, port: 4321, descriptors: None };
        let templates = [
            REDIS_CONFIGURATION.replace("@FSYNC@", "always"),
            ETCD_CONFIGURATION.replace("@PEER@", "4322"),
        ];
        for template in templates {
            let text = fs::read_to_string(site.configure("conf", &template).unwrap()).unwrap();
            assert!(!text.contains('@') && text.contains("4321"), "{text}");
        }
    }
}
