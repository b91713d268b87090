//! Commands that people run beside the instances, in a release's own surroundings, connected to the
//! person who runs them. Owns the sessions of this node: how many, which, and what is left of them.
//! Their terminals and pipes are held by their shims, so that they outlive connections and node
//! processes; what passes between a client and a shim is only carried here. Must not know by which
//! way a client came.

mod sessions;

use std::sync::Arc;
use std::time::Duration;

use agent_core::application::{Exit, OUTSIDE_MAX};
use anyhow::{Context, bail, ensure};
use bytes::BytesMut;
use model::{ApplicationName, IsolationMark, ProcessType, Release};
use session_core::frame::{SessionDecoder, SessionFrame, SessionStart};
use session_core::{ENDED_KEPT, PROTOCOL, VERSION};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use self::sessions::SessionPlace;
pub use self::sessions::{OneOffSession, SessionHandle, Sessions};
use super::AgentContext;
use super::launcher::Held;
use super::specification::{mark_of, specification};
use runtime::members::BoxedStream;
use shim::spec::{LaunchSpec, SessionSpec};

/// The maximum wait for a client's first frame; clients send it at once.
const START_TIME_MAX: Duration = Duration::from_secs(10);
/// The time from SIGTERM to SIGKILL.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// The time for a client that lost its connection to this node, and is not lost itself, to come
/// back. One on this machine does so at once.
const RETURN_TIME_MAX: Duration = Duration::from_secs(5);
/// The time in which a shim has seen that a connection was closed.
const CLOSING_TIME: Duration = Duration::from_secs(1);
/// The interval between two looks whether an owner wants a session behind a wall; short beside the
/// minutes that it may be outside.
const OUTSIDE_LOOK: Duration = Duration::from_secs(5);
/// The bytes that are passed on at a time.
const PASS_BYTES: usize = 16 * 1024;
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
    /// The id of the session that is to begin.
    pub session: String,
}

/// The side on which a stream ended that was carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CarryEnd {
    /// The session's: the client was told what there was to tell.
    Session,
    Client,
}

/// Starts the command that the client names, and carries what passes until either side ends.
pub async fn serve(
    context: Arc<AgentContext>,
    order: Order,
    mut stream: BoxedStream,
) -> anyhow::Result<CarryEnd> {
    let mut decoder = SessionDecoder::default();
    let started = start(&context, &order, &mut stream, &mut decoder).await;
    let session = match started {
        Ok(session) => session,
        Err(error) => {
            let why = format!("{error:#}");
            tracing::info!(application = %order.application, why, "run.failed");
            tell(&mut stream, &SessionFrame::Failed(why)).await.ok();
            stream.shutdown().await.ok();
            return Ok(CarryEnd::Session);
        }
    };
    if tell(&mut stream, &SessionFrame::Started(order.session.clone())).await.is_err() {
        // It never heard the id, by which alone it could come back.
        if !session.is_detached() {
            session.hang_up().await.ok();
        }
        return Ok(CarryEnd::Session);
    }
    let mut near = session.attach(&order.by).await?;
    near.write_all(&decoder.into_rest()).await?;
    let _carried = session.carried();
    Ok(carry(stream, near).await)
}

/// Carries what passes between a client that attaches to a session and its shim.
pub async fn attach(
    session: SessionHandle,
    by: &str,
    mut stream: BoxedStream,
) -> anyhow::Result<CarryEnd> {
    match session.attach(by).await {
        Ok(near) => {
            let _carried = session.carried();
            Ok(carry(stream, near).await)
        }
        Err(error) => {
            tell(&mut stream, &SessionFrame::Failed(format!("{error:#}"))).await?;
            stream.shutdown().await?;
            Ok(CarryEnd::Session)
        }
    }
}

