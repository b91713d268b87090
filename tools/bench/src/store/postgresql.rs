//! PostgreSQL as Debian packages it, with its defaults. It refuses to run as root, so root runs it
//! as the package's user. Connections are trusted, which spares it the passwords.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::client::Connection;
use super::client::postgres::{Postgres, TABLE, USER};
use crate::interrupted::Interrupted;
use crate::process::output_of;

/// The directory with one directory for each major version.
const VERSIONS: &str = "/usr/lib/postgresql";
/// The rule that lets the load in: it connects from many addresses of loopback, of which the
/// default admits one.
const RULE: &str = "host all all 127.0.0.0/8 trust\n";
const START_TIME_MAX: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);

pub struct Server {
    programs: PathBuf,
    /// The user and group to run as; only set if this process is root.
    owner: Option<(u32, u32)>,
}

/// Returns the directory of programs of the newest installed version.
fn newest() -> Option<PathBuf> {
    let entries = fs::read_dir(VERSIONS).ok()?.flatten();
    let versions = entries.filter_map(|entry| {
        let version: u32 = entry.file_name().to_str()?.parse().ok()?;
        let programs = entry.path().join("bin");
        programs.join("postgres").is_file().then_some((version, programs))
    });
    versions.max().map(|(_, programs)| programs)
}

impl Server {
    pub fn is_installed() -> bool {
        newest().is_some()
    }

    pub fn find() -> anyhow::Result<Server> {
        let programs = newest().context("PostgreSQL is gone")?;
        let root = rustix::process::getuid().is_root();
        let owner = root.then(|| user(USER)).transpose()?;
        Ok(Server { programs, owner })
    }

    fn program(&self, name: &str, directory: &Path) -> Command {
        let mut command = Command::new(self.programs.join(name));
        command.current_dir(directory);
        if let Some((user, group)) = self.owner {
            command.uid(user).gid(group);
        }
        command
    }

    pub fn initialise(&self, directory: &Path) -> anyhow::Result<()> {
        if let Some((user, group)) = self.owner {
            chown(directory, Some(user), Some(group))?;
        }
        let mut command = self.program("initdb", directory);
        command.args(["--username", USER, "--auth=trust", "--encoding=UTF8", "--no-locale"]);
        command.arg("--pgdata").arg(directory.join("data"));
        output_of(&mut command)?;
        let allowed = directory.join("data/pg_hba.conf");
        let mut rules = fs::OpenOptions::new().append(true).open(allowed).context("pg_hba.conf")?;
        rules.write_all(RULE.as_bytes()).context("pg_hba.conf")
    }

    pub fn command(&self, directory: &Path, port: u16) -> Command {
        let mut command = self.program("postgres", directory);
        command.arg("-D").arg(directory.join("data")).args(["-p", &port.to_string()]);
        command.args(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]);
        command
    }

    pub fn version(&self) -> anyhow::Result<String> {
        // The output looks like `postgres (PostgreSQL) 15.14 (Debian …)`.
        let output = output_of(Command::new(self.programs.join("postgres")).arg("--version"))?;
        Ok(output.split_whitespace().nth(2).unwrap_or("unknown").into())
    }
}

/// Returns the ids of a user of this machine.
fn user(name: &str) -> anyhow::Result<(u32, u32)> {
    let text = fs::read_to_string("/etc/passwd").context("/etc/passwd")?;
    ids(&text, name).with_context(|| {
        format!("there is no user {name}, and PostgreSQL refuses to run as root: run as another")
    })
}

fn ids(passwd: &str, name: &str) -> Option<(u32, u32)> {
    let line = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut fields = line.split(':').skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

pub fn create_table(address: SocketAddr, interrupted: &Interrupted) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let deadline = Instant::now() + START_TIME_MAX;
    loop {
        let ended = runtime.block_on(async {
            let mut connection = Postgres::open(address, false).await?;
            connection.execute(TABLE).await?;
            connection.close().await;
            anyhow::Ok(())
        });
        let Err(error) = ended else { return Ok(()) };
        interrupted.check()?;
        ensure!(Instant::now() < deadline, "not ready after {START_TIME_MAX:?}: {error:#}");
        // The server accepts connections before it has started up.
        std::thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_its_whole_name() {
        let text = "postgresx:x:1:2::/:\npostgres:x:101:104:PostgreSQL,,,:/var:/bin/bash\n";
        assert_eq!(ids(text, "postgres"), Some((101, 104)));
        assert_eq!(ids(text, "post"), None);
        assert_eq!(ids("postgres:x:no", "postgres"), None);
    }
}
