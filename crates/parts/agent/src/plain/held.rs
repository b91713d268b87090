//! One process held by a shim, as the node sees it: a task that listens to the shim, and the
//! handle to it. Any runtime may use the handle.

use std::sync::Arc;
use std::time::Duration;

use agent_core::application::Exit;
use anyhow::Context;
use async_trait::async_trait;
use model::Timestamp;
use model::instance::ProcessIdentity;
use model::port::InstancePorts;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::link::ShimLink;
use super::{FoundProcess, Renewal, ShimDirectories, find};
use crate::launcher::Held;
use runtime::members::BoxedStream;
use shim::message::{ShimCommand, Tell};
use shim::record::{self, ExitRecord, Holding};
use shim::spec::{Purpose, SessionSpec};

/// The number of renewals within one lease: so many that even a slow machine keeps its leases.
/// `RENEWAL_PAUSE` applies where the limit is not known.
const RENEWALS_PER_LEASE: u32 = 6;
const RENEWAL_PAUSE: Duration = Duration::from_secs(5);
/// The renewal pause where there is no limit: a shim that knows this needs nothing more.
const UNLIMITED_PAUSE: Duration = Duration::from_secs(3600);
/// The maximum number of requests that wait: a stop, a shorter stop, a forget; they are rare.
const REQUESTS_MAX: usize = 8;
/// The maximum wait for an answer: a shim obeys at once, unless it hangs on a stalled disk.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause before looking again at a shim whose state cannot be read.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

pub struct PlainHeld {
    place: Arc<ShimDirectories>,
    holding: Holding,
    exit: watch::Receiver<Option<Exit>>,
    requests: mpsc::Sender<(ShimCommand, oneshot::Sender<()>)>,
    task: Option<AbortHandle>,
}

impl PlainHeld {
    pub fn running(place: Arc<ShimDirectories>, link: ShimLink, holding: Holding) -> PlainHeld {
        let (exit_sender, exit) = watch::channel(None);
        PlainHeld::listening(place, Some(link), holding, exit_sender, exit)
    }

    pub fn ended(
        place: Arc<ShimDirectories>,
        link: Option<ShimLink>,
        ended: ExitRecord,
    ) -> PlainHeld {
        let (exit_sender, exit) = watch::channel(Some(ended.exit()));
        PlainHeld::listening(place, link, ended.holding, exit_sender, exit)
    }

    fn listening(
        place: Arc<ShimDirectories>,
        link: Option<ShimLink>,
        holding: Holding,
        exit_sender: watch::Sender<Option<Exit>>,
        exit: watch::Receiver<Option<Exit>>,
    ) -> PlainHeld {
        let (requests, receiver) = mpsc::channel(REQUESTS_MAX);
        let task = link.map(|link| {
            let listener = ShimListener {
                place: place.clone(),
                id: holding.purpose.id(),
                exit: exit_sender,
                requests: receiver,
            };
            runtime::task::spawn(listener.run(link)).abort_handle()
        });
        PlainHeld { place, holding, exit, requests, task }
    }

    pub fn holding(&self) -> &Holding {
        &self.holding
    }

    /// Sends a request to the shim; returns false when the shim is gone.
    async fn ask(&self, ask: ShimCommand) -> anyhow::Result<bool> {
        let (done, answer) = oneshot::channel();
        if self.requests.send((ask, done)).await.is_err() {
            return Ok(false);
        }
        let answered = tokio::time::timeout(ANSWER_TIMEOUT, answer).await.with_context(|| {
            format!("the shim of {} does not answer", self.holding.purpose.id())
        })?;
        Ok(answered.is_ok())
    }
}

impl Drop for PlainHeld {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

#[async_trait]
impl Held for PlainHeld {
    fn purpose(&self) -> &Purpose {
        &self.holding.purpose
    }

    fn process(&self) -> &ProcessIdentity {
        &self.holding.process
    }

    fn port(&self) -> Option<u16> {
        self.holding.port
    }

    fn ports(&self) -> &InstancePorts {
        &self.holding.ports
    }

    fn exit(&self) -> watch::Receiver<Option<Exit>> {
        self.exit.clone()
    }

    async fn stop(&self, grace: Duration) -> anyhow::Result<()> {
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        // A shim that is gone has nothing left to stop: its listener sees to what it left behind.
        self.ask(ShimCommand::Stop { grace_ms }).await?;
        Ok(())
    }

    async fn signal(&self, signal: i32) -> anyhow::Result<()> {
        self.ask(ShimCommand::Signal { signal }).await?;
        Ok(())
    }

    fn started_at(&self) -> Timestamp {
        self.holding.started_at
    }

    fn session(&self) -> Option<&SessionSpec> {
        self.holding.session.as_ref()
    }

    async fn attach(&self, by: &str) -> anyhow::Result<BoxedStream> {
        let socket = self.place.layout.shim_socket(&self.holding.purpose.id());
        let attaching = async { ShimLink::connect(&socket).await?.attach(by).await };
        let stream = tokio::time::timeout(ANSWER_TIMEOUT, attaching).await;
        Ok(Box::new(stream.context("it does not answer")??))
    }

