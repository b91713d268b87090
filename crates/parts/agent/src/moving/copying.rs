//! Copies of the files that applications keep, for whoever takes them elsewhere: they stay where
//! they are, and the application goes on. Frames are the same as when files move.

use anyhow::{Context, bail, ensure};
use model::{ApplicationName, NodeId, Timestamp};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::FRAMES_WAITING_MAX;
use super::frame::{MoveFrame, MoveRequest, MoveStream, decode, encode};
use super::tree::{KnownFiles, Staging, walk};
use os::layout::DataDirectory;
use runtime::members::{Members, StreamKind};
use runtime::task::{spawn, spawn_blocking};

/// Reads the files of an application from the node that has them, as frames; returns when all have
/// been passed on.
pub async fn read(
    layout: &DataDirectory,
    node: &NodeId,
    members: Option<&dyn Members>,
    name: &ApplicationName,
    holder: &NodeId,
    out: mpsc::Sender<Vec<u8>>,
) -> anyhow::Result<()> {
    if holder == node {
        let root = layout.persist(name);
        let (frames, mut ready) = mpsc::channel(FRAMES_WAITING_MAX);
        let reading = spawn_blocking(move || walk(&root, KnownFiles::default(), &frames));
        while let Some(frame) = ready.recv().await {
            pass_on(&out, &frame).await?;
        }
        reading.await?.context("reading the files")?;
        return Ok(());
    }
    let members = members.context("this node does not reach others")?;
    let stream = members.open(holder, StreamKind::Files).await;
    let mut wire = MoveStream::new(stream.with_context(|| format!("node {holder} has the files"))?);
    let request = MoveRequest { v: 1, application: name.clone(), asked_at: Timestamp(0) };
    wire.send(&MoveFrame::Copy(request)).await?;
    loop {
        match wire.receive().await? {
            MoveFrame::PassEnd => return Ok(()),
            MoveFrame::Wait => {}
            MoveFrame::Fault(why) => bail!("node {holder}, which has the files: {why}"),
            frame => pass_on(&out, &frame).await?,
        }
    }
}

async fn pass_on(out: &mpsc::Sender<Vec<u8>>, frame: &MoveFrame) -> anyhow::Result<()> {
    let (kind, payload) = encode(frame)?;
    let frame = [&[kind][..], &payload].concat();
    out.send(frame).await.ok().context("whoever wanted the files has gone")
}

/// Files that arrive, out of sight of the application until all of them are there.
pub struct FilesCopy {
    frames: mpsc::Sender<MoveFrame>,
    writing: JoinHandle<anyhow::Result<Staging>>,
}

impl FilesCopy {
    pub async fn begin(
        layout: &DataDirectory,
        name: &ApplicationName,
    ) -> anyhow::Result<FilesCopy> {
        let at = layout.incoming(name);
        let (frames, mut taken) = mpsc::channel::<MoveFrame>(FRAMES_WAITING_MAX);
        let mut staging = spawn_blocking(move || Staging::create(at)).await??;
        let writing = spawn_blocking(move || {
            staging.begin();
            while let Some(frame) = taken.blocking_recv() {
                staging.take(frame)?;
            }
            anyhow::Ok(staging)
        });
        Ok(FilesCopy { frames, writing })
    }

    /// Takes the next frame. What is wrong with the disk is said by `put_in_place`.
    pub async fn take(&mut self, frame: &[u8]) -> anyhow::Result<()> {
        let (kind, payload) = frame.split_first().context("an empty frame")?;
        let frame = decode(*kind, payload)?;
        let is_file =
            matches!(frame, MoveFrame::Entry(_) | MoveFrame::Data(_) | MoveFrame::FileEnd(_));
        ensure!(is_file, "a frame that is of no file");
        self.frames.send(frame).await.ok();
        Ok(())
    }

    pub async fn put_in_place(
        self,
        layout: &DataDirectory,
        name: &ApplicationName,
    ) -> anyhow::Result<()> {
        drop(self.frames);
        let staging = self.writing.await??;
        let target = layout.persist(name);
        spawn_blocking(move || staging.put_in_place(&target)).await?
    }

    /// Throws away what has come.
    pub async fn abandon(self) {
        drop(self.frames);
        if let Ok(Ok(staging)) = self.writing.await {
            spawn(async move { spawn_blocking(move || staging.throw_away()).await });
        }
    }
}
