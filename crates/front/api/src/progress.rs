//! The progress of a release as a stream of JSON lines: phases from the store, output of its steps
//! from its log. It ends with the rollout.

mod headings;

use std::collections::BTreeSet;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use model::{
    ApplicationName, InstanceState, NodeId, Prefix, ReleaseId, Rollout, RolloutPhase, Timestamp,
    TypedKey,
};
use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TryRecvError;

use self::headings::Headings;
use super::problem::Problem;
use super::{Shared, records, releases};
use crate::calls;
use crate::calls::CallKind;
use agent::prepare;
use api_types::{LogLine, Progress};
use logs::follow::Follower;
use logs::{Item, is_in_steps};

/// The time between two looks at the steps' log; a change of phase is seen at once.
const LOG_POLL: Duration = Duration::from_millis(50);
/// The longest time that progress is reported: no build takes longer, and a client that still
/// listens then is told to look again.
const WAIT_MAX: Duration = Duration::from_secs(3600);
/// The longest wait for the router, which follows the store within milliseconds; one that is being
/// restarted is not waited for.
const ROUTER_WAIT_MAX: Duration = Duration::from_secs(2);
const ROUTER_POLL: Duration = Duration::from_millis(2);
/// The longest wait for the last lines of another node's steps.
const FAR_END_MAX: Duration = Duration::from_secs(2);
/// The most complaints shown of instances that are not ready; more different ones of one start help
/// nobody.
const WAITING_LINES_MAX: usize = 100;
/// Lines that wait between a step and a slow terminal.
const LINES_WAITING_MAX: usize = 64;

pub async fn stream(
    State(api): State<Shared>,
    Path((name, id)): Path<(String, String)>,
) -> Result<Response, Problem> {
    let app = records::require(&*api.store, &name).await?;
    let id = releases::resolve(&app, &id)?.id.clone();
    let key = TypedKey::Rollout(app.name.clone()).key();
    let watch = api.store.watch(Prefix::from(key), None).await?;
    let log = Follower::from_start(api.layout.build_log(&app.name, &id), "build".into());
    let (sender, receiver) = mpsc::channel(LINES_WAITING_MAX);
    let (unable, waiting) = (BTreeSet::new(), BTreeSet::new());
    let (headings, builder, far) = (Headings::default(), None, None);
    let reporter = Reporter { api, name, id, log, headings, unable, builder, far, waiting, sender };
    runtime::task::spawn(async move { reporter.run(watch).await });
    Ok(ndjson(receiver))
}

/// Returns a response of one JSON object a line.
pub fn ndjson<T: Serialize + Send + 'static>(receiver: mpsc::Receiver<T>) -> Response {
    let lines = futures_util::stream::unfold(receiver, |mut receiver| async {
        let item = receiver.recv().await?;
        let mut line = serde_json::to_vec(&item).unwrap_or_default();
        line.push(b'\n');
        Some((Ok::<_, std::convert::Infallible>(bytes::Bytes::from(line)), receiver))
    });
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response()
}

struct Reporter {
    api: Shared,
    name: String,
    id: ReleaseId,
    log: Follower,
    headings: Headings,
    /// Nodes that were reported as unable to build it.
    unable: BTreeSet<NodeId>,
    /// The other node that was reported as building it.
    builder: Option<NodeId>,
    /// The lines that the steps print on that node while they run.
    far: Option<mpsc::Receiver<LogLine>>,
    /// What was reported of instances that are not ready.
    waiting: BTreeSet<String>,
    sender: mpsc::Sender<Progress>,
}

/// The error that the client is gone or has been told how it ended.
struct ProgressOver;

impl Reporter {
    async fn run(mut self, mut watch: store::Watch) {
        let deadline = tokio::time::Instant::now() + WAIT_MAX;
        while self.report().await.is_ok() {
            if tokio::time::Instant::now() >= deadline {
                let message = "no end within an hour; `cortex releases` tells how it went".into();
                self.sender.send(Progress::Failed { message, serving: None }).await.ok();
                return;
            }
            tokio::select! {
                event = watch.next() => if event.is_none() { return },
                () = tokio::time::sleep(LOG_POLL) => {}
                () = self.sender.closed() => return,
            }
        }
    }

