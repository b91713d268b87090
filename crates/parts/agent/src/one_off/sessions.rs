//! The sessions of this node: those whose commands run, and those that have ended and are kept for
//! somebody who has not heard how.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, ensure};
use futures_util::future::join_all;
use model::{ApplicationName, BuildId, ReleaseId, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::{Order, STOP_GRACE};
use crate::AgentContext;
use crate::launcher::Held;
use runtime::members::BoxedStream;
use shim::spec::SessionSpec;

/// The maximum number of commands that run: each holds a process of a few megabytes with up to one
/// and a half of what passes, and whatever the command takes.
const SESSIONS_MAX: usize = 20;
/// The maximum number of one application, so that no team takes all of a node's.
const SESSIONS_EACH_MAX: usize = 10;
/// The maximum time in which stopped commands end, and whoever is connected hears of it.
const STOP_TIME_MAX: Duration = Duration::from_secs(8);
/// The time for a client to hear how a command ended that is not kept.
const TOLD_TIME_MAX: Duration = Duration::from_secs(1);
/// The maximum number of sessions that have ended and are kept; the oldest goes first.
const SESSIONS_ENDED_MAX: usize = 20;

/// A command that runs now, or has ended and is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OneOffSession {
    pub application: ApplicationName,
    /// The number in its name, such as `run.1`; no other session of the application here has it
    /// meanwhile.
    pub number: u32,
    pub id: String,
    pub by: String,
    pub detached: bool,
    pub release: ReleaseId,
    pub build: BuildId,
    pub command: String,
    pub started_at: Timestamp,
    pub pid: Option<u32>,
    /// How the command ended; `None` while it runs.
    pub ended: Option<String>,
    /// The number of clients that are connected here.
    pub clients: u32,
}

type Id = (ApplicationName, u32);

#[derive(Default)]
pub struct Sessions(Mutex<BTreeMap<Id, SessionEntry>>);

struct SessionEntry {
    session: OneOffSession,
    /// The process; `None` while it is being prepared.
    held: Option<Arc<dyn Held>>,
    /// Told that others need its place.
    unwanted: Arc<Notify>,
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Id, SessionEntry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn list(&self) -> Vec<OneOffSession> {
        self.lock().values().map(|entry| entry.session.clone()).collect()
    }

    /// Returns the builds of the application that commands use.
    pub fn builds_of(&self, application: &ApplicationName) -> Vec<BuildId> {
        let of = |session: &OneOffSession| {
            session.application == *application && session.ended.is_none()
        };
        self.list().into_iter().filter(of).map(|session| session.build).collect()
    }

    /// Stops all sessions; returns once they are gone, or ought to be.
    pub async fn stop_all(&self) {
        let held = self.stop(|_| true).await;
        let gone = join_all(held.iter().map(|held| held.gone()));
        if timeout(STOP_TIME_MAX, gone).await.is_err() {
            tracing::warn!("run.sessions_left");
        }
    }

    pub async fn stop_of(&self, application: &ApplicationName) {
        self.stop(|id| id.0 == *application).await;
    }

    async fn stop(&self, which: impl Fn(&Id) -> bool) -> Vec<Arc<dyn Held>> {
        let chosen = |(id, entry): (&Id, &SessionEntry)| {
            let held = entry.held.clone().filter(|_| which(id))?;
            entry.unwanted.notify_one();
            Some(held)
        };
        let held: Vec<Arc<dyn Held>> = self.lock().iter().filter_map(chosen).collect();
        for one in &held {
            if one.exit().borrow().is_none()
                && let Err(error) = one.stop(STOP_GRACE).await
            {
                tracing::warn!(error = format!("{error:#}"), "run.not_stopped");
            }
        }
        held
    }

    fn is_running(&self, id: &Id) -> bool {
        self.lock().get(id).is_some_and(|entry| entry.session.ended.is_none())
    }
}

/// Returns the lowest number that is free for a session more of the application, if there is room.
fn number(
    sessions: &BTreeMap<Id, SessionEntry>,
    application: &ApplicationName,
) -> anyhow::Result<u32> {
    let running = || sessions.iter().filter(|(_, entry)| entry.session.ended.is_none());
    ensure!(
        running().count() < SESSIONS_MAX,
        "{SESSIONS_MAX} commands run on this node already: end one (`cortex ps --all` lists them, \
         `cortex attach ID --stop` ends one), then try again"
    );
    ensure!(
        running().filter(|(id, _)| id.0 == *application).count() < SESSIONS_EACH_MAX,
        "{SESSIONS_EACH_MAX} commands of {application} run on this node already: end one \
         (`cortex ps` lists them, `cortex attach ID --stop` ends one), then try again"
    );
    let ended = sessions.values().filter(|entry| entry.session.ended.is_some());
    let oldest = ended.clone().min_by_key(|entry| entry.session.started_at);
    if let Some(oldest) = oldest.filter(|_| ended.count() >= SESSIONS_ENDED_MAX) {
        oldest.unwanted.notify_one();
    }
    let taken: BTreeSet<u32> =
        sessions.keys().filter(|id| id.0 == *application).map(|id| id.1).collect();
    Ok((1..).find(|number| !taken.contains(number)).unwrap_or(1))
}

