//! Questions about names between nodes: whether a name leads here as seen from there, and whether
//! the other node has what it is to show. A question and an answer, a line of JSON each, on a
//! stream of their own.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use model::certificate::check_acme_token;
use model::{CertificateName, NodeId, TypedKey};
use runtime::members::{BoxedStream, Members, StreamKind};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use store::SharedStore;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

use crate::arrival::{self, Found};

const VERSION: u32 = 1;
/// Bytes of a line: far more than eight addresses and what each answers.
const LINE_BYTES_MAX: u64 = 32 * 1024;
/// Streams that are served at a time; each asks one thing.
const STREAMS_MAX: usize = 64;
const QUESTION_TIME_MAX: Duration = Duration::from_secs(10);
/// The time for an answer, which may take a look at each of eight addresses twice.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(100);
/// How long the other nodes have to come to hold what was written: replication takes a fraction of
/// a second.
const HELD_WITHIN: Duration = Duration::from_secs(10);
const HELD_POLL: Duration = Duration::from_millis(100);
/// The time in which a router shows what its store holds.
const SHOWN_AFTER: Duration = Duration::from_millis(300);

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Question {
    v: u32,
    #[serde(flatten)]
    ask: Ask,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
enum Ask {
    Arrival {
        name: CertificateName,
        nonce: String,
        thumbprint: String,
    },
    /// Whether the name leads to a certificate with this hash.
    Shown {
        name: CertificateName,
        hash: String,
    },
    /// Whether the value of this key has this hash. The key is one of those that routers show.
    Holds {
        key: String,
        hash: String,
    },
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Reply {
    v: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    found: Option<Found>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    holds: Option<bool>,
}

/// Serves the questions of other nodes from now on.
pub fn serve(members: &dyn Members, store: SharedStore) {
    let streams = Arc::new(Semaphore::new(STREAMS_MAX));
    members.serve(
        StreamKind::Certificates,
        Box::new(move |peer, stream| {
            // Who finds no room gets no answer, and asks another node or itself.
            let Ok(permit) = streams.clone().try_acquire_owned() else { return };
            let store = store.clone();
            runtime::task::spawn(async move {
                if let Err(error) = answer(&store, stream).await {
                    tracing::debug!(%peer, error = format!("{error:#}"), "certificates.unanswered");
                }
                drop(permit);
            });
        }),
    );
}

async fn answer(store: &SharedStore, stream: BoxedStream) -> anyhow::Result<()> {
    let mut stream = BufReader::new(stream);
    let question: Question = timeout(QUESTION_TIME_MAX, read(&mut stream)).await??;
    let mut reply = Reply { v: VERSION, ..Reply::default() };
    match question.ask {
        Ask::Arrival { name, nonce, thumbprint } => {
            check_acme_token("the nonce", &nonce)?;
            check_acme_token("the thumbprint", &thumbprint)?;
            reply.found = Some(arrival::find(&name, &nonce, &thumbprint).await);
        }
        Ask::Shown { name, hash } => {
            reply.found = Some(arrival::find_shown(&name, &hash).await);
        }
        Ask::Holds { key, hash } => {
            let typed = key.parse().ok().and_then(|key| TypedKey::parse(&key));
            let is_shown =
                matches!(typed, Some(TypedKey::AcmeAccount | TypedKey::AcmeChallenge(_)));
            ensure!(is_shown, "that is none of its business");
            let own = store.lookup_hash(&key.parse()?).await?;
            reply.holds = Some(own.is_some_and(|own| model::hex::to_hex(&own) == hash));
        }
    }
    timeout(QUESTION_TIME_MAX, write(&mut stream, &reply)).await?
}

async fn read<T: DeserializeOwned>(stream: &mut BufReader<BoxedStream>) -> anyhow::Result<T> {
    let mut line = Vec::new();
    stream.take(LINE_BYTES_MAX).read_until(b'\n', &mut line).await?;
    ensure!(line.ends_with(b"\n"), "it said nothing, or too much");
    Ok(serde_json::from_slice(&line)?)
}

async fn write<T: Serialize>(stream: &mut BufReader<BoxedStream>, said: &T) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(said)?;
    line.push(b'\n');
    stream.write_all(&line).await?;
    Ok(stream.flush().await?)
}

async fn ask(members: &dyn Members, node: &NodeId, ask: Ask) -> anyhow::Result<Reply> {
    let asking = async {
        let stream = members.open(node, StreamKind::Certificates).await?;
        let mut stream = BufReader::new(stream);
        write(&mut stream, &Question { v: VERSION, ask }).await?;
        read(&mut stream).await
    };
    timeout(ANSWER_TIME_MAX, asking).await.context("it does not answer")?
}

/// Finds out whether a name comes here, as seen from another node of the cluster if there is one:
/// from inside one machine its own address may lead elsewhere than from outside.
pub async fn find(
    members: Option<&Arc<dyn Members>>,
    name: &CertificateName,
    nonce: &str,
    thumbprint: &str,
) -> (Option<NodeId>, Found) {
    let question =
        Ask::Arrival { name: name.clone(), nonce: nonce.into(), thumbprint: thumbprint.into() };
    match ask_others(members, &question).await {
        Some((node, found)) => (Some(node), found),
        None => (None, arrival::find(name, nonce, thumbprint).await),
    }
}

/// Finds out whether a name leads to a certificate with this hash, like `find`.
pub async fn find_shown(
    members: Option<&Arc<dyn Members>>,
    name: &CertificateName,
    hash: &str,
) -> Found {
    let question = Ask::Shown { name: name.clone(), hash: hash.into() };
    match ask_others(members, &question).await {
        Some((_, found)) => found,
        None => arrival::find_shown(name, hash).await,
    }
}

/// Returns what the first other node found out that answers.
async fn ask_others(members: Option<&Arc<dyn Members>>, question: &Ask) -> Option<(NodeId, Found)> {
    let members = members?;
    let alive: BTreeSet<NodeId> = members.alive().borrow().clone();
    for node in alive {
        match ask(&**members, &node, question.clone()).await {
            Ok(Reply { found: Some(found), .. }) => return Some((node, found)),
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(%node, error = format!("{error:#}"), "certificates.not_asked");
            }
        }
    }
    None
}

/// Waits until all other nodes that are alive have what this one has; returns those that do not.
pub async fn await_held(
    members: Option<&Arc<dyn Members>>,
    store: &SharedStore,
    key: &TypedKey,
) -> anyhow::Result<Vec<NodeId>> {
    let Some(members) = members else {
        sleep(SHOWN_AFTER).await;
        return Ok(Vec::new());
    };
    let key = key.key();
    let hash = store.lookup_hash(&key).await?.context("it is not in the store")?;
    let hash = model::hex::to_hex(&hash);
    let deadline = Instant::now() + HELD_WITHIN;
    let mut missing: Vec<NodeId> = members.alive().borrow().iter().cloned().collect();
    loop {
        let mut still = Vec::new();
        for node in missing {
            let question = Ask::Holds { key: key.as_str().into(), hash: hash.clone() };
            let held = timeout(HELD_WITHIN, ask(&**members, &node, question)).await;
            if !matches!(held, Ok(Ok(Reply { holds: Some(true), .. }))) {
                still.push(node);
            }
        }
        missing = still;
        // One that was lost meanwhile shows nothing to anybody.
        missing.retain(|node| members.alive().borrow().contains(node));
        if missing.is_empty() || Instant::now() >= deadline {
            break;
        }
        sleep(HELD_POLL).await;
    }
    if missing.is_empty() {
        sleep(SHOWN_AFTER).await;
    }
    Ok(missing)
}