    /// Reports everything new, in order: a phase's output comes before the next phase.
    async fn report(&mut self) -> Result<(), ProgressOver> {
        let app = match records::require(&*self.api.store, &self.name).await {
            Ok(app) => app,
            Err(problem) => {
                let message = problem.body().detail;
                return self.end(Progress::Failed { message, serving: None }).await;
            }
        };
        let Some(rollout) = &app.rollout else {
            return Ok(());
        };
        let target = rollout.target.as_ref();
        let is_meant = target == Some(&self.id);
        if is_meant {
            self.headings.turn_to(rollout.phase, rollout.changed_at);
        }
        // The log is read after the state: what a phase wrote before it ended is there by now.
        // Before the first phase nothing is: what is read then has its heading still to come.
        if !is_meant || rollout.phase != RolloutPhase::Requested {
            self.report_log().await?;
        }
        self.report_far(is_meant && is_in_steps(rollout.phase)).await?;
        if !is_meant {
            let ended = match target {
                Some(target) if rollout.serving.as_ref() != Some(&self.id) => {
                    Progress::Overtaken { by: app.label(target) }
                }
                _ => Progress::Done { url: app.url(&self.api.url_host()), warning: None },
            };
            return self.end(ended).await;
        }
        if let Some(phase) = self.headings.below_lines() {
            self.send_phase(phase).await?;
        }
        self.report_builder(rollout).await?;
        if rollout.phase == RolloutPhase::Starting {
            self.report_waiting(&app).await?;
        }
        match rollout.phase {
            RolloutPhase::Done => {
                self.await_router(&app.name).await;
                let warnings = [rollout.message.clone(), self.left_behind(&app).await];
                let warnings: Vec<String> = warnings.into_iter().flatten().collect();
                let warning = (!warnings.is_empty()).then(|| warnings.join("\n"));
                let url = app.url(&self.api.url_host());
                self.end(Progress::Done { url, warning }).await
            }
            RolloutPhase::Failed => {
                let message =
                    rollout.message.clone().unwrap_or_else(|| "no reason is known".into());
                let serving = rollout.serving.as_ref().map(|id| app.label(id));
                self.end(Progress::Failed { message, serving }).await
            }
            _ => Ok(()),
        }
    }

    async fn report_log(&mut self) -> Result<(), ProgressOver> {
        loop {
            let lines = self.log.read();
            if lines.is_empty() {
                return Ok(());
            }
            for line in lines {
                self.send_line(line).await?;
            }
        }
    }

    /// Reports what another node's steps have printed; all of it once they have ended.
    async fn report_far(&mut self, goes_on: bool) -> Result<(), ProgressOver> {
        let Some(mut far) = self.far.take() else { return Ok(()) };
        let deadline = tokio::time::Instant::now() + FAR_END_MAX;
        loop {
            let next = match goes_on {
                true => far.try_recv().map_err(|error| error == TryRecvError::Disconnected),
                // That node learns of the end by itself, and ends the stream.
                false => {
                    let next = tokio::time::timeout_at(deadline, far.recv()).await;
                    next.ok().flatten().ok_or(true)
                }
            };
            match next {
                Ok(line) => self.send_line(line).await?,
                Err(true) => return Ok(()),
                Err(false) => break,
            }
        }
        self.far = Some(far);
        Ok(())
    }

    async fn report_builder(&mut self, rollout: &Rollout) -> Result<(), ProgressOver> {
        for (node, why) in &rollout.unable {
            if self.unable.insert(node.clone()) {
                let text = format!("Node {node} cannot build it: {why}");
                self.send(Progress::Line { text }).await?;
            }
        }
        let builder = &rollout.coordinator;
        let building = matches!(rollout.phase, RolloutPhase::Building | RolloutPhase::Releasing);
        let elsewhere = building && *builder != self.api.node;
        if elsewhere && self.builder.as_ref() != Some(builder) {
            self.builder = Some(builder.clone());
            self.send(Progress::Line { text: format!("On node {builder}") }).await?;
            self.far = Some(self.listen(builder.clone()));
        }
        Ok(())
    }