/// Begins a session under the lowest number that is free.
pub(super) fn begin(
    context: &Arc<AgentContext>,
    order: &Order,
    command: &str,
    detached: bool,
) -> anyhow::Result<SessionPlace> {
    let mut sessions = context.one_offs.lock();
    let session = OneOffSession {
        application: order.application.clone(),
        number: number(&sessions, &order.application)?,
        id: order.session.clone(),
        by: order.by.clone(),
        detached,
        release: order.release.id.clone(),
        build: order.release.build_id(),
        command: command.into(),
        started_at: context.clock.now(),
        pid: None,
        ended: None,
        clients: 0,
    };
    Ok(SessionPlace::take(context, &mut sessions, session))
}

/// Returns the place of a session that an earlier node process began; `None` if it is taken, by
/// itself as a rule.
pub(super) fn again(context: &Arc<AgentContext>, held: &dyn Held) -> Option<SessionPlace> {
    let SessionSpec { id, number, by, command, release, build, detached, .. } =
        held.session()?.clone();
    let application = held.purpose().application().clone();
    let mut sessions = context.one_offs.lock();
    if sessions.contains_key(&(application.clone(), number)) {
        return None;
    }
    let session = OneOffSession {
        application,
        number,
        id,
        by,
        detached,
        release,
        build,
        command,
        started_at: held.started_at(),
        pid: None,
        ended: None,
        clients: 0,
    };
    Some(SessionPlace::take(context, &mut sessions, session))
}

/// A session's place among all, which is taken until this is dropped.
pub(super) struct SessionPlace {
    context: Arc<AgentContext>,
    id: Id,
    unwanted: Arc<Notify>,
}

impl SessionPlace {
    fn take(
        context: &Arc<AgentContext>,
        sessions: &mut BTreeMap<Id, SessionEntry>,
        session: OneOffSession,
    ) -> SessionPlace {
        let id = (session.application.clone(), session.number);
        let unwanted = Arc::new(Notify::new());
        let entry = SessionEntry { session, held: None, unwanted: unwanted.clone() };
        sessions.insert(id.clone(), entry);
        SessionPlace { context: context.clone(), id, unwanted }
    }

    pub fn application(&self) -> &ApplicationName {
        &self.id.0
    }

    pub fn number(&self) -> u32 {
        self.id.1
    }

    pub fn name(&self) -> String {
        format!("run.{}", self.id.1)
    }

    /// Notes the process.
    pub fn launched(&self, held: Arc<dyn Held>) -> SessionHandle {
        if let Some(entry) = self.context.one_offs.lock().get_mut(&self.id) {
            entry.session.pid = Some(held.process().pid);
            entry.held = Some(held.clone());
        }
        SessionHandle { context: self.context.clone(), id: self.id.clone(), held }
    }

    /// Notes how the command ended; returns whether that is news.
    pub fn ended(&self, how: &str) -> bool {
        let is_news = self.context.one_offs.is_running(&self.id);
        if let Some(entry) = self.context.one_offs.lock().get_mut(&self.id) {
            (entry.session.ended, entry.session.pid) = (Some(how.into()), None);
        }
        is_news
    }

    /// Returns once the place is needed for others, and the client had time to hear the end.
    pub async fn unwanted(&self) {
        self.unwanted.notified().await;
        tokio::time::sleep(TOLD_TIME_MAX).await;
    }
}

impl Drop for SessionPlace {
    fn drop(&mut self) {
        self.context.one_offs.lock().remove(&self.id);
    }
}

/// A session that can be attached to.
#[derive(Clone)]
pub struct SessionHandle {
    context: Arc<AgentContext>,
    id: Id,
    held: Arc<dyn Held>,
}

impl SessionHandle {
    /// Finds a session of the application by its id.
    pub fn find(
        context: &Arc<AgentContext>,
        application: &ApplicationName,
        id: &str,
    ) -> Option<SessionHandle> {
        let sessions = context.one_offs.lock();
        let mut of = sessions.iter().filter(|(key, _)| key.0 == *application);
        let (key, entry) = of.find(|(_, entry)| entry.session.id == id)?;
        let held = entry.held.clone()?;
        Some(SessionHandle { context: context.clone(), id: key.clone(), held })
    }

    pub(super) fn is_detached(&self) -> bool {
        self.held.session().is_some_and(|session| session.detached)
    }

    pub(super) async fn attach(&self, by: &str) -> anyhow::Result<BoxedStream> {
        self.held.attach(by).await.context("the command's shim is not reached")
    }

    pub(super) async fn hang_up(&self) -> anyhow::Result<()> {
        self.held.hang_up().await
    }

    /// Ends the command: SIGTERM, and SIGKILL soon after.
    pub async fn stop(&self) -> anyhow::Result<()> {
        self.held.stop(STOP_GRACE).await
    }

    /// Counts a client that is connected, until the result is dropped.
    pub(super) fn carried(&self) -> Carried {
        self.count(1);
        Carried(self.clone())
    }

    fn count(&self, more: i32) {
        if let Some(entry) = self.context.one_offs.lock().get_mut(&self.id)
            && entry.held.as_ref().is_some_and(|held| Arc::ptr_eq(held, &self.held))
        {
            entry.session.clients = entry.session.clients.saturating_add_signed(more);
        }
    }
}

pub(super) struct Carried(SessionHandle);

impl Drop for Carried {
    fn drop(&mut self) {
        self.0.count(-1);
    }
}
