//! Who is compared: how each is configured, started on a free port with a directory of its own on
//! the same disk, and what it can do. Stopped by its id when dropped.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::ValueEnum;
use serde::Serialize;

use super::client::{Connection, TURN, etcd, postgres, resp, sqlite};
use super::load::{self, Seen};
use super::postgresql;
use super::{Load, Mode};
use crate::bench::interrupted::Interrupted;
use crate::bench::process::{Process, find, free_port, on_loopback};

const REDIS: &str = "redis-server";
const ETCD: &str = "etcd";
const REDIS_CONFIGURATION: &str = include_str!("redis.conf");
const ETCD_CONFIGURATION: &str = include_str!("etcd.yml");
/// SQLite was so slow in the thesis that it got fewer turns, and `k > n` makes no sense.
const SQLITE_TURNS: u64 = 100;
/// With a write-ahead log it is quick enough for more, and fewer would measure its start.
const SQLITE_WAL_TURNS: u64 = 1000;
const SQLITE_WORKERS_MAX: usize = 100;
/// A server may accept before it serves.
const READY_TIME_MAX: Duration = Duration::from_secs(30);
const READY_POLL: Duration = Duration::from_millis(20);
/// This turn's key is no other's.
const READY_TURN: u64 = u64::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Redis with `appendfsync always`: as durable as this store
    Redis,
    /// Redis with `appendfsync everysec`
    RedisEverysec,
    /// Redis with `appendfsync no`
    RedisNo,
    Etcd,
    Postgresql,
    /// SQLite with its default journal
    Sqlite,
    /// SQLite with a write-ahead log
    SqliteWal,
}

pub const ALL: [Kind; 7] = [
    Kind::Redis,
    Kind::RedisEverysec,
    Kind::RedisNo,
    Kind::Etcd,
    Kind::Postgresql,
    Kind::Sqlite,
    Kind::SqliteWal,
];

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Redis => "redis",
            Kind::RedisEverysec => "redis-everysec",
            Kind::RedisNo => "redis-no",
            Kind::Etcd => "etcd",
            Kind::Postgresql => "postgresql",
            Kind::Sqlite => "sqlite",
            Kind::SqliteWal => "sqlite-wal",
        }
    }

    /// Why it cannot be compared here, with what to do about it.
    pub fn missing(self) -> Option<String> {
        let (found, package) = match self {
            Kind::Redis | Kind::RedisEverysec | Kind::RedisNo => {
                (find(REDIS).is_some(), "redis-server")
            }
            Kind::Etcd => (find(ETCD).is_some(), "etcd-server"),
            Kind::Postgresql => (postgresql::Server::is_installed(), "postgresql"),
            Kind::Sqlite | Kind::SqliteWal => return None,
        };
        (!found).then(|| format!("not installed; on Debian: apt-get install {package}"))
    }

    /// What it is given to do of what was asked for; none where it cannot or makes no sense.
    pub fn load(self, load: Load) -> Option<Load> {
        let sqlite = |turns: u64| {
            let fits = load.workers <= SQLITE_WORKERS_MAX && load.mode != Mode::Unawaited;
            fits.then(|| Load { turns: load.turns.min(turns), ..load })
        };
        match self {
            Kind::Sqlite => sqlite(SQLITE_TURNS),
            Kind::SqliteWal => sqlite(SQLITE_WAL_TURNS),
            Kind::Redis => Some(load),
            _ => (load.mode != Mode::Unawaited).then_some(load),
        }
    }
}

/// Where it answers, and in which protocol.
#[derive(Clone, Debug)]
enum Place {
    Resp(SocketAddr),
    Etcd(SocketAddr),
    Postgres(SocketAddr),
    Sqlite(PathBuf),
}

pub struct Contender {
    pub kind: Kind,
    pub version: String,
    place: Place,
    /// None for what runs inside this process.
    process: Option<Process>,
}

impl Contender {
    pub fn start(
        kind: Kind,
        directory: &Path,
        interrupted: &Interrupted,
    ) -> anyhow::Result<Contender> {
        let site = Site { directory: directory.join(kind.name()), port: free_port()? };
        fs::create_dir(&site.directory)?;
        let contender = match kind {
            Kind::Redis => site.redis(kind, "always", interrupted),
            Kind::RedisEverysec => site.redis(kind, "everysec", interrupted),
            Kind::RedisNo => site.redis(kind, "no", interrupted),
            Kind::Etcd => site.etcd(interrupted),
            Kind::Postgresql => site.postgresql(interrupted),
            Kind::Sqlite => site.sqlite(kind, "delete"),
            Kind::SqliteWal => site.sqlite(kind, "wal"),
        };
        contender.with_context(|| format!("{} was not started", kind.name()))
    }

