//! `cortex store …`: reads and writes any key of the store, with values as raw bytes both ways.

pub mod cluster;
mod serve;
mod transfer;

use std::io::{Read, Write};

use anyhow::Context;
use bytes::Bytes;
use clap::{Args, Subcommand};
use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::Incoming;
use tokio::sync::mpsc;

use super::{Json, Session, output};
use api_types::{HistoryRow, SingleValue, StoreChange, StoredKey};
use client::encode;

const READ_BYTES: usize = 64 * 1024;
/// Chunks that wait between stdin and the socket.
const CHUNKS_WAITING_MAX: usize = 16;

#[derive(Debug, Args)]
pub struct Store {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Print a key's value
    Get { key: String },
    /// Set a key to a value, else to what comes on stdin
    Set { key: String, value: Option<String> },
    /// Delete a key
    Del { key: String },
    /// Print the SHA-1 of a key's value
    Hash { key: String },
    /// List the keys under a prefix
    Ls {
        #[arg(default_value = "")]
        prefix: String,
        #[command(flatten)]
        json: Json,
    },
    /// List what was set and deleted, newest first
    History {
        #[arg(default_value = "")]
        prefix: String,
        #[arg(short = 'n', default_value_t = 100)]
        limit: usize,
        #[command(flatten)]
        json: Json,
    },
    /// Print changes as they come
    Watch {
        #[arg(default_value = "")]
        prefix: String,
        #[command(flatten)]
        json: Json,
    },
    /// Print the id of the whole history
    Head,
    /// Write the whole store to a file, to be imported into another
    Export(transfer::Export),
    /// Set every key of an exported store, in addition to those there are
    Import(transfer::Import),
    /// Run the store alone, for any client of Redis
    Serve(serve::Serve),
    /// Print an invitation with which one node can join this one's cluster
    Invite {
        /// Where the new node finds this one, if not where this one thinks it is
        #[arg(long, value_name = "HOST:PORT")]
        address: Option<String>,
    },
    /// Show the members of the cluster as this node sees them
    Peers {
        #[command(flatten)]
        json: Json,
    },
    /// Exchange changes with the other members now
    Sync,
    /// Decide about this machine's clock
    Clock {
        #[command(subcommand)]
        action: cluster::Clock,
    },
    /// Drop what newer changes have replaced
    Squash {
        /// Keep the history of this many hours
        #[arg(long, value_name = "HOURS", default_value_t = 24)]
        keep_hours: u64,
    },
}

impl Store {
    /// Returns the action that runs by itself, without a node to talk to.
    pub fn alone(self) -> Result<serve::Serve, Box<Store>> {
        match self.action {
            Action::Serve(serve) => Ok(serve),
            action => Err(Box::new(Store { action })),
        }
    }

    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        let client = &session.client;
        match self.action {
            Action::Get { key } => copy_to_stdout(client.download(&value_path(&key)).await?).await,
            Action::Set { key, value } => set(session, &key, value).await,
            Action::Del { key } => {
                let answer: SingleValue = client.delete(&value_path(&key)).await?;
                print_answer(&answer, "commit")
            }
            Action::Hash { key } => {
                let path = format!("/v1/store/hash?key={}", encode(&key));
                print_answer(&client.get(&path).await?, "hash")
            }
            Action::Head => print_answer(&client.get("/v1/store/head").await?, "head"),
            Action::Invite { address } => cluster::invite(session, address).await,
            Action::Peers { json } => cluster::peers(session, json).await,
            Action::Sync => cluster::sync(session).await,
            Action::Clock { action } => cluster::clock(session, action).await,
            Action::Squash { keep_hours } => cluster::squash(session, keep_hours).await,
            Action::Ls { prefix, json } => list(session, &prefix, json).await,
            Action::History { prefix, limit, json } => history(session, &prefix, limit, json).await,
            Action::Watch { prefix, json } => watch(session, &prefix, json).await,
            Action::Export(export) => export.run(session).await,
            Action::Import(import) => import.run(session).await,
            Action::Serve(_) => unreachable!("started without a node, see `alone`"),
        }
    }
}

