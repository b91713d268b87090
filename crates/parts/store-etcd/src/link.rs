//! The connection to an etcd cluster: requests with time limits, repeated while the cluster may
//! come back, and errors that say what to do. Knows nothing of what is asked for.

use std::future::Future;
use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, ConnectOptions, Error, GetOptions, GetResponse, KvClient,
    LeaseClient, Txn, TxnOp, TxnResponse, WatchClient, WatchOptions, WatchStream,
};
use thiserror::Error;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout};

use super::Address;
use store::StoreError;
use store::options::OpenError;

/// The time limit of one attempt; a healthy cluster answers within milliseconds.
const ATTEMPT_MAX: Duration = Duration::from_secs(3);
/// The time within which a request is repeated; an election, or a restart of a member, takes a few
/// seconds.
const RETRIES_MAX: Duration = Duration::from_secs(12);
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// The interval of pings on the connection. A member that vanished is noticed after this and the
/// timeout; etcd itself allows a ping every five seconds.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// The size limit of a message in bytes: a thousand revisions travel in one when a watch catches
/// up, each with a small value.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Codes of gRPC, as etcd uses them.
mod code {
    pub const CANCELLED: i32 = 1;
    pub const UNKNOWN: i32 = 2;
    pub const DEADLINE: i32 = 4;
    pub const NOT_FOUND: i32 = 5;
    pub const DENIED: i32 = 7;
    pub const EXHAUSTED: i32 = 8;
    pub const PRECONDITION: i32 = 9;
    pub const ABORTED: i32 = 10;
    pub const OUT_OF_RANGE: i32 = 11;
    pub const INTERNAL: i32 = 13;
    pub const UNAVAILABLE: i32 = 14;
    pub const UNAUTHENTICATED: i32 = 16;
}

#[derive(Clone, Debug, Error)]
pub enum LinkError {
    /// The revision asked for is no longer in the history.
    #[error("etcd has compacted that part of its history")]
    Compacted,
    #[error("etcd has no such lease")]
    NoLease,
    /// What was written may have been stored all the same.
    #[error(
        "etcd at {endpoints} does not answer ({why}); see to it that it runs and has a leader \
         (etcdctl --endpoints={endpoints} endpoint health). A write under way may or may not have \
         been stored: look, or write it again"
    )]
    Unavailable { endpoints: String, why: String },
    #[error("etcd at {endpoints} refused: {why}")]
    Refused { endpoints: String, why: String },
}

/// There is no `From`: builds without this feature have to infer their types with it as well.
impl LinkError {
    pub fn into_store(self) -> StoreError {
        match self {
            LinkError::Unavailable { .. } => StoreError::Unavailable(self.to_string()),
            _ => StoreError::Refused(self.to_string()),
        }
    }

    pub fn into_open(self) -> OpenError {
        OpenError::Backend(self.to_string())
    }
}

/// An answer, and whether an earlier attempt may already have had its effect.
pub struct Attempted<T> {
    pub value: T,
    pub repeated: bool,
}

#[derive(Clone)]
pub struct EtcdLink {
    kv: KvClient,
    lease: LeaseClient,
    watch: WatchClient,
    endpoints: String,
    /// The runtime of the connection: callers may be on runtimes that have no timers.
    home: Handle,
}

impl EtcdLink {
    /// Sets up the connection without waiting for a member; the first request does that.
    pub async fn connect(address: &Address) -> Result<EtcdLink, LinkError> {
        let endpoints = address.endpoints.join(",");
        let options = ConnectOptions::new()
            .with_connect_timeout(ATTEMPT_MAX)
            .with_keep_alive(KEEP_ALIVE_INTERVAL, KEEP_ALIVE_TIMEOUT)
            .with_keep_alive_while_idle(true)
            .with_require_leader(true);
        let client = Client::connect(&address.endpoints, Some(options)).await;
        let refused = |error: Error| LinkError::Refused {
            endpoints: endpoints.clone(),
            why: error.to_string(),
        };
        let client = client.map_err(refused)?;
        Ok(EtcdLink {
            kv: client.kv_client().max_decoding_message_size(MESSAGE_BYTES_MAX),
            lease: client.lease_client(),
            watch: client.watch_client().max_decoding_message_size(MESSAGE_BYTES_MAX),
            endpoints,
            home: Handle::current(),
        })
    }

    pub async fn get(&self, key: Vec<u8>, options: GetOptions) -> Result<GetResponse, LinkError> {
        let kv = self.kv.clone();
        let answer = self.retry(move || {
            let (mut kv, key, options) = (kv.clone(), key.clone(), options.clone());
            async move { kv.get(key, Some(options)).await }
        });
        Ok(answer.await?.value)
    }

    pub async fn txn(&self, txn: Txn) -> Result<Attempted<TxnResponse>, LinkError> {
        let kv = self.kv.clone();
        self.retry(move || {
            let (mut kv, txn) = (kv.clone(), txn.clone());
            async move { kv.txn(txn).await }
        })
        .await
    }

    /// Puts `value` if the key is absent; returns what is there then.
    pub async fn create(&self, key: &str, value: &str) -> Result<Vec<u8>, LinkError> {
        let absent = Compare::create_revision(key, CompareOp::Equal, 0);
        let txn = Txn::new().when([absent]).and_then([TxnOp::put(key, value, None)]);
        self.txn(txn).await?;
        let read = self.get(key.into(), GetOptions::new()).await?;
        let kept = read.kvs().first().map(|kv| kv.value().to_vec());
        kept.ok_or_else(|| self.refusal(format!("'{key}' is gone as soon as it is written")))
    }

