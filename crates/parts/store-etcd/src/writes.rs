//! The one way into etcd: a queue of writes, in order. Writes that are queued together go into one
//! transaction, so their writers share a round trip and an fsync of the cluster. Watchers of this
//! node are told before a write is answered.

use std::collections::BTreeSet;
use std::time::Duration;

use etcd_client::{
    Compare, CompareOp, DeleteOptions, GetOptions, PutOptions, Txn, TxnOp, TxnOpResponse,
};
use model::Key;
use tokio::sync::{mpsc, oneshot};

use super::feed::Feed;
use super::leases::{Leases, NO_LEASE};
use super::link::{Attempted, LinkError};
use super::record::StoredRecord;
use store::reply::Reply;
use store::{CommitId, StoreError};

/// The number of writes queued, some 4 MiB of small values; further writers wait for their turn.
pub const WRITES_QUEUED_MAX: usize = 1024;
/// The number of writes in a transaction. etcd takes 128 operations by default, and 1.5 MiB: these
/// have half a megabyte at most.
const TOGETHER_MAX: usize = 100;
/// The time after which a write is answered although the feed is cut and watchers have not been
/// told.
const TELL_MAX: Duration = Duration::from_secs(5);

pub enum Job {
    Write(Write),
    Close(oneshot::Sender<()>),
}

pub struct Write {
    pub operation: Operation,
    pub reply: Reply,
}

pub struct Operation {
    pub key: Key,
    /// The record to put; `None` deletes the key.
    pub record: Option<StoredRecord>,
    /// The revision that the key's value must still have; `None` if the write is unconditional.
    pub only_over: Option<i64>,
}

/// The outcome of one operation.
struct Done {
    changed: bool,
    /// For deletes: whether there was a value that had not ended.
    was_there: bool,
}

pub struct Writes {
    feed: Feed,
    leases: Leases,
    jobs: mpsc::Receiver<Job>,
    /// The cluster's id, which is part of each commit's.
    cluster: u64,
}

impl Writes {
    pub fn new(feed: Feed, cluster: u64, jobs: mpsc::Receiver<Job>) -> Writes {
        Writes { leases: Leases::new(feed.link.clone()), feed, jobs, cluster }
    }

    /// Runs until it is closed, or there are no writers any more.
    pub async fn run(mut self) {
        let mut held = None;
        loop {
            let first = match held.take() {
                Some(job) => job,
                None => match self.jobs.recv().await {
                    Some(job) => job,
                    None => return,
                },
            };
            match first {
                Job::Close(closed) => {
                    self.refuse_the_rest();
                    closed.send(()).ok();
                    return;
                }
                Job::Write(write) => {
                    let (operations, replies, next) = self.gather(write);
                    held = next;
                    self.perform(operations, replies).await;
                }
            }
        }
    }

    fn refuse_the_rest(&mut self) {
        self.jobs.close();
        while let Ok(job) = self.jobs.try_recv() {
            match job {
                Job::Write(write) => write.reply.say(Err(closed())),
                Job::Close(closed) => drop(closed.send(())),
            }
        }
    }

    /// Gathers queued writes that may share a transaction: one write of each key. One with a
    /// condition goes alone.
    fn gather(&mut self, first: Write) -> (Vec<Operation>, Vec<Reply>, Option<Job>) {
        let is_alone = first.operation.only_over.is_some();
        let mut keys = BTreeSet::from([first.operation.key.clone()]);
        let (mut operations, mut replies) = (vec![first.operation], vec![first.reply]);
        while !is_alone && operations.len() < TOGETHER_MAX {
            match self.jobs.try_recv() {
                Ok(Job::Write(Write { operation, reply }))
                    if operation.only_over.is_none() && keys.insert(operation.key.clone()) =>
                {
                    operations.push(operation);
                    replies.push(reply);
                }
                Ok(job) => return (operations, replies, Some(job)),
                Err(_) => break,
            }
        }
        (operations, replies, None)
    }

    async fn perform(&mut self, operations: Vec<Operation>, replies: Vec<Reply>) {
        let sent = match self.send(&operations).await {
            // A cluster that was restored from a copy may not know a lease that it granted before.
            Err(LinkError::NoLease) => {
                self.leases.forget();
                self.send(&operations).await
            }
            sent => sent,
        };
        let (done, revision) = match sent {
            Ok(sent) => sent,
            Err(error) => {
                replies.into_iter().for_each(|reply| reply.say(Err(error.clone().into_store())));
                return;
            }
        };
        if done.iter().any(|done| done.changed) {
            self.feed.hub.wait_until_told(revision, TELL_MAX).await;
        }
        for ((operation, done), reply) in operations.iter().zip(done).zip(replies) {
            reply.say(Ok(done.was_there.then(|| self.id(operation, revision))));
        }
    }

    async fn send(&mut self, batch: &[Operation]) -> Result<(Vec<Done>, i64), LinkError> {
        let mut operations = Vec::with_capacity(batch.len());
        for write in batch {
            let name = self.feed.space.name(&write.key);
            operations.push(match &write.record {
                None => TxnOp::delete(name, Some(DeleteOptions::new().with_prev_key())),
                Some(record) => {
                    let lease = match record.expires {
                        None => NO_LEASE,
                        Some(end) => self.leases.until(end, self.feed.clock.now()).await?,
                    };
                    let options = PutOptions::new().with_lease(lease);
                    TxnOp::put(name, record.encode(), Some(options))
                }
            });
        }
        let mut txn = Txn::new();
        if let [Operation { key, only_over: Some(revision), .. }] = batch {
            let name = self.feed.space.name(key);
            txn = txn.when([Compare::mod_revision(name, CompareOp::Equal, *revision)]);
        }
        let Attempted { value: answer, repeated } =
            self.feed.link.txn(txn.and_then(operations)).await?;
        let revision = answer.header().map_or(0, |header| header.revision());
        if !answer.succeeded() {
            let done = match batch {
                [write] if repeated => self.stands(write).await?,
                _ => false,
            };
            return Ok((vec![Done { changed: done, was_there: done }], revision));
        }
        let now = self.feed.clock.now();
        let done = batch.iter().zip(answer.op_responses()).map(|(write, answer)| match answer {
            TxnOpResponse::Delete(deleted) => {
                let before = deleted.prev_kvs().first();
                let before = before.and_then(|kv| self.feed.record(&write.key, kv.value()));
                let was_there = before.is_some_and(|record| !record.has_expired(now));
                // The answer of the attempt that deleted the value may have been lost.
                Done { changed: deleted.deleted() > 0, was_there: was_there || repeated }
            }
            _ => Done { changed: true, was_there: true },
        });
        Ok((done.collect(), revision))
    }

    /// Returns whether a write with a condition had its effect although its answer was lost.
    async fn stands(&self, write: &Operation) -> Result<bool, LinkError> {
        let name = self.feed.space.name(&write.key);
        let read = self.feed.link.get(name.into(), GetOptions::new()).await?;
        let stored = read.kvs().first().map(|kv| kv.value().to_vec());
        Ok(stored == write.record.as_ref().map(StoredRecord::encode))
    }

    /// Returns the id of a commit, which covers its place in etcd's history and its content.
    fn id(&self, write: &Operation, revision: i64) -> CommitId {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.cluster.to_be_bytes()).update(&revision.to_be_bytes());
        hasher.update(write.key.as_str().as_bytes()).update(b"\0");
        if let Some(record) = &write.record {
            hasher.update(&record.encode());
        }
        CommitId(*hasher.finalize().as_bytes())
    }
}

pub fn closed() -> StoreError {
    StoreError::Stopped("it was closed".into())
}