/// Carries bytes both ways until either side ends.
pub async fn carry(client: BoxedStream, far: BoxedStream) -> CarryEnd {
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_session, mut to_session) = tokio::io::split(far);
    let end = tokio::select! {
        ended = pass(&mut from_client, &mut to_session) => match ended {
            PassEnd::Source => CarryEnd::Client,
            PassEnd::Sink => CarryEnd::Session,
        },
        ended = pass(&mut from_session, &mut to_client) => match ended {
            PassEnd::Source => CarryEnd::Session,
            PassEnd::Sink => CarryEnd::Client,
        },
    };
    match end {
        // What it said last, such as that it leaves, is heeded before its end is.
        CarryEnd::Client => to_session.shutdown().await.ok(),
        CarryEnd::Session => to_client.shutdown().await.ok(),
    };
    end
}

/// The side at which passing bytes on came to an end.
enum PassEnd {
    Source,
    Sink,
}

/// Passes bytes on until one side ends or fails, and returns which.
async fn pass(from: &mut (impl AsyncRead + Unpin), to: &mut (impl AsyncWrite + Unpin)) -> PassEnd {
    let mut buffer = vec![0; PASS_BYTES];
    loop {
        let count = match from.read(&mut buffer).await {
            Ok(0) | Err(_) => return PassEnd::Source,
            Ok(count) => count,
        };
        if to.write_all(&buffer[..count]).await.is_err() || to.flush().await.is_err() {
            return PassEnd::Sink;
        }
    }
}

/// Hangs up on behalf of a client that is gone for good, unless it or somebody else came back.
pub async fn abandon(session: SessionHandle, at_once: bool) {
    tokio::time::sleep(if at_once { CLOSING_TIME } else { RETURN_TIME_MAX }).await;
    if let Err(error) = session.hang_up().await {
        tracing::warn!(error = format!("{error:#}"), "run.not_hung_up");
    }
}

async fn next(
    stream: &mut BoxedStream,
    decoder: &mut SessionDecoder,
) -> anyhow::Result<SessionFrame> {
    loop {
        if let Some(frame) = decoder.frame()? {
            return Ok(frame);
        }
        let count = stream.read_buf(decoder.buffer()).await?;
        ensure!(count > 0, "the client went away");
    }
}

async fn tell(stream: &mut BoxedStream, frame: &SessionFrame) -> anyhow::Result<()> {
    let mut out = BytesMut::new();
    frame.write(&mut out);
    stream.write_all(&out).await?;
    stream.flush().await.context("the client went away")
}

async fn start(
    context: &Arc<AgentContext>,
    order: &Order,
    stream: &mut BoxedStream,
    decoder: &mut SessionDecoder,
) -> anyhow::Result<SessionHandle> {
    let first = timeout(START_TIME_MAX, next(stream, decoder)).await;
    let first = first.context("it said nothing")??;
    let SessionFrame::Start(start) = first else { bail!("it did not say what to run") };
    ensure!(start.v == VERSION, "it does not speak {PROTOCOL}: use `cortex` of the node's version");
    ensure!(!context.is_shutting_down(), "the node is being stopped");
    let adopts = "the node is starting, and looks for what ran before: try again in a moment";
    ensure!(context.has_adopted(), adopts);
    let shown = shown(&start.command);
    let place = sessions::begin(context, order, &shown, start.detached)?;
    let Order { application, release, by, .. } = order;
    if !context.preparer.is_built(application, release) {
        let said = format!("Preparing {} on node {}", release.id.short(), context.node);
        tell(stream, &SessionFrame::Note(said)).await?;
    }
    let built = context.preparer.build(application, release).await;
    built.map_err(|failure| anyhow::anyhow!("{}\n{}", failure.why, failure.last_words))?;
    // Read before the wall is: at worst it is stopped for a wall that it has.
    let restart = specification(&*context.store, application).await?.map_or(0, |spec| spec.restart);
    let spec = spec(context, order, &place.name(), &start).await?;
    let session = SessionSpec {
        id: order.session.clone(),
        number: place.number(),
        by: by.clone(),
        command: shown.clone(),
        release: release.id.clone(),
        build: release.build_id(),
        terminal: start.terminal.as_ref().map(|terminal| terminal.size),
        restart,
        detached: start.detached,
    };
    let held: Arc<dyn Held> = context.launcher.launch_session(spec, session).await?.into();
    let name = place.name();
    context.preparer.note(application, &format!("{name} started by {by}: {shown}"));
    if context.is_shutting_down() {
        held.stop(STOP_GRACE).await?;
    }
    let handle = place.launched(held.clone());
    runtime::task::spawn(attend(context.clone(), place, held));
    Ok(handle)
}