    /// Returns a warning about files that the previous release wrote into a tree of its own.
    async fn left_behind(&self, app: &records::ApplicationRecords) -> Option<String> {
        let new = app.release(&self.id)?.clone();
        let old = app.release(new.replaces.as_ref()?)?.clone();
        let (layout, name) = (self.api.layout.clone(), app.name.clone());
        let look = move || prepare::left_behind(&layout, &name, &old, &new);
        runtime::task::spawn_blocking(look).await.ok().flatten()
    }

    /// Follows the build's log on that node. A node that is not reached builds all the same; if it
    /// fails, the failure carries the end of what it printed.
    fn listen(&self, builder: NodeId) -> mpsc::Receiver<LogLine> {
        let (sender, receiver) = mpsc::channel(LINES_WAITING_MAX);
        let Some(peers) = self.api.peers.clone() else { return receiver };
        let (id, name) = (self.id.clone(), self.name.parse());
        runtime::task::spawn(async move {
            let Ok(application) = name else { return };
            let ask = CallKind::BuildLog { application, release: id };
            let Ok(mut stream) = calls::call(&*peers, &builder, ask).await else { return };
            loop {
                tokio::select! {
                    item = calls::receive::<Item>(&mut stream) => match item {
                        Ok(Some(Item::Line(line))) => {
                            if sender.send(line).await.is_err() {
                                return;
                            }
                        }
                        Ok(Some(Item::Now)) => {}
                        Ok(None) | Err(_) => return,
                    },
                    () = sender.closed() => return,
                }
            }
        });
        receiver
    }

    /// Reports what keeps its instances from being ready, on any node, each complaint once.
    async fn report_waiting(
        &mut self,
        app: &records::ApplicationRecords,
    ) -> Result<(), ProgressOver> {
        for (instance, _, one) in app.incarnations() {
            let waits = matches!(one.state, InstanceState::Starting | InstanceState::Crashed);
            let Some(reason) = one.reason.as_ref().filter(|_| waits && one.release == self.id)
            else {
                continue;
            };
            let text = format!("{}: {reason}", instance.label());
            if self.waiting.len() < WAITING_LINES_MAX && self.waiting.insert(text.clone()) {
                self.send(Progress::Line { text }).await?;
            }
        }
        Ok(())
    }

    /// Waits for the router, so that a user who is told that a release serves gets its answers and
    /// not those of the one before.
    async fn await_router(&self, name: &ApplicationName) {
        let deadline = tokio::time::Instant::now() + ROUTER_WAIT_MAX;
        while !self.api.control.serves(name, &self.id) && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(ROUTER_POLL).await;
        }
    }

    async fn send_line(&mut self, line: LogLine) -> Result<(), ProgressOver> {
        if let Some(phase) = self.headings.above_line(line.time.as_deref().and_then(printed_at)) {
            self.send_phase(phase).await?;
        }
        self.send(Progress::Line { text: line.text }).await
    }

    async fn send_phase(&self, phase: RolloutPhase) -> Result<(), ProgressOver> {
        self.send(Progress::Phase { phase: records::phase_word(phase).to_string() }).await
    }

    async fn send(&self, progress: Progress) -> Result<(), ProgressOver> {
        self.sender.send(progress).await.map_err(|_| ProgressOver)
    }

    async fn end(&self, progress: Progress) -> Result<(), ProgressOver> {
        self.send(progress).await.ok();
        Err(ProgressOver)
    }
}

fn printed_at(rfc3339: &str) -> Option<Timestamp> {
    let at = OffsetDateTime::parse(rfc3339, &Rfc3339).ok()?;
    u64::try_from(at.unix_timestamp_nanos() / 1_000_000).ok().map(Timestamp)
}
