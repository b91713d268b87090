//! What all servers are measured with: a database and a slow service on one core, the server alone
//! on another.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::remote::{self, REMOTE_TIME};
use super::servers::Prepared;
use super::work::{CPU_STEPS, QUERIES_MAX, QUERY_SECONDS};
use crate::interrupted::Interrupted;
use crate::own_server::OwnServer;
use crate::process::{Process, cores, free_port, on_core, on_loopback};
use crate::store::postgresql;

/// The connections that the database takes beyond those of one server: of one that is just
/// stopping, and its own.
const CONNECTIONS_SPARE: usize = 50;

pub struct Site<'a> {
    pub interrupted: &'a Interrupted,
    directory: PathBuf,
    core: Option<usize>,
    remote: OwnServer,
    database_port: u16,
    _database: Process,
}

impl<'a> Site<'a> {
    pub fn start(directory: &Path, interrupted: &'a Interrupted) -> anyhow::Result<Site<'a>> {
        let (core, others) = match cores()?[..] {
            [first, .., last] => (Some(last), Some(first)),
            _ => {
                eprintln!(
                    "There is one core only: server, database and clients disturb each other."
                );
                (None, None)
            }
        };
        anyhow::ensure!(
            postgresql::Server::is_installed(),
            "PostgreSQL is not installed; on Debian: apt-get install postgresql"
        );
        let server = postgresql::Server::find()?;
        let place = directory.join("database");
        fs::create_dir(&place).with_context(|| format!("{}", place.display()))?;
        server.initialise(&place)?;
        let database_port = free_port()?;
        let mut command = server.command(&place, database_port);
        let most = QUERIES_MAX + CONNECTIONS_SPARE;
        command.args(["-c", &format!("max_connections={most}")]);
        let log = directory.join("database.log");
        let start = || Process::start_logging("PostgreSQL", &mut command, log);
        let mut database = on_core(others, start)??;
        database.wait_for(on_loopback(database_port), interrupted)?;
        postgresql::create_table(on_loopback(database_port), interrupted)?;
        let remote = remote::start(REMOTE_TIME)?;
        Ok(Site {
            interrupted,
            directory: directory.into(),
            core,
            remote,
            database_port,
            _database: database,
        })
    }

    /// Returns a directory for the files of a server.
    pub fn place(&self, server: &str) -> anyhow::Result<PathBuf> {
        let place = self.directory.join(server);
        fs::create_dir(&place).with_context(|| format!("{}", place.display()))?;
        Ok(place)
    }

    /// Starts a server on the core that it has for itself; returns it and its port.
    pub fn serve(&self, name: &str, prepared: &Prepared) -> anyhow::Result<(Process, u16)> {
        let port = free_port()?;
        let (program, arguments) = prepared.command.split_first().context("a command")?;
        let mut command = Command::new(program);
        command.args(arguments.iter().map(|word| word.replace("@PORT@", &port.to_string())));
        command.current_dir(&prepared.directory).envs(prepared.environment.iter().cloned());
        command
            .env("PORT", port.to_string())
            .env("CPU_STEPS", CPU_STEPS.to_string())
            .env("QUERY_SECONDS", QUERY_SECONDS.to_string())
            .env("QUERIES_MAX", QUERIES_MAX.to_string())
            .env("REMOTE_URL", format!("http://127.0.0.1:{}/", self.remote.port))
            .env("DATABASE_PORT", self.database_port.to_string())
            .env(
                "DATABASE_URL",
                format!("postgresql://postgres@127.0.0.1:{}/postgres", self.database_port),
            );
        let log = self.directory.join(format!("{name}-{port}.log"));
        let start = || Process::start_logging(name, &mut command, log);
        let mut process = on_core(self.core, start)??;
        process.wait_for(on_loopback(port), self.interrupted)?;
        Ok((process, port))
    }
}