/// Takes hold of a session of an earlier node process.
pub fn adopt(context: &Arc<AgentContext>, held: Arc<dyn Held>) {
    let Some(place) = sessions::again(context, &*held) else { return };
    place.launched(held.clone());
    runtime::task::spawn(attend(context.clone(), place, held));
}

/// Sees a session to its end: notes how the command ended, and forgets it once its client knows, or
/// nobody has come for long.
async fn attend(context: Arc<AgentContext>, place: SessionPlace, held: Arc<dyn Held>) {
    let exit = tokio::select! {
        exit = exit_of(&*held) => exit,
        () = stop_outside(&context, &place, &*held) => exit_of(&*held).await,
    };
    let how = exit.map_or_else(|| "its shim was lost".into(), |exit| exit.how);
    if place.ended(&how) {
        context.preparer.note(place.application(), &format!("{} ended: {how}", place.name()));
    }
    tokio::select! {
        () = held.gone() => {}
        () = place.unwanted() => {}
        () = tokio::time::sleep(2 * ENDED_KEPT) => {}
    }
    if let Err(error) = held.forget().await {
        tracing::warn!(error = format!("{error:#}"), "run.not_forgotten");
    }
}

async fn exit_of(held: &dyn Held) -> Option<Exit> {
    held.exit().wait_for(Option::is_some).await.ok().and_then(|exit| exit.clone())
}

/// Stops a session once it has been outside the wall that an owner wants for as long as an instance
/// may be.
async fn stop_outside(context: &AgentContext, place: &SessionPlace, held: &dyn Held) {
    let Some(session) = held.session() else { return std::future::pending().await };
    let mark = loop {
        let mark = mark_of(&*context.store, place.application()).await.ok().flatten();
        let is_over = |mark: &IsolationMark| context.clock.now() >= mark.since.after(OUTSIDE_MAX);
        match mark.filter(|mark| mark.is_outside(session.restart) && is_over(mark)) {
            Some(mark) => break mark,
            None => tokio::time::sleep(OUTSIDE_LOOK).await,
        }
    };
    let (name, by) = (place.name(), mark.by);
    let said = format!("{name} is stopped: it began outside the wall that {by} wants");
    context.preparer.note(place.application(), &said);
    if let Err(error) = held.stop(STOP_GRACE).await {
        tracing::warn!(error = format!("{error:#}"), "run.not_stopped");
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::duplex;

    #[tokio::test]
    async fn who_went_away_is_told_whatever_is_under_way() {
        // It is seen by what is read or by what is written, whichever comes first.
        for round in 0..64 {
            let (client, near_client) = duplex(64);
            let (session, near_session) = duplex(64);
            let carried =
                runtime::task::spawn(carry(Box::new(near_client), Box::new(near_session)));
            let (mut leaves, mut stays) =
                if round % 2 == 0 { (client, session) } else { (session, client) };
            stays.write_all(&[7; 100]).await.unwrap();
            leaves.read_exact(&mut [0; 50]).await.unwrap();
            drop(leaves);
            stays.write_all(&[7; 20]).await.ok();
            let expected = if round % 2 == 0 { CarryEnd::Client } else { CarryEnd::Session };
            assert_eq!(carried.await.unwrap(), expected, "round {round}");
        }
    }
}
