//! The side that has the files: it sends them while the application runs, stops it, sends what
//! changed, and writes that they belong to the other node once that one has them all. Until then no
//! fault loses anything: the application goes on here.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use model::application::{Holder, MovePhase};
use model::record::{RECORD_VERSION, Unknown};
use model::{ApplicationName, NodeId, Rollout, RolloutPhase, TypedKey, record};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::frame::{MoveFrame, MoveRequest, MoveStream};
use super::tree::{KnownFiles, walk};
use super::{FRAMES_WAITING_MAX, Moving};
use runtime::members::BoxedStream;
use runtime::task::spawn_blocking;

/// The maximum wait until the application has stopped: draining, the usual grace of 30 s, and as
/// much again.
const STOP_MAX: Duration = Duration::from_secs(150);
/// The maximum wait for the record of the move; it takes less to get here, even over a slow line.
const HEARD_MAX: Duration = Duration::from_secs(10);
const STOP_POLL: Duration = Duration::from_millis(50);
/// The interval between keep-alive frames, well within what the other side waits for.
const WAIT_INTERVAL: Duration = Duration::from_secs(5);
/// The time that the application stays paused after the handover: until placement on this node has
/// read whose the files are.
const LINGER: Duration = Duration::from_secs(10);

#[derive(Default)]
pub struct Giving(Mutex<BTreeSet<ApplicationName>>);

struct GivingTurn<'a>(&'a Giving, ApplicationName);

impl Giving {
    fn begin(&self, name: &ApplicationName) -> Option<GivingTurn<'_>> {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.insert(name.clone()).then(|| GivingTurn(self, name.clone()))
    }
}

impl Drop for GivingTurn<'_> {
    fn drop(&mut self) {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.1);
    }
}

pub async fn serve(moving: Arc<Moving>, peer: NodeId, stream: BoxedStream) {
    let mut wire = MoveStream::new(stream);
    if let Err(error) = give(&moving, &peer, &mut wire).await {
        let why = format!("{error:#}");
        tracing::warn!(%peer, why, "moving.not_given");
        // The other side may be gone, and with it the need to tell it.
        wire.send(&MoveFrame::Fault(why)).await.ok();
    }
}

async fn give(
    moving: &Arc<Moving>,
    peer: &NodeId,
    wire: &mut MoveStream<BoxedStream>,
) -> anyhow::Result<()> {
    let ask = match wire.receive().await? {
        MoveFrame::Ask(ask) => ask,
        MoveFrame::Copy(ask) => return copy(moving, &ask.application, wire).await,
        _ => bail!("it did not say what it wants"),
    };
    let name = ask.application.clone();
    let _turn = moving.giving.begin(&name).context("its files are being given away already")?;
    let placing = moving.agent.placing.as_ref().context("nothing is placed here")?;
    let quiet = heard(moving, peer, &ask).await?;
    tracing::info!(application = %name, %peer, "moving.begins");
    let known = send(moving, &name, wire, KnownFiles::default()).await?;
    ensure!(wire.receive().await? == MoveFrame::Last, "it did not ask for the rest");
    let pause = placing.pause(&name);
    await_stopped(moving, &name, wire).await?;
    moving.agent.preparer.collect_all(&name).await?;
    send(moving, &name, wire, known).await?;
    ensure!(wire.receive().await? == MoveFrame::Taken, "it did not say that it has all");
    let changed = check(moving, peer, &ask).await? != quiet;
    ensure!(!changed && is_stopped(moving, &name), "something else was done with it meanwhile");
    let holder = Holder {
        v: RECORD_VERSION,
        node: peer.clone(),
        since: moving.agent.clock.now(),
        created_at: moving.created_at(&name).await?,
        unknown: Unknown::new(),
    };
    let key = TypedKey::Holder(name.clone()).key();
    moving.agent.store.set(key, record::encode(&holder).into()).await?;
    // From here on the files belong to the other node, whatever else happens.
    runtime::task::spawn(async move {
        tokio::time::sleep(LINGER).await;
        drop(pause);
    });
    put_aside(moving, &name).await;
    tracing::info!(application = %name, %peer, "moving.handed_over");
    wire.send(&MoveFrame::Yours).await
}

