//! The side that is asked: it looks at an instance of this node for a witness elsewhere. Instances
//! listen on loopback, so nobody else can.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use checker_core::ProbeOutcome;
use model::{Claim, NodeId, Release, TypedKey};
use tokio::io::BufReader;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::frame::{WitnessAnswer, WitnessQuestion, read, write};
use super::targets::Targets;
use runtime::members::{BoxedStream, Members, StreamKind};
use store::{SharedStore, lookup_record};

/// The maximum number of concurrent streams of witnesses: three for each of many instances, each
/// for a moment.
const STREAMS_MAX: usize = 256;
/// The maximum wait for a question; a witness asks at once.
const QUESTION_TIME_MAX: Duration = Duration::from_secs(10);

/// Starts answering witnesses.
pub fn give(peers: &dyn Members, store: SharedStore, node: NodeId) {
    let streams = Arc::new(Semaphore::new(STREAMS_MAX));
    peers.serve(
        StreamKind::Probe,
        Box::new(move |peer, stream| {
            // A witness that finds no room gets no answer, and says nothing about the instance.
            let Ok(permit) = streams.clone().try_acquire_owned() else { return };
            let (store, node) = (store.clone(), node.clone());
            runtime::task::spawn(async move {
                if let Err(error) = answer(&store, &node, stream).await {
                    tracing::debug!(%peer, error = format!("{error:#}"), "checker.not_answered");
                }
                drop(permit);
            });
        }),
    );
}

async fn answer(store: &SharedStore, node: &NodeId, stream: BoxedStream) -> anyhow::Result<()> {
    let mut stream = BufReader::new(stream);
    let reading = timeout(QUESTION_TIME_MAX, read::<WitnessQuestion>(&mut stream));
    let Some(question) = reading.await.context("it asked nothing")?? else { return Ok(()) };
    let outcome = look(store, node, &question).await?;
    let told = WitnessAnswer::of(outcome);
    let telling = write(&mut stream, &told);
    timeout(QUESTION_TIME_MAX, telling).await.context("it does not listen")?
}

async fn look(
    store: &SharedStore,
    node: &NodeId,
    question: &WitnessQuestion,
) -> anyhow::Result<ProbeOutcome> {
    let instance = &question.instance;
    let key = TypedKey::Claim(instance.clone(), node.clone()).key();
    let Some(claim) = lookup_record::<Claim>(&**store, key).await? else {
        return Ok(ProbeOutcome::Unreached);
    };
    let mut targets = Targets::default();
    let application = &instance.application;
    for one in &claim.incarnations {
        let key = TypedKey::Release(application.clone(), one.release.clone()).key();
        let release = lookup_record::<Release>(&**store, key).await?;
        targets.release(application, &one.release, release);
    }
    match targets.target(instance, &claim) {
        Some(target) if target.generation == question.generation => Ok(super::probe(&target).await),
        _ => Ok(ProbeOutcome::Unreached),
    }
}
