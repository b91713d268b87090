//! `cortex router export`: writes the live instances as another proxy's configuration, for machines
//! on which nginx or HAProxy owns the public ports.

mod haproxy;
mod nginx;
mod plan;

use std::fs::{self, File};
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Args, Subcommand, ValueEnum};

use self::plan::RoutingPlan;
use super::{Session, output};
use api_types::{NodeRow, RouteRow};

/// The time between two looks: they cost the node less than one request does, and an instance is
/// soon known.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// The time after which a command that failed, or a node that does not answer, is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub struct Router {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Write the live instances as the configuration of nginx or HAProxy
    Export(Export),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// To be included in nginx's `http { … }`
    Nginx,
    /// To be given to HAProxy with another -f
    Haproxy,
}

#[derive(Debug, Args)]
struct Export {
    #[arg(long, value_enum)]
    format: Format,
    /// Where that proxy is to listen
    #[arg(
        long,
        value_name = "IP:PORT",
        default_value = "0.0.0.0:80",
        value_parser = super::address::public
    )]
    listen: SocketAddr,
    /// The file to write, replaced as a whole when something changed [default: print it]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// What the shell runs whenever the file changed, for example 'nginx -s reload'
    #[arg(long, value_name = "COMMAND", requires = "out")]
    reload: Option<String>,
    /// Go on, and write again whenever instances come and go
    #[arg(long, requires = "out")]
    watch: bool,
}

impl Router {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        let Action::Export(export) = self.action;
        export.run(session).await
    }
}

impl Export {
    async fn run(self, session: &Session) -> anyhow::Result<()> {
        let Some(out) = self.out.as_deref() else {
            return output::print(self.text(session).await?.trim_end());
        };
        ensure!(!out.is_dir(), "--out: {} is a directory; name a file in it", out.display());
        let mut reloaded = self.once(session, out, true).await;
        if !self.watch {
            return reloaded.map(drop);
        }
        let mut said = None;
        loop {
            // The same trouble is reported once.
            let trouble = reloaded.as_ref().err().map(|error| format!("{error:#}"));
            if trouble != said
                && let Some(trouble) = &trouble
            {
                output::complain(trouble);
            }
            let failed = trouble.is_some();
            said = trouble;
            tokio::select! {
                ended = tokio::signal::ctrl_c() => return Ok(ended?),
                () = tokio::time::sleep(if failed { RETRY_INTERVAL } else { LOOK_INTERVAL }) => {}
            }
            reloaded = self.once(session, out, failed).await;
        }
    }

    /// Writes the file and reloads if something changed; reloads also if `again` says that the last
    /// time failed.
    async fn once(&self, session: &Session, out: &Path, again: bool) -> anyhow::Result<()> {
        let text = self.text(session).await?;
        let changed = fs::read(out).ok().as_deref() != Some(text.as_bytes());
        if changed {
            replace(out, &text)?;
            output::say(&format!("Wrote {}", out.display()));
        }
        match &self.reload {
            Some(command) if changed || again => reload(command).await,
            _ => Ok(()),
        }
    }

    async fn text(&self, session: &Session) -> anyhow::Result<String> {
        let routes: Vec<RouteRow> = session.client.get("/v1/routes").await?;
        let nodes: Vec<NodeRow> = session.client.get("/v1/nodes").await?;
        let plan = RoutingPlan::make(&routes, &nodes);
        Ok(match self.format {
            Format::Nginx => nginx::write(&plan, self.listen),
            Format::Haproxy => haproxy::write(&plan, self.listen),
        })
    }
}

/// Replaces the file at once: a reader sees the old text or the new one.
fn replace(out: &Path, text: &str) -> anyhow::Result<()> {
    let name = out
        .file_name()
        .with_context(|| format!("--out: {} is not a file: name another", out.display()))?;
    let fresh = out.with_file_name(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
    let written = File::create(&fresh)
        .and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(&fresh, out));
    written.with_context(|| {
        fs::remove_file(&fresh).ok();
        format!("--out: {} cannot be written; choose another file", out.display())
    })
}

async fn reload(command: &str) -> anyhow::Result<()> {
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(command).stdin(Stdio::null());
    let ran = runtime::task::spawn_blocking(move || shell.output()).await?;
    let ran = ran.context("--reload: /bin/sh cannot be run")?;
    let said = String::from_utf8_lossy(&ran.stderr);
    ensure!(
        ran.status.success(),
        "--reload: `{command}` ended with {}: {}",
        ran.status,
        said.trim()
    );
    Ok(())
}