    pub fn run(&self, load: Load, interrupted: &Interrupted) -> anyhow::Result<Seen> {
        let run = match &self.place {
            Place::Resp(address) if load.mode == Mode::Unawaited => {
                load::run_unawaited(*address, load, interrupted)
            }
            Place::Resp(address) => load::run::<resp::Resp>(*address, load, interrupted),
            Place::Etcd(address) => load::run::<etcd::Etcd>(*address, load, interrupted),
            Place::Postgres(address) => {
                load::run::<postgres::Postgres>(*address, load, interrupted)
            }
            Place::Sqlite(file) => load::run_sqlite(file, load, interrupted),
        };
        run.with_context(|| format!("the load on {}", self.kind.name()))
    }

    /// User and kernel time of the server; of this process where there is none.
    pub fn cpu_seconds(&self) -> anyhow::Result<f64> {
        match &self.process {
            Some(process) => Ok(process.usage()?.cpu_seconds),
            None => crate::bench::process::own_cpu_seconds(),
        }
    }
}

/// What each is given.
struct Site {
    directory: PathBuf,
    port: u16,
}

impl Site {
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

    /// Until a whole turn succeeds: whoever accepts may not serve yet.
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
        let process = Process::start_logging(kind.name(), &mut command, self.log())?;
        let process = self.serve::<resp::Resp>(process, interrupted)?;
        // `Redis server v=7.0.15 sha=…`
        let output = output_of(Command::new(program).arg("--version"))?;
        let version = output.split_whitespace().find_map(|word| word.strip_prefix("v="));
        Ok(Contender {
            kind,
            version: version.unwrap_or("unknown").into(),
            place: Place::Resp(self.address()),
            process: Some(process),
        })
    }

    fn etcd(self, interrupted: &Interrupted) -> anyhow::Result<Contender> {
        let program = find(ETCD).context("etcd is gone")?;
        let template = ETCD_CONFIGURATION.replace("@PEER@", &free_port()?.to_string());
        let configuration = self.configure("etcd.yml", &template)?;
        let mut command = Command::new(&program);
        command.arg("--config-file").arg(configuration);
        let process = Process::start_logging("etcd", &mut command, self.log())?;
        let process = self.serve::<etcd::Etcd>(process, interrupted)?;
        let version = etcd::version(&output_of(Command::new(program).arg("--version"))?)?;
        let place = Place::Etcd(self.address());
        Ok(Contender { kind: Kind::Etcd, version, place, process: Some(process) })
    }

    fn postgresql(self, interrupted: &Interrupted) -> anyhow::Result<Contender> {
        let server = postgresql::Server::find()?;
        server.initialise(&self.directory)?;
        let mut command = server.command(&self.directory, self.port);
        let mut process = Process::start_logging("postgresql", &mut command, self.log())?;
        process.wait_for(self.address(), interrupted)?;
        postgresql::create_table(self.address(), interrupted)?;
        let process = self.serve::<postgres::Postgres>(process, interrupted)?;
        let version = server.version()?;
        let place = Place::Postgres(self.address());
        Ok(Contender { kind: Kind::Postgresql, version, place, process: Some(process) })
    }

    fn sqlite(self, kind: Kind, journal: &str) -> anyhow::Result<Contender> {
        let file = self.directory.join("kv.db");
        sqlite::prepare(&file, journal)?;
        let version = sqlite::version();
        Ok(Contender { kind, version, place: Place::Sqlite(file), process: None })
    }
}

pub fn output_of(command: &mut Command) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("{name} cannot be started"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name} failed, {}: {text}{errors}", output.status);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_placeholder_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let site = Site { directory: directory.path().into(), port: 4321 };
        let templates = [
            REDIS_CONFIGURATION.replace("@FSYNC@", "always"),
            ETCD_CONFIGURATION.replace("@PEER@", "4322"),
        ];
        for template in templates {
            let text = fs::read_to_string(site.configure("conf", &template).unwrap()).unwrap();
            assert!(!text.contains('@') && text.contains("4321"), "{text}");
        }
    }

    #[test]
    fn who_is_slow_gets_fewer_turns_and_who_waits_is_not_asked_otherwise() {
        let load = Load { mode: Mode::Persistent, workers: 100, turns: 10_000 };
        assert_eq!(Kind::Sqlite.load(load).unwrap().turns, 100);
        assert_eq!(Kind::Etcd.load(load).unwrap().turns, 10_000);
        assert_eq!(Kind::Sqlite.load(Load { workers: 1000, ..load }), None);
        assert_eq!(Kind::Etcd.load(Load { mode: Mode::Unawaited, ..load }), None);
    }
}
