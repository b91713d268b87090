//! Moves of applications' files between nodes: this side fetches those that are to come here,
//! `give` hands out those that are to leave. What is copied first, while the application runs, need
//! not be copied again when it is stopped; the files are whole and durable here before the node
//! that has them writes that they belong to this one. Driven by records `app::NAME::move`.
//! `copying` hands out copies of files that stay.

pub mod copying;
mod frame;
mod give;
mod tree;

use std::sync::Arc;

use anyhow::{Context, bail};
use model::application::{Holder, Move, MovePhase};
use model::{
    ApplicationName, ApplicationSpec, Key, NodeId, Prefix, Release, Rollout, Timestamp, TypedKey,
    record,
};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use self::frame::{MoveFrame, MoveRequest, MoveStream};
use self::tree::Staging;
use super::AgentContext;
use os::layout::DataDirectory;
use runtime::members::{BoxedStream, Members, StreamKind};
use runtime::task::spawn_blocking;
use store::{WatchEvent, lookup_record};

/// The maximum length of the reason why a move failed, in characters: it travels within the move's
/// record.
const WHY_CHARS_MAX: usize = 500;
/// The maximum number of frames between a stream and the disk: a megabyte.
const FRAMES_WAITING_MAX: usize = 16;

pub struct Moving {
    agent: Arc<AgentContext>,
    layout: DataDirectory,
    peers: Arc<dyn Members>,
    /// The applications that are being given away, each once.
    giving: give::Giving,
}

impl Moving {
    pub fn new(
        agent: Arc<AgentContext>,
        layout: DataDirectory,
        peers: Arc<dyn Members>,
    ) -> Arc<Moving> {
        let moving = Moving { agent, layout, peers, giving: give::Giving::default() };
        let moving = Arc::new(moving);
        let gives = moving.clone();
        moving.peers.serve(
            StreamKind::Files,
            Box::new(move |peer, stream| {
                runtime::task::spawn(give::serve(gives.clone(), peer, stream));
            }),
        );
        moving
    }

    /// Runs until the store stops; moves one application after the other.
    pub async fn run(self: Arc<Self>) -> anyhow::Result<()> {
        let prefix: Prefix = "app".parse()?;
        let mut watch = self.agent.store.watch(prefix.clone(), None).await?;
        self.look_at_all(&prefix).await?;
        loop {
            match watch.next().await {
                None => return Ok(()),
                Some(WatchEvent::Resync { .. }) => self.look_at_all(&prefix).await?,
                Some(WatchEvent::Changed { key, .. }) => self.look_at(&key).await?,
            }
        }
    }

    async fn look_at_all(&self, prefix: &Prefix) -> anyhow::Result<()> {
        for key in self.agent.store.keys(prefix).await? {
            self.look_at(&key).await?;
        }
        Ok(())
    }

    async fn look_at(&self, key: &Key) -> anyhow::Result<()> {
        // The record that says whose the files are may be heard of late.
        let Some(TypedKey::Move(name) | TypedKey::Holder(name)) = TypedKey::parse(key) else {
            return Ok(());
        };
        let asked = self.read::<Move>(TypedKey::Move(name.clone()).key()).await?;
        let created_at = self.created_at(&name).await?;
        // An earlier application of this name may have been asked for that.
        let of_it =
            |asked: &Move| asked.created_at.zip(created_at).is_none_or(|(one, other)| one == other);
        let asked = asked.filter(|asked| asked.to == self.agent.node && of_it(asked));
        let Some(asked) = asked else { return Ok(()) };
        let holder = self.holder(&name).await?;
        if holder.as_ref() == Some(&self.agent.node) {
            return self.forget(&name, &asked).await;
        }
        if asked.phase == MovePhase::Failed {
            return Ok(());
        }
        let fetched = match (asked.phase, holder) {
            (MovePhase::Asked, Some(holder)) => self.fetch(&name, &asked, &holder).await,
            (MovePhase::Asked, None) => Err(anyhow::anyhow!("no node has files of it")),
            _ => Err(anyhow::anyhow!("node {} was started again meanwhile", self.agent.node)),
        };
        match fetched {
            Ok(()) => {
                tracing::info!(application = %name, "moving.fetched");
                self.forget(&name, &asked).await
            }
            Err(error) => {
                let why: String = format!("{error:#}").chars().take(WHY_CHARS_MAX).collect();
                tracing::warn!(application = %name, why, "moving.failed");
                self.set_phase(&name, &asked, MovePhase::Failed, Some(why)).await
            }
        }
    }

    async fn read<T: DeserializeOwned>(&self, key: Key) -> anyhow::Result<Option<T>> {
        lookup_record(&*self.agent.store, key).await
    }

    async fn holder(&self, name: &ApplicationName) -> anyhow::Result<Option<NodeId>> {
        let holder = self.read::<Holder>(TypedKey::Holder(name.clone()).key()).await?;
        let created_at = self.created_at(name).await?;
        let own = |holder: &Holder| created_at.is_none_or(|created| holder.is_of(created));
        Ok(holder.filter(own).map(|holder| holder.node))
    }

