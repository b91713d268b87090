//! Commands that people run beside the instances, in a release's own surroundings, connected to the
//! person who runs them. Owns the sessions of this node: how many, which, and how they end. The
//! exchange with the client is in `relay`; must not know by which way the stream came.

mod ends;
mod relay;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use model::{ApplicationName, BuildId, ProcessType, Release, ReleaseId, Timestamp};
use rustix::process::Signal;
use tokio::time::timeout;

use self::ends::Ends;
use self::relay::{SessionClient, SessionOutcome, relay};
use super::AgentContext;
use super::launcher::Held;
use api_types::session::{SessionFrame, SessionStart};
use runtime::members::BoxedStream;
use shim::spec::LaunchSpec;

/// The maximum number of sessions: each holds a few files and up to half a megabyte here, and
/// whatever the command takes.
const SESSIONS_MAX: usize = 20;
/// The maximum wait for a client's first frame; clients send it at once.
const START_TIME_MAX: Duration = Duration::from_secs(10);
/// The time after SIGHUP for a command that has something to finish.
const HANGUP_GRACE: Duration = Duration::from_secs(10);
/// The time from SIGTERM to SIGKILL.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// The maximum length of a command where people read it, in characters.
const SHOWN_CHARS_MAX: usize = 200;
/// The `TERM` that programs take for a terminal that can do nothing.
const TERMINAL_FALLBACK: &str = "dumb";

/// The application and the release in which a client may run a command, which it names later.
#[derive(Clone, Debug)]
pub struct Order {
    pub application: ApplicationName,
    pub release: Release,
    /// The person who asked, for people to read.
    pub by: String,
}

/// A command that runs now.
#[derive(Clone, Debug, PartialEq)]
pub struct OneOffSession {
    pub application: ApplicationName,
    /// The number in its name, such as `run.1`; no other session of the application has it
    /// meanwhile.
    pub number: u32,
    pub release: ReleaseId,
    pub build: BuildId,
    pub command: String,
    pub started_at: Timestamp,
    pub pid: Option<u32>,
}

type Id = (ApplicationName, u32);

#[derive(Default)]
pub struct Sessions(Mutex<BTreeMap<Id, SessionEntry>>);

struct SessionEntry {
    session: OneOffSession,
    /// The process; `None` while it is being prepared.
    held: Option<Arc<dyn Held>>,
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Id, SessionEntry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn list(&self) -> Vec<OneOffSession> {
        self.lock().values().map(|entry| entry.session.clone()).collect()
    }

    /// Returns the builds of the application that sessions use.
    pub fn builds_of(&self, application: &ApplicationName) -> Vec<BuildId> {
        let of = |session: &OneOffSession| session.application == *application;
        self.list().into_iter().filter(of).map(|session| session.build).collect()
    }

    /// Stops all sessions; returns when that is under way, as shims see to the rest.
    pub async fn stop_all(&self) {
        self.stop(|_| true).await;
    }

    pub async fn stop_of(&self, application: &ApplicationName) {
        self.stop(|id| id.0 == *application).await;
    }

    async fn stop(&self, which: impl Fn(&Id) -> bool) {
        let chosen = |(id, entry): (&Id, &SessionEntry)| entry.held.clone().filter(|_| which(id));
        let held: Vec<Arc<dyn Held>> = self.lock().iter().filter_map(chosen).collect();
        for one in held {
            if let Err(error) = one.stop(STOP_GRACE).await {
                tracing::warn!(error = format!("{error:#}"), "run.not_stopped");
            }
        }
    }

    /// Begins a session under the lowest number that is free.
    fn begin(&self, order: &Order, now: Timestamp) -> anyhow::Result<SessionNumber<'_>> {
        let mut sessions = self.lock();
        ensure!(
            sessions.len() < SESSIONS_MAX,
            "{SESSIONS_MAX} commands run on this node already: end one (`cortex ps --all` lists \
             them), then try again"
        );
        let application = order.application.clone();
        let taken: BTreeSet<u32> =
            sessions.keys().filter(|id| id.0 == application).map(|id| id.1).collect();
        let number = (1..).find(|number| !taken.contains(number)).unwrap_or(1);
        let session = OneOffSession {
            application: application.clone(),
            number,
            release: order.release.id.clone(),
            build: order.release.build_id(),
            command: String::new(),
            started_at: now,
            pid: None,
        };
        sessions.insert((application.clone(), number), SessionEntry { session, held: None });
        Ok(SessionNumber { sessions: self, id: (application, number) })
    }
}

/// A session's number, which is taken until this is dropped.
struct SessionNumber<'a> {
    sessions: &'a Sessions,
    id: Id,
}

impl SessionNumber<'_> {
    fn name(&self) -> String {
        format!("run.{}", self.id.1)
    }

    fn change(&self, change: impl FnOnce(&mut SessionEntry)) {
        self.sessions.lock().get_mut(&self.id).map(change);
    }
}

impl Drop for SessionNumber<'_> {
    fn drop(&mut self) {
        self.sessions.lock().remove(&self.id);
    }
}

