//! The contenders: what each can do, and where it answers. `site` starts them; they are stopped by
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

/// The most turns of SQLite. It was so slow in the thesis that it got fewer, and more workers than
/// turns make no sense.
const SQLITE_TURNS: u64 = 100;
/// The most turns of SQLite with a write-ahead log, which is quick enough for more; fewer would
/// measure its start.
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

    /// Returns why it cannot be compared here, with what to do about it.
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

    /// Returns the part of the load that it is given; `None` if it cannot do it or it makes no
    /// sense.
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

/// The address where it answers, and its protocol.
#[derive(Clone, Debug)]
pub enum ServerAddress {
    Resp(SocketAddr),
    Etcd(SocketAddr),
    Postgres(SocketAddr),
    Sqlite(PathBuf),
}

pub struct Contender {
    pub kind: Kind,
    pub version: String,
    pub place: ServerAddress,
    /// Its processes: none if it runs inside this process, two for a pair.
    pub processes: Vec<Process>,
    /// The address of the second node of a pair.
    pub replica: Option<SocketAddr>,
}

impl Contender {
    pub fn run(&self, load: Load, interrupted: &Interrupted) -> anyhow::Result<Seen> {
        let sound = || {
            interrupted.check()?;
            self.processes.iter().try_for_each(Process::check)
        };
        let run = match &self.place {
            ServerAddress::Resp(address) if load.mode == Mode::Unawaited => {
                load::run_unawaited(*address, load, &sound)
            }
            ServerAddress::Resp(address) => load::run::<resp::Resp>(*address, load, &sound),
            ServerAddress::Etcd(address) => load::run::<etcd::Etcd>(*address, load, &sound),
            ServerAddress::Postgres(address) => {
                load::run::<postgres::Postgres>(*address, load, &sound)
            }
            ServerAddress::Sqlite(file) => load::run_sqlite(file, load, &sound),
        };
        run.with_context(|| format!("the load on {}", self.kind.name()))
    }

    /// Returns the address on which it speaks the Redis protocol, if it does.
    pub fn resp(&self) -> Option<SocketAddr> {
        match self.place {
            ServerAddress::Resp(address) => Some(address),
            _ => None,
        }
    }

    /// Returns the user and kernel time of all its processes, or of this one if it has none.
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