    async fn hang_up(&self) -> anyhow::Result<()> {
        self.ask(ShimCommand::HangUp).await?;
        Ok(())
    }

    async fn gone(&self) {
        self.requests.closed().await;
    }

    async fn forget(&self) -> anyhow::Result<()> {
        let id = self.holding.purpose.id();
        anyhow::ensure!(self.exit.borrow().is_some(), "{id} is still running; stop it first");
        self.ask(ShimCommand::Forget).await?;
        let (run, process) = (self.place.run(&id), self.holding.process.clone());
        runtime::task::spawn_blocking(move || {
            // A later process of the same id may have taken the place.
            match record::read::<Holding>(&run.join(record::STATE))? {
                Some(other) if other.process != process => Ok(()),
                _ => record::remove(&run),
            }
        })
        .await??;
        Ok(())
    }
}

/// The state of the task that listens to the shim.
struct ShimListener {
    place: Arc<ShimDirectories>,
    id: String,
    exit: watch::Sender<Option<Exit>>,
    requests: mpsc::Receiver<(ShimCommand, oneshot::Sender<()>)>,
}

impl ShimListener {
    /// Runs until the shim is gone for good.
    async fn run(mut self, mut link: ShimLink) {
        loop {
            self.listen(&mut link).await;
            if self.exit.borrow().is_some() {
                return;
            }
            // The shim went, or it let go of this connection alone.
            link = match find(&self.place, &self.id).await {
                Ok(FoundProcess::Running(link, _)) => link,
                Ok(FoundProcess::Ended(link, ended)) => {
                    self.exit.send_replace(Some(ended.exit()));
                    match link {
                        Some(link) => link,
                        None => return,
                    }
                }
                Ok(FoundProcess::Waiting(_) | FoundProcess::Nothing) => {
                    self.exit.send_replace(Some(lost("what it left on disk was removed")));
                    return;
                }
                Err(error) => {
                    tracing::error!(id = self.id, error = format!("{error:#}"), "shim.lost");
                    tokio::time::sleep(LOOK_AGAIN).await;
                    continue;
                }
            };
        }
    }

    /// Listens until the connection ends. Answers come in the order of the requests.
    async fn listen(&mut self, link: &mut ShimLink) {
        let mut waiting = std::collections::VecDeque::new();
        let mut lease = self.place.lease.subscribe();
        lease.mark_changed();
        let mut renew_at = Instant::now();
        loop {
            let speaks = waiting.len() < REQUESTS_MAX;
            let renews = speaks && self.exit.borrow().is_none();
            let (ask, done) = tokio::select! {
                heard = link.hear() => {
                    match self.heard(heard) {
                        Heard::Answer => drop(waiting.pop_front().map(finish)),
                        Heard::News => {}
                        Heard::End => return,
                    }
                    continue;
                }
                Some((ask, done)) = self.requests.recv(), if speaks => (ask, Some(done)),
                Ok(()) = lease.changed(), if renews => {
                    renew_at = Instant::now() + pause(*lease.borrow());
                    (lease.borrow_and_update().ask(), None)
                }
                () = tokio::time::sleep_until(renew_at), if renews => {
                    renew_at = Instant::now() + pause(*lease.borrow());
                    (lease.borrow().ask(), None)
                }
            };
            waiting.push_back(done);
            if link.ask(ask).await.is_err() {
                return;
            }
        }
    }

    fn heard(&mut self, heard: std::io::Result<Option<Tell>>) -> Heard {
        match heard {
            Ok(Some(
                Tell::Stopping
                | Tell::Signalled
                | Tell::Renewed
                | Tell::Forgotten
                | Tell::Attaching
                | Tell::Refused { .. },
            )) => Heard::Answer,
            Ok(Some(Tell::Ended { ended })) => {
                self.exit.send_replace(Some(ended.exit()));
                Heard::News
            }
            Ok(Some(Tell::Running { .. } | Tell::Waiting | Tell::Failed { .. })) => Heard::News,
            Ok(None) => Heard::End,
            Err(error) => {
                tracing::warn!(id = self.id, %error, "shim.connection_failed");
                Heard::End
            }
        }
    }
}

enum Heard {
    /// The answer to the oldest request.
    Answer,
    News,
    End,
}

fn finish(done: Option<oneshot::Sender<()>>) {
    if let Some(done) = done {
        done.send(()).ok();
    }
}

fn pause(renewal: Renewal) -> Duration {
    match renewal {
        Renewal::AsBefore => RENEWAL_PAUSE,
        Renewal::Limit(None) => UNLIMITED_PAUSE,
        Renewal::Limit(Some(limit)) => limit / RENEWALS_PER_LEASE,
    }
}

fn lost(how: &str) -> Exit {
    Exit { how: how.to_owned(), ..Exit::default() }
}
