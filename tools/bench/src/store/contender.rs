//! Who is compared, what each can do, and where it answers. `site` starts them; they are stopped by
//! their ids when dropped.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use clap::ValueEnum;
use serde::Serialize;

use super::client::{etcd, postgres, resp};
use super::load::{self, Seen};
use super::site::{ETCD, REDIS, serves_with};
use super::{Load, Mode, postgresql};
use crate::interrupted::Interrupted;
use crate::process::{Process, find, own_cpu_seconds};

/// SQLite was so slow in the thesis that it got fewer turns, and `k > n` makes no sense.
const SQLITE_TURNS: u64 = 100;
/// With a write-ahead log it is quick enough for more, and fewer would measure its start.
const SQLITE_WAL_TURNS: u64 = 1000;
const SQLITE_WORKERS_MAX: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// This store, one node
    Cortex,
    /// This store, two nodes on the same cores
    CortexPair,
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

pub const ALL: [Kind; 9] = [
    Kind::Cortex,
    Kind::CortexPair,
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
            Kind::Cortex => "cortex",
            Kind::CortexPair => "cortex-pair",
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
            Kind::Cortex | Kind::CortexPair => {
                let option = if self == Kind::Cortex { "--redis" } else { "--join" };
                let missing = || format!("this build's `cortex store serve` has no {option}");
                return (!serves_with(option)).then(missing);
            }
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
            Kind::Cortex | Kind::Redis => Some(load),
            _ => (load.mode != Mode::Unawaited).then_some(load),
        }
    }
}

/// Where it answers, and in which protocol.
#[derive(Clone, Debug)]
pub enum Place {
    Resp(SocketAddr),
    Etcd(SocketAddr),
    Postgres(SocketAddr),
    Sqlite(PathBuf),
}

pub struct Contender {
    pub kind: Kind,
    pub version: String,
    pub place: Place,
    /// None for what runs inside this process; two of a pair.
    pub processes: Vec<Process>,
    /// Where the second of a pair answers.
    pub replica: Option<SocketAddr>,
}

impl Contender {
    pub fn run(&self, load: Load, interrupted: &Interrupted) -> anyhow::Result<Seen> {
        let sound = || {
            interrupted.check()?;
            self.processes.iter().try_for_each(Process::check)
        };
        let run = match &self.place {
            Place::Resp(address) if load.mode == Mode::Unawaited => {
                load::run_unawaited(*address, load, &sound)
            }
            Place::Resp(address) => load::run::<resp::Resp>(*address, load, &sound),
            Place::Etcd(address) => load::run::<etcd::Etcd>(*address, load, &sound),
            Place::Postgres(address) => load::run::<postgres::Postgres>(*address, load, &sound),
            Place::Sqlite(file) => load::run_sqlite(file, load, &sound),
        };
        run.with_context(|| format!("the load on {}", self.kind.name()))
    }

    /// Where it speaks the Redis protocol.
    pub fn resp(&self) -> Option<SocketAddr> {
        match self.place {
            Place::Resp(address) => Some(address),
            _ => None,
        }
    }

    /// User and kernel time of all its processes; of this one where it has none.
    pub fn cpu_seconds(&self) -> anyhow::Result<f64> {
        if self.processes.is_empty() {
            return own_cpu_seconds();
        }
        let used = self.processes.iter().map(|process| Ok(process.usage()?.cpu_seconds));
        used.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_slow_gets_fewer_turns_and_who_waits_is_not_asked_otherwise() {
        let load = Load { mode: Mode::Persistent, workers: 100, turns: 10_000 };
        assert_eq!(Kind::Sqlite.load(load).unwrap().turns, 100);
        assert_eq!(Kind::Etcd.load(load).unwrap().turns, 10_000);
        assert_eq!(Kind::Sqlite.load(Load { workers: 1000, ..load }), None);
        assert_eq!(Kind::Etcd.load(Load { mode: Mode::Unawaited, ..load }), None);
    }
}
