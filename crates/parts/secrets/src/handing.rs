//! Keys go from a member that keeps the store to another one, over the cluster's own streams: a
//! question and an answer, a line of JSON each. A node without a store gets none.

use std::sync::Arc;
use std::time::Duration;

use ::store::SharedStore;
use anyhow::{Context, bail, ensure};
use model::hex::to_hex;
use model::secrets::SealingKeyId;
use model::{NodeId, TypedKey};
use runtime::members::{BoxedStream, Members, StreamKind};
use secret_core::sealed::SealingKey;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use zeroize::Zeroizing;

use crate::file::key_of;
use crate::keys::Keys;

const VERSION: u32 = 1;
/// Bytes of a line: far more than a key in hexadecimal digits, or a reason.
const LINE_BYTES_MAX: u64 = 4096;
/// Streams that are served at a time; each asks for one key.
const STREAMS_MAX: usize = 32;
/// The time for a question and its answer, which needs nothing but memory.
const TIME_MAX: Duration = Duration::from_secs(5);

#[derive(Serialize, Deserialize)]
struct Question {
    v: u32,
    key: SealingKeyId,
}

#[derive(Serialize, Deserialize)]
struct Answer {
    v: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
}

/// Hands keys to members that ask, from now on.
pub fn serve(members: &dyn Members, store: SharedStore, keys: Arc<Keys>) {
    let streams = Arc::new(Semaphore::new(STREAMS_MAX));
    members.serve(
        StreamKind::Secrets,
        Box::new(move |peer, stream| {
            // Who finds no room gets no answer, and asks another member or again.
            let Ok(permit) = streams.clone().try_acquire_owned() else { return };
            let (store, keys) = (store.clone(), keys.clone());
            runtime::task::spawn(async move {
                if let Err(error) = answer(&store, &keys, &peer, stream).await {
                    tracing::warn!(%peer, error = format!("{error:#}"), "secrets.not_handed");
                }
                drop(permit);
            });
        }),
    );
}

async fn answer(
    store: &SharedStore,
    keys: &Keys,
    peer: &NodeId,
    stream: BoxedStream,
) -> anyhow::Result<()> {
    let mut stream = BufReader::new(stream);
    let question: Question = timeout(TIME_MAX, read(&mut stream)).await??;
    let keeps = store.lookup(&TypedKey::Member(peer.clone()).key()).await?.is_some();
    let found = keys.ring().get(&question.key).cloned();
    let (key, refused) = match found {
        _ if !keeps => (None, Some("only members that keep the store have keys".to_owned())),
        None => (None, Some(format!("the key {} is not here", question.key))),
        Some(key) => (Some(to_hex(key.bytes())), None),
    };
    let handed = key.is_some();
    timeout(TIME_MAX, write(&mut stream, &Answer { v: VERSION, key, refused })).await??;
    ensure!(handed, "it asked for {} and did not get it", question.key);
    tracing::info!(%peer, key = %question.key, "secrets.handed");
    Ok(())
}

/// Asks a member for a key.
pub async fn ask(
    members: &dyn Members,
    node: &NodeId,
    key: SealingKeyId,
) -> anyhow::Result<SealingKey> {
    let asking = async {
        let mut stream = BufReader::new(members.open(node, StreamKind::Secrets).await?);
        write(&mut stream, &Question { v: VERSION, key }).await?;
        read::<Answer>(&mut stream).await
    };
    let answer = timeout(TIME_MAX, asking).await.context("it does not answer")??;
    if let Some(refused) = answer.refused {
        bail!("{}", refused.escape_debug());
    }
    let digits = Zeroizing::new(answer.key.unwrap_or_default());
    let got = key_of(&digits).context("what it says is no key")?;
    ensure!(got.id() == key, "it gave another key than {key}");
    Ok(got)
}

async fn read<T: DeserializeOwned>(stream: &mut BufReader<BoxedStream>) -> anyhow::Result<T> {
    let mut line = Zeroizing::new(Vec::new());
    stream.take(LINE_BYTES_MAX).read_until(b'\n', &mut line).await?;
    ensure!(line.ends_with(b"\n"), "it said nothing, or too much");
    // The error of the parser could show a piece of a key.
    serde_json::from_slice(&line).ok().context("what it says is not understood")
}

async fn write<T: Serialize>(stream: &mut BufReader<BoxedStream>, said: &T) -> anyhow::Result<()> {
    let mut line = Zeroizing::new(serde_json::to_vec(said)?);
    line.push(b'\n');
    stream.write_all(&line).await?;
    Ok(stream.flush().await?)
}