/// Serves one session until its command has ended.
pub async fn serve(context: Arc<AgentContext>, order: Order, stream: BoxedStream) {
    let mut client = SessionClient::new(stream);
    if let Err(error) = run(&context, &order, &mut client).await {
        let why = format!("{error:#}");
        tracing::info!(application = %order.application, why, "run.failed");
        client.tell(&SessionFrame::Failed(why)).await.ok();
        client.close().await;
    }
}

async fn run(
    context: &AgentContext,
    order: &Order,
    client: &mut SessionClient,
) -> anyhow::Result<()> {
    let first = timeout(START_TIME_MAX, client.next()).await.context("it said nothing")??;
    let SessionFrame::Start(start) = first else { bail!("it did not say what to run") };
    ensure!(!context.is_shutting_down(), "the node is being stopped");
    let place = context.one_offs.begin(order, context.clock.now())?;
    let shown = shown(&start.command);
    place.change(|entry| entry.session.command.clone_from(&shown));
    let Order { application, release, by } = order;
    if !context.preparer.is_built(application, release) {
        let said = format!("Preparing {} on node {}", release.id.short(), context.node);
        client.tell(&SessionFrame::Note(said)).await?;
    }
    let built = context.preparer.build(application, release).await;
    built.map_err(|failure| anyhow::anyhow!("{}\n{}", failure.why, failure.last_words))?;
    let spec = spec(context, order, &place.name(), &start).await?;
    let (ends, attached) = match &start.terminal {
        Some(terminal) => Ends::terminal(terminal.size)?,
        None => Ends::pipes()?,
    };
    let held: Arc<dyn Held> = context.launcher.launch_attached(spec, attached).await?.into();
    place.change(|entry| {
        entry.session.pid = Some(held.process().pid);
        entry.held = Some(held.clone());
    });
    let name = place.name();
    context.preparer.note(application, &format!("{name} started by {by}: {shown}"));
    if context.is_shutting_down() {
        held.stop(STOP_GRACE).await?;
    }
    let left = relay(client, ends, &*held).await;
    let how = match left {
        Ok(SessionOutcome::Told(ended)) => ended.how,
        Ok(SessionOutcome::Gone) => format!("{} (its client went away)", hang_up(&*held).await),
        Err(error) => format!("{} ({error:#})", hang_up(&*held).await),
    };
    held.forget().await.ok();
    context.preparer.note(application, &format!("{name} ended: {how}"));
    Ok(())
}

/// Hangs up as a closed terminal does, but does not wait for ever. The pipes are closed already.
async fn hang_up(held: &dyn Held) -> String {
    let mut exits = held.exit();
    for signal in [Signal::HUP, Signal::CONT] {
        held.signal(signal.as_raw()).await.ok();
    }
    if timeout(HANGUP_GRACE, exits.wait_for(Option::is_some)).await.is_err() {
        held.stop(STOP_GRACE).await.ok();
    }
    let exit = exits.wait_for(Option::is_some).await.ok().and_then(|exit| exit.clone());
    exit.map_or_else(|| "its shim was lost".into(), |exit| exit.how)
}

async fn spec(
    context: &AgentContext,
    order: &Order,
    name: &str,
    start: &SessionStart,
) -> anyhow::Result<LaunchSpec> {
    let Order { application, release, .. } = order;
    ensure!(start.command.iter().any(|word| !word.is_empty()), "the command is empty");
    let mut spec = context.preparer.command_spec(application, release, name, "").await?;
    spec.argv = argv(release, &start.command);
    spec.environment.insert("CORTEX_PROCESS".into(), name.into());
    if let Some(terminal) = &start.terminal {
        let known = !terminal.name.is_empty();
        let term = if known { terminal.name.as_str() } else { TERMINAL_FALLBACK };
        spec.environment.insert("TERM".into(), term.into());
    }
    Ok(spec)
}

/// Returns the argv to execute. A single word is a line for the shell, or the name of a process
/// type other than the web server's; several words are taken as they are, and the shell still finds
/// the program and complains if there is none.
fn argv(release: &Release, command: &[String]) -> Vec<String> {
    let shell = ["/bin/sh".to_string(), "-c".to_string()];
    if let [line] = command {
        let types = &release.recipe.processes;
        let named = line.parse::<ProcessType>().ok().filter(|process| !process.is_web());
        let recipe = named.and_then(|process| types.get(&process));
        let line = recipe.map_or(line, |recipe| &recipe.command);
        return shell.into_iter().chain([line.clone()]).collect();
    }
    let as_it_is = ["exec \"$@\"".to_string(), "sh".to_string()];
    shell.into_iter().chain(as_it_is).chain(command.iter().cloned()).collect()
}

/// Returns the command as one line for people.
fn shown(command: &[String]) -> String {
    let line = command.join(" ");
    let clean = line.chars().map(|c| if c.is_control() { ' ' } else { c });
    let cut: String = clean.take(SHOWN_CHARS_MAX).collect();
    if cut.len() < line.len() { format!("{cut} …") } else { cut }
}