    /// Returns when the application that has this name was created.
    async fn created_at(&self, name: &ApplicationName) -> anyhow::Result<Option<Timestamp>> {
        let spec = self.read::<ApplicationSpec>(TypedKey::Spec(name.clone()).key()).await?;
        Ok(spec.map(|spec| spec.created_at))
    }

    /// Returns the request as it is now, if it is still the same one.
    async fn still(&self, name: &ApplicationName, asked: &Move) -> anyhow::Result<Option<Move>> {
        let now = self.read::<Move>(TypedKey::Move(name.clone()).key()).await?;
        Ok(now.filter(|now| now.asked_at == asked.asked_at && now.to == asked.to))
    }

    async fn set_phase(
        &self,
        name: &ApplicationName,
        asked: &Move,
        phase: MovePhase,
        message: Option<String>,
    ) -> anyhow::Result<()> {
        if let Some(now) = self.still(name, asked).await? {
            let value = record::encode(&Move { phase, message, ..now });
            self.agent.store.set(TypedKey::Move(name.clone()).key(), value.into()).await?;
        }
        Ok(())
    }

    async fn forget(&self, name: &ApplicationName, asked: &Move) -> anyhow::Result<()> {
        if self.still(name, asked).await?.is_some() {
            self.agent.store.delete(TypedKey::Move(name.clone()).key()).await?;
        }
        Ok(())
    }

    /// Prepares the release, which takes long, while the application still runs where it is, and
    /// finds out what cannot be done here before anything stops.
    async fn make_ready(&self, name: &ApplicationName, holder: &NodeId) -> anyhow::Result<()> {
        let rollout = self.read::<Rollout>(TypedKey::Rollout(name.clone()).key()).await?;
        let Some(serving) = rollout.and_then(|rollout| rollout.serving) else { return Ok(()) };
        let release = self.read::<Release>(TypedKey::Release(name.clone(), serving).key()).await?;
        let Some(release) = release else { return Ok(()) };
        let AgentContext { preparer, platform, .. } = &*self.agent;
        if preparer.fetch(name, &release, holder, platform).await.is_ok() {
            return Ok(());
        }
        let built = preparer.build(name, &release).await;
        built.map_err(|failure| anyhow::anyhow!("it cannot be built here: {}", failure.why))
    }

    /// Fetches the holder's files and makes them this node's.
    async fn fetch(
        &self,
        name: &ApplicationName,
        asked: &Move,
        holder: &NodeId,
    ) -> anyhow::Result<()> {
        self.make_ready(name, holder).await?;
        self.set_phase(name, asked, MovePhase::Copying, None).await?;
        let stream = self.peers.open(holder, StreamKind::Files).await;
        let stream = stream.with_context(|| format!("node {holder}, which has the files"))?;
        let mut wire = MoveStream::new(stream);
        let (application, asked_at) = (name.clone(), asked.asked_at);
        wire.send(&MoveFrame::Ask(MoveRequest { v: 1, application, asked_at })).await?;
        let at = self.layout.incoming(name);
        let staging = spawn_blocking(move || Staging::create(at)).await??;
        let staging = receive(&mut wire, staging).await?;
        self.set_phase(name, asked, MovePhase::Stopped, None).await?;
        wire.send(&MoveFrame::Last).await?;
        let staging = receive(&mut wire, staging).await?;
        let target = self.layout.persist(name);
        spawn_blocking(move || staging.put_in_place(&target)).await??;
        wire.send(&MoveFrame::Taken).await?;
        match wire.receive().await? {
            MoveFrame::Yours => Ok(()),
            MoveFrame::Fault(why) => bail!("node {holder} keeps the files: {why}"),
            _ => bail!("node {holder} said something else than that the files are handed over"),
        }
    }
}

/// Receives one pass over all files.
async fn receive(
    wire: &mut MoveStream<BoxedStream>,
    mut staging: Staging,
) -> anyhow::Result<Staging> {
    let (frames, mut taken) = mpsc::channel::<MoveFrame>(FRAMES_WAITING_MAX);
    let writing = spawn_blocking(move || {
        staging.begin();
        while let Some(frame) = taken.blocking_recv() {
            staging.take(frame)?;
        }
        anyhow::Ok(staging)
    });
    let reading = async {
        loop {
            match wire.receive().await? {
                MoveFrame::PassEnd => return anyhow::Ok(()),
                MoveFrame::Wait => {}
                MoveFrame::Fault(why) => bail!("the node that has the files: {why}"),
                // The thread that writes reports what is wrong with the disk.
                frame => {
                    if frames.send(frame).await.is_err() {
                        return Ok(());
                    }
                }
            }
        }
    };
    let read = reading.await;
    drop(frames);
    let staging = writing.await?.context("the copy on this node's disk")?;
    read.map(|()| staging)
}

#[cfg(test)]
mod tests;