    /// Puts a value; returns the cluster's id and its revision after this write.
    pub async fn put(&self, key: &str, value: &str) -> Result<(u64, i64), LinkError> {
        let txn = Txn::new().and_then([TxnOp::put(key, value, None)]);
        let answer = self.txn(txn).await?;
        let header = answer.value.header().map(|header| (header.cluster_id(), header.revision()));
        header.ok_or_else(|| self.refusal("an answer has no header".into()))
    }

    /// Grants a lease that ends on the cluster's clock.
    pub async fn grant(&self, seconds: i64) -> Result<i64, LinkError> {
        let lease = self.lease.clone();
        let answer = self.retry(move || {
            let mut lease = lease.clone();
            async move { lease.grant(seconds, None).await }
        });
        Ok(answer.await?.value.id())
    }

    pub async fn compact(&self, revision: i64) -> Result<(), LinkError> {
        let kv = self.kv.clone();
        let compacted = self.retry(move || {
            let mut kv = kv.clone();
            async move { kv.compact(revision, None).await }
        });
        match compacted.await {
            // Another user has compacted further already.
            Ok(_) | Err(LinkError::Compacted) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Starts a watch, with a single attempt: the follower has its own way to begin again.
    pub async fn watch(&self, key: &str, from: i64) -> Result<WatchStream, LinkError> {
        let (mut watch, key) = (self.watch.clone(), key.to_string());
        let options = WatchOptions::new().with_prefix().with_start_revision(from);
        let begun = async move { watch.watch(key, Some(options)).await };
        match timeout(ATTEMPT_MAX, begun).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(self.judge(&error).into_error(self)),
            Err(_) => Err(self.unavailable("no answer in time".into())),
        }
    }

    pub fn unavailable(&self, why: String) -> LinkError {
        LinkError::Unavailable { endpoints: self.endpoints.clone(), why }
    }

    pub fn refusal(&self, why: String) -> LinkError {
        LinkError::Refused { endpoints: self.endpoints.clone(), why }
    }

    pub fn endpoints(&self) -> &str {
        &self.endpoints
    }

    pub fn home(&self) -> &Handle {
        &self.home
    }

    /// Repeats a request on the home runtime, whatever the caller's is.
    async fn retry<T, F>(
        &self,
        request: impl Fn() -> F + Send + 'static,
    ) -> Result<Attempted<T>, LinkError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send,
    {
        let link = self.clone();
        let answered = self.home.spawn(async move { link.persist(request).await });
        match answered.await {
            Ok(answer) => answer,
            Err(_) => Err(self.unavailable("the runtime is shutting down".into())),
        }
    }

    async fn persist<T, F>(&self, request: impl Fn() -> F) -> Result<Attempted<T>, LinkError>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let deadline = Instant::now() + RETRIES_MAX;
        let (mut pause, mut repeated) = (PAUSE_MIN, false);
        loop {
            let why = match timeout(ATTEMPT_MAX, request()).await {
                Ok(Ok(value)) => return Ok(Attempted { value, repeated }),
                Ok(Err(error)) => match self.judge(&error) {
                    ErrorClass::Passing(why) => why,
                    verdict => return Err(verdict.into_error(self)),
                },
                Err(_) => "no answer in time".to_string(),
            };
            if Instant::now() + pause >= deadline {
                return Err(self.unavailable(why));
            }
            tracing::debug!(why, "etcd.retry");
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
            repeated = true;
        }
    }

    pub fn judge(&self, error: &Error) -> ErrorClass {
        let Error::GRpcStatus(status) = error else {
            return ErrorClass::Passing(error.to_string());
        };
        let text = status.message();
        match status.code() as i32 {
            code::OUT_OF_RANGE if text.contains("compacted") => ErrorClass::Compacted,
            code::NOT_FOUND if text.contains("lease") => ErrorClass::NoLease,
            code::EXHAUSTED if text.contains("space") => ErrorClass::Final(format!(
                "its space is used up ({text}); compact it (cortex squashes every hour), run \
                 etcdctl defrag, raise --quota-backend-bytes if that is not enough, then etcdctl \
                 alarm disarm. Nothing was written"
            )),
            code::UNAUTHENTICATED | code::DENIED => ErrorClass::Final(format!(
                "{text}; this Cortex logs in nowhere: use a cluster without authentication on a \
                 network of its own"
            )),
            code::CANCELLED
            | code::UNKNOWN
            | code::DEADLINE
            | code::EXHAUSTED
            | code::PRECONDITION
            | code::ABORTED
            | code::INTERNAL
            | code::UNAVAILABLE => ErrorClass::Passing(text.to_string()),
            number => ErrorClass::Final(format!("{text} (code {number})")),
        }
    }
}

/// The meaning of an error for the next attempt.
pub enum ErrorClass {
    Passing(String),
    Compacted,
    NoLease,
    Final(String),
}

impl ErrorClass {
    pub fn into_error(self, link: &EtcdLink) -> LinkError {
        match self {
            ErrorClass::Passing(why) => link.unavailable(why),
            ErrorClass::Compacted => LinkError::Compacted,
            ErrorClass::NoLease => LinkError::NoLease,
            ErrorClass::Final(why) => link.refusal(why),
        }
    }
}
