//! `cortex proxy back-ends list|add|remove|drain|weight`: the back ends of a running proxy.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use router_core::weights::WEIGHT_MAX;

use super::super::{Json, Session, output};
use super::options::to_address;
use proxy::back_ends::{BackEndConfig, BackEndName, BackEndRow};
use proxy::control;
use proxy::control::ControlRequest;

#[derive(Debug, Args)]
pub struct BackEndsArgs {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    json: Json,
    #[command(subcommand)]
    action: Option<Action>,
}

/// The proxy that is meant; not needed if only one runs.
#[derive(Debug, Args)]
struct Which {
    /// The proxy's control socket
    #[arg(long, global = true, value_name = "PATH")]
    control: Option<PathBuf>,
    /// The address that the proxy listens on
    #[arg(long, global = true, value_name = "HOST:PORT", conflicts_with = "control")]
    listen: Option<String>,
}

#[derive(Debug, Args)]
struct BackEndArgs {
    /// A port alone is one of 127.0.0.1
    #[arg(value_name = "HOST:PORT")]
    address: String,
    /// The sort of clients that it is for, if they are told apart
    #[arg(long = "for", value_name = "SORT")]
    sort: Option<String>,
    #[command(flatten)]
    json: Json,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List all
    List {
        #[command(flatten)]
        json: Json,
    },
    /// Add one more
    Add {
        #[command(flatten)]
        target: BackEndArgs,
        /// Its share, relative to those of the others
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = weight())]
        weight: u32,
    },
    /// Give one nothing more, and forget it once nothing is in flight
    Remove {
        #[command(flatten)]
        target: BackEndArgs,
    },
    /// Give one nothing more, until its weight is set again
    Drain {
        #[command(flatten)]
        target: BackEndArgs,
    },
    /// Change its share; 0 takes nothing new
    Weight {
        #[command(flatten)]
        target: BackEndArgs,
        #[arg(value_name = "N", value_parser = weight())]
        weight: u32,
    },
}

fn weight() -> clap::builder::RangedU64ValueParser<u32> {
    clap::builder::RangedU64ValueParser::new().range(0..=u64::from(WEIGHT_MAX))
}

impl BackEndArgs {
    fn named(&self) -> anyhow::Result<BackEndName> {
        let address = to_address(&self.address, "the back end", false)?;
        Ok(BackEndName { address, sort: self.sort.clone() })
    }
}

impl BackEndsArgs {
    pub fn run(self, session: &Session) -> anyhow::Result<()> {
        let (ask, done, json) = self.ask()?;
        let path = self.which.path(session)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let rows = runtime.block_on(control::ask(&path, &ask))?;
        if self.json.json || json {
            return output::json(&rows);
        }
        if let Some(done) = done {
            output::say(&done);
        }
        show(&rows)
    }

    /// Returns what is asked, what to say when it is done, and whether JSON is wanted.
    fn ask(&self) -> anyhow::Result<(ControlRequest, Option<String>, bool)> {
        Ok(match &self.action {
            None => (ControlRequest::List, None, false),
            Some(Action::List { json }) => (ControlRequest::List, None, json.json),
            Some(Action::Add { target, weight }) => {
                let BackEndName { address, sort } = target.named()?;
                let wanted = BackEndConfig { address, sort, weight: *weight, draining: false };
                (
                    ControlRequest::Add(wanted),
                    Some(format!("{address} is a back end now")),
                    target.json.json,
                )
            }
            Some(Action::Remove { target }) => {
                let named = target.named()?;
                let done = format!("{} gets nothing more and goes when it is idle", named.address);
                (ControlRequest::Remove(named), Some(done), target.json.json)
            }
            Some(Action::Drain { target }) => {
                let named = target.named()?;
                let done = format!("{} gets nothing more", named.address);
                (ControlRequest::Drain(named), Some(done), target.json.json)
            }
            Some(Action::Weight { target, weight }) => {
                let named = target.named()?;
                let done = format!("{} has the weight {weight}", named.address);
                (ControlRequest::Weight { named, weight: *weight }, Some(done), target.json.json)
            }
        })
    }
}

impl Which {
    fn path(&self, session: &Session) -> anyhow::Result<PathBuf> {
        if let Some(path) = &self.control {
            return Ok(path.clone());
        }
        let of = |kind| -> anyhow::Result<Option<PathBuf>> {
            let Some(listen) = &self.listen else { return Ok(None) };
            let listen = to_address(listen, "--listen", false)?;
            Ok(Some(control::default_path(&session.runtime, listen, kind)))
        };
        let (tcp, udp) = (of("tcp")?, of("udp")?);
        if let (Some(tcp), Some(udp)) = (tcp, udp) {
            return Ok(if !tcp.exists() && udp.exists() { udp } else { tcp });
        }
        let known = std::fs::read_dir(&session.runtime).into_iter().flatten().flatten();
        let mut sockets: Vec<PathBuf> = known
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("proxy-"))
            .map(|entry| entry.path())
            // The socket of a proxy that was killed is left behind, so each is tried.
            .filter(|path| std::os::unix::net::UnixStream::connect(path).is_ok())
            .collect();
        sockets.sort();
        match &sockets[..] {
            [only] => Ok(only.clone()),
            [] => bail!(
                "no proxy of yours runs here: start one with `cortex proxy`, or name its socket \
                 with --control"
            ),
            several => {
                let names: Vec<String> =
                    several.iter().map(|path| format!("  --control {}", path.display())).collect();
                Err(anyhow::anyhow!("{}", names.join("\n")))
                    .context("several proxies run here; say which")
            }
        }
    }
}

fn show(rows: &[BackEndRow]) -> anyhow::Result<()> {
    if rows.is_empty() {
        output::say("There is no back end: requests wait for one.");
        return Ok(());
    }
    let head = ["BACK END", "FOR", "WEIGHT", "STATE", "HEALTH", "IN FLIGHT", "NOTE"];
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let note = match (&row.reason, row.ejected) {
                (Some(reason), _) => reason.clone(),
                (None, true) => "left alone after a failure".into(),
                (None, false) => String::new(),
            };
            vec![
                row.wanted.address.to_string(),
                row.wanted.sort.clone().unwrap_or_else(|| "all".into()),
                row.wanted.weight.to_string(),
                row.state.clone(),
                row.health.clone(),
                row.in_flight.to_string(),
                note,
            ]
        })
        .collect();
    output::table(&head, &cells)
}
