//! Which nodes hold a certificate: they are asked, and say what their stores have.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use model::{Certificate, CertificateName, NodeId, TypedKey};
use tokio::time::{Instant, sleep, timeout};

use super::{Kept, fingerprint};
use crate::Api;
use crate::calls::{self, CallKind};
use runtime::members::Members;
use store::{Store, lookup_record};

/// The time that a node has to answer; one that takes longer is as good as none.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);
/// The time within which all nodes that are alive hold a certificate after its write.
const HELD_TIME_MAX: Duration = Duration::from_secs(2);
/// The pause between two questions.
const PAUSE: Duration = Duration::from_millis(50);
/// Names in one question, so that the answer is a message of bounded size.
pub const NAMES_MAX: usize = 2000;

#[derive(Clone, Debug, Default)]
pub struct Held {
    pub by: Vec<String>,
    pub missing: Vec<String>,
}

/// Returns the fingerprints of what a store has for these names.
pub async fn fingerprints(
    store: &dyn Store,
    names: &[CertificateName],
) -> anyhow::Result<Vec<Option<String>>> {
    let mut found = Vec::new();
    for name in names.iter().take(NAMES_MAX) {
        let key = TypedKey::Certificate(name.clone()).key();
        let record: Option<Certificate> = lookup_record(store, key).await.ok().flatten();
        found.push(record.as_ref().map(fingerprint));
    }
    Ok(found)
}

/// Asks all other nodes that are alive; returns who holds each certificate.
pub async fn ask(api: &Api, wanted: &[Kept]) -> Vec<Held> {
    let here = Held { by: vec![api.node.to_string()], missing: Vec::new() };
    let mut held = vec![here; wanted.len()];
    let Some(peers) = &api.peers else { return held };
    let nodes: Vec<NodeId> = peers.alive().borrow().iter().cloned().collect();
    let names: Vec<CertificateName> =
        wanted.iter().take(NAMES_MAX).map(|one| one.name.clone()).collect();
    let answers = nodes.iter().filter(|node| **node != api.node).map(|node| {
        let names = names.clone();
        async move { (node, of_node(&**peers, node, names).await) }
    });
    let answers: BTreeMap<_, _> =
        futures_util::future::join_all(answers).await.into_iter().collect();
    for (node, answer) in answers {
        let found = answer.unwrap_or_else(|error| {
            tracing::debug!(%node, error = format!("{error:#}"), "certificates.not_asked");
            Vec::new()
        });
        for (at, (one, held)) in wanted.iter().zip(&mut held).enumerate() {
            let found = found.get(at).and_then(Option::as_ref);
            let holds = found == Some(&fingerprint(&one.record));
            let list = if holds { &mut held.by } else { &mut held.missing };
            list.push(node.to_string());
        }
    }
    held
}

async fn of_node(
    peers: &dyn Members,
    node: &NodeId,
    names: Vec<CertificateName>,
) -> anyhow::Result<Vec<Option<String>>> {
    let asking = async {
        let mut stream = calls::call(peers, node, CallKind::Certificates { names }).await?;
        calls::receive(&mut stream).await?.context("it hung up")
    };
    timeout(ANSWER_TIME_MAX, asking).await.context("no answer")?
}

/// Asks until all nodes hold them, or it has taken too long.
pub async fn wait(api: &Api, wanted: &[Kept]) -> Vec<Held> {
    let deadline = Instant::now() + HELD_TIME_MAX;
    loop {
        let held = ask(api, wanted).await;
        let is_everywhere = held.iter().all(|one| one.missing.is_empty());
        if is_everywhere || Instant::now() >= deadline {
            return held;
        }
        sleep(PAUSE).await;
    }
}