/// Sends a copy of the files, which stay here while the application goes on.
async fn copy(
    moving: &Arc<Moving>,
    name: &ApplicationName,
    wire: &mut MoveStream<BoxedStream>,
) -> anyhow::Result<()> {
    let holder = moving.holder(name).await?;
    ensure!(holder.as_ref() == Some(&moving.agent.node), "this node does not have its files");
    send(moving, name, wire, KnownFiles::default()).await?;
    Ok(())
}

/// Waits for the record of the move: the stream may be faster.
async fn heard(
    moving: &Moving,
    peer: &NodeId,
    ask: &MoveRequest,
) -> anyhow::Result<Option<Rollout>> {
    let deadline = Instant::now() + HEARD_MAX;
    loop {
        match check(moving, peer, ask).await {
            Err(_) if Instant::now() < deadline => tokio::time::sleep(STOP_POLL).await,
            checked => return checked,
        }
    }
}

/// Fails unless this move is still asked for and no release is under way; returns the last rollout.
async fn check(
    moving: &Moving,
    peer: &NodeId,
    ask: &MoveRequest,
) -> anyhow::Result<Option<Rollout>> {
    let name = &ask.application;
    let holder = moving.holder(name).await?;
    ensure!(holder.as_ref() == Some(&moving.agent.node), "this node does not have its files");
    let asked = moving.read::<model::application::Move>(TypedKey::Move(name.clone()).key()).await?;
    let asked = asked.filter(|asked| asked.asked_at == ask.asked_at && asked.to == *peer);
    let asked = asked.filter(|asked| asked.phase != MovePhase::Failed);
    ensure!(asked.is_some(), "nobody asked for that, or something else was asked for since");
    let rollout = moving.read::<Rollout>(TypedKey::Rollout(name.clone()).key()).await?;
    let over = |phase| matches!(phase, RolloutPhase::Done | RolloutPhase::Failed);
    let over = rollout.as_ref().is_none_or(|rollout| over(rollout.phase));
    ensure!(over, "a release of it is being rolled out; try again when that is over");
    Ok(rollout)
}

fn is_stopped(moving: &Moving, name: &ApplicationName) -> bool {
    let registry = &moving.agent.registry;
    registry.of(name).is_empty() && !registry.is_launching(name)
}

async fn await_stopped(
    moving: &Moving,
    name: &ApplicationName,
    wire: &mut MoveStream<BoxedStream>,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + STOP_MAX;
    let mut said = Instant::now();
    while !is_stopped(moving, name) {
        ensure!(Instant::now() < deadline, "it did not stop within {} s", STOP_MAX.as_secs());
        if said.elapsed() >= WAIT_INTERVAL {
            said = Instant::now();
            wire.send(&MoveFrame::Wait).await?;
        }
        tokio::time::sleep(STOP_POLL).await;
    }
    Ok(())
}

/// Sends all files; the `known` ones by name alone.
async fn send(
    moving: &Moving,
    name: &ApplicationName,
    wire: &mut MoveStream<BoxedStream>,
    known: KnownFiles,
) -> anyhow::Result<KnownFiles> {
    let root = moving.layout.persist(name);
    let (frames, mut ready) = mpsc::channel(FRAMES_WAITING_MAX);
    let reading = spawn_blocking(move || walk(&root, known, &frames));
    while let Some(frame) = ready.recv().await {
        wire.send(&frame).await?;
    }
    let known = reading.await?.context("reading the files")?;
    wire.send(&MoveFrame::PassEnd).await?;
    Ok(known)
}

/// Puts the files aside: they are outdated as soon as the other node starts it. One copy is kept.
async fn put_aside(moving: &Moving, name: &ApplicationName) {
    let (from, to) = (moving.layout.persist(name), moving.layout.given_away(name));
    let put = spawn_blocking(move || {
        if to.exists() {
            std::fs::remove_dir_all(&to)?;
        }
        std::fs::rename(&from, &to)
    });
    if let Ok(Err(error)) = put.await {
        tracing::warn!(application = %name, %error, "moving.left_behind");
    }
}