fn value_path(key: &str) -> String {
    format!("/v1/store/value?key={}", encode(key))
}

fn print_answer(answer: &SingleValue, field: &str) -> anyhow::Result<()> {
    output::print(answer.get(field).and_then(|value| value.as_str()).unwrap_or_default())
}

async fn set(session: &Session, key: &str, value: Option<String>) -> anyhow::Result<()> {
    let (sender, receiver) = mpsc::channel(CHUNKS_WAITING_MAX);
    std::thread::spawn(move || match value {
        Some(value) => drop(sender.blocking_send(Ok(Bytes::from(value)))),
        None => send_stdin(&sender),
    });
    let chunks = futures_util::stream::unfold(receiver, |mut receiver| async {
        Some((receiver.recv().await?, receiver))
    });
    let path = value_path(key);
    let answer: SingleValue = session.client.upload(Method::PUT, &path, chunks).await?;
    print_answer(&answer, "commit")
}

fn send_stdin(sender: &mpsc::Sender<std::io::Result<Bytes>>) {
    let mut stdin = std::io::stdin().lock();
    loop {
        let mut chunk = vec![0; READ_BYTES];
        let read = stdin.read(&mut chunk);
        let ended = !matches!(read, Ok(count) if count > 0);
        let item = read.map(|count| {
            chunk.truncate(count);
            Bytes::from(chunk)
        });
        if matches!(&item, Ok(chunk) if chunk.is_empty()) {
            return;
        }
        if sender.blocking_send(item).is_err() || ended {
            return;
        }
    }
}

pub async fn copy_to_stdout(mut body: Incoming) -> anyhow::Result<()> {
    while let Some(frame) = body.frame().await {
        let frame = frame.context("the node went away")?;
        if let Some(bytes) = frame.data_ref() {
            std::io::stdout().lock().write_all(bytes).context("stdout")?;
        }
    }
    std::io::stdout().lock().flush().context("stdout")
}

async fn list(session: &Session, prefix: &str, json: Json) -> anyhow::Result<()> {
    let path = format!("/v1/store/keys?prefix={}", encode(prefix));
    let rows: Vec<StoredKey> = session.client.get(&path).await?;
    if json.json {
        return output::json(&rows);
    }
    if rows.is_empty() {
        output::say(&match prefix {
            "" => "The store is empty.".to_string(),
            _ => format!("There are no keys under {prefix}."),
        });
    }
    rows.iter().try_for_each(|row| output::print(&row.key))
}

async fn history(session: &Session, prefix: &str, limit: usize, json: Json) -> anyhow::Result<()> {
    let path = format!("/v1/store/history?prefix={}&limit={limit}", encode(prefix));
    let rows: Vec<HistoryRow> = session.client.get(&path).await?;
    if json.json {
        return output::json(&rows);
    }
    if rows.is_empty() {
        output::say("Nothing was ever set there.");
        return Ok(());
    }
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let what = if row.deleted { "delete".into() } else { output::bytes(row.size) };
            let id = row.id.chars().take(12).collect();
            vec![id, output::time(&row.set_at), row.node.clone(), what, row.key.clone()]
        })
        .collect();
    output::table(&["ID", "SET", "NODE", "SIZE", "KEY"], &cells)
}

async fn watch(session: &Session, prefix: &str, json: Json) -> anyhow::Result<()> {
    let path = format!("/v1/store/watch?prefix={}", encode(prefix));
    let mut changes = session.client.lines(&path).await?;
    while let Some(change) = changes.next::<StoreChange>().await? {
        if json.json {
            output::print(&serde_json::to_string(&change)?)?;
            continue;
        }
        output::print(&match change {
            StoreChange::Set { key, value: Some(value), .. } => format!("set {key} {value}"),
            StoreChange::Set { key, size, value: None } => {
                format!("set {key} ({})", output::bytes(size))
            }
            StoreChange::Deleted { key } => format!("del {key}"),
            StoreChange::Resync => "resync: changes were missed, read the prefix again".into(),
        })?;
    }
    anyhow::bail!("the node went away")
}
