//! Export: what is in the store, and the files of applications, as one stream of bounded pieces.
//! Each value is as it was when it was read.

use bytes::Bytes;
use futures_util::StreamExt;
use model::application::Holder;
use model::{ApplicationName, ApplicationSpec, Key, NodeId, Prefix, TypedKey};
use tokio::sync::mpsc;

use super::BackupContext;
use super::selection::{Destiny, destiny};
use agent::moving::copying;
use api_types::backup::{ApplicationContents, Contents, FilesState};
use api_types::export::{CLUSTER_VERSION, ExportEncoder};
use store::{SharedStore, StoreError, lookup_record};

/// Keys that are read together, in memory: some megabytes.
const PAGE_KEYS: usize = 1000;
/// Reads under way at a time; a store on another machine takes its time for each.
const READS_AT_ONCE: usize = 32;
/// Pieces that wait between the store and whoever takes them.
const PIECES_WAITING_MAX: usize = 16;

/// Exports all keys of a prefix. Notes under `local` belong to this run and stay here.
pub fn export_store(store: SharedStore, prefix: Prefix) -> mpsc::Receiver<Bytes> {
    let (exporter, receiver) = Exporter::new(store);
    runtime::task::spawn(async move {
        let (encoder, title) = ExportEncoder::begin();
        let run = exporter.store_alone(encoder, title, &prefix).await;
        exporter.report(run).await;
    });
    receiver
}

/// Exports the cluster, with the files that applications keep if they are wanted.
pub fn export_cluster(context: BackupContext, with_files: bool) -> mpsc::Receiver<Bytes> {
    let (exporter, receiver) = Exporter::new(context.store.clone());
    runtime::task::spawn(async move {
        let run = exporter.cluster(&context, with_files).await;
        exporter.report(run).await;
    });
    receiver
}

struct Exporter {
    store: SharedStore,
    sender: mpsc::Sender<Bytes>,
}

impl Exporter {
    fn new(store: SharedStore) -> (Exporter, mpsc::Receiver<Bytes>) {
        let (sender, receiver) = mpsc::channel(PIECES_WAITING_MAX);
        (Exporter { store, sender }, receiver)
    }

    /// Says within the stream why it failed, in place of its end.
    async fn report(&self, run: Result<(), StoreError>) {
        if let Err(error) = run {
            tracing::warn!(%error, "backup.export_failed");
            self.send(ExportEncoder::failure(&error.to_string())).await.ok();
        }
    }

    async fn store_alone(
        &self,
        mut encoder: ExportEncoder,
        title: Vec<u8>,
        prefix: &Prefix,
    ) -> Result<(), StoreError> {
        self.send(title).await?;
        self.keys(&mut encoder, prefix, |key| !key.is_local()).await?;
        self.send(encoder.end()).await
    }

    async fn cluster(&self, context: &BackupContext, with_files: bool) -> Result<(), StoreError> {
        let contents = contents(context, with_files).await?;
        let (mut encoder, head) = ExportEncoder::begin_cluster(&contents);
        self.send(head).await?;
        let travels = |key: &Key| destiny(key) != Destiny::Stays;
        self.keys(&mut encoder, &Prefix::all(), travels).await?;
        let included = |app: &&ApplicationContents| app.files == FilesState::Included;
        for app in contents.applications.iter().filter(included) {
            self.files(&mut encoder, context, app).await?;
        }
        self.send(encoder.end()).await
    }

    async fn keys(
        &self,
        encoder: &mut ExportEncoder,
        prefix: &Prefix,
        travels: impl Fn(&Key) -> bool,
    ) -> Result<(), StoreError> {
        let mut after: Option<Key> = None;
        loop {
            let page = self.store.keys_after(prefix, after.as_ref(), PAGE_KEYS).await?;
            let Some(last) = page.last().cloned() else { return Ok(()) };
            after = Some(last);
            let keys: Vec<Key> = page.into_iter().filter(|key| travels(key)).collect();
            let reads = keys.into_iter().map(|key| {
                let store = self.store.clone();
                async move { store.lookup(&key).await }
            });
            let mut entries = futures_util::stream::iter(reads).buffered(READS_AT_ONCE);
            while let Some(entry) = entries.next().await {
                // A key that was deleted meanwhile is left out.
                let Some(entry) = entry? else { continue };
                // The value is opened before its key is sent, so that one that cannot be read fails
                // the export first.
                let reader = entry.value.reader().await?;
                self.send(encoder.key(&entry.key, entry.expires, entry.value.size())).await?;
                match reader {
                    None => {
                        let bytes = entry.value.inline().cloned().unwrap_or_default();
                        encoder.value(&bytes);
                        self.send(bytes).await?;
                    }
                    Some(mut reader) => {
                        while let Some(bytes) = reader.next().await? {
                            encoder.value(&bytes);
                            self.send(bytes).await?;
                        }
                    }
                }
                self.send(encoder.check().to_vec()).await?;
            }
        }
    }

    /// Sends the files of an application. If they cannot be had, that is said in their place: the
    /// rest of the cluster is not to go without a copy for that.
    async fn files(
        &self,
        encoder: &mut ExportEncoder,
        context: &BackupContext,
        app: &ApplicationContents,
    ) -> Result<(), StoreError> {
        let (Ok(name), Some(Ok(holder))) =
            (app.name.parse::<ApplicationName>(), app.node.as_ref().map(|node| node.parse()))
        else {
            return Ok(());
        };
        self.send(encoder.files(&name)).await?;
        let (frames, mut read) = mpsc::channel(PIECES_WAITING_MAX);
        let BackupContext { layout, node, members, .. } = context.clone();
        let of = (name.clone(), holder);
        let reading = runtime::task::spawn(async move {
            copying::read(&layout, &node, members.as_deref(), &of.0, &of.1, frames).await
        });
        while let Some(frame) = read.recv().await {
            self.send(encoder.frame(&frame)).await?;
        }
        let ended = match reading.await {
            Ok(ended) => ended,
            Err(error) => Err(error.into()),
        };
        let failure = ended.err().map(|error| format!("{error:#}"));
        if let Some(why) = &failure {
            tracing::warn!(application = %name, why, "backup.files_left_out");
        }
        self.send(encoder.files_end(failure.as_deref())).await
    }

    async fn send(&self, bytes: impl Into<Bytes>) -> Result<(), StoreError> {
        let gone = |_| StoreError::Refused("whoever asked for the export has gone".into());
        self.sender.send(bytes.into()).await.map_err(gone)
    }
}

/// Returns what an export that begins now is to hold.
async fn contents(context: &BackupContext, with_files: bool) -> Result<Contents, StoreError> {
    let BackupContext { store, node, clock, members, .. } = context;
    let alive = members.as_ref().map(|members| members.alive().borrow().clone());
    let is_here = |holder: &NodeId| {
        holder == node || alive.as_ref().is_some_and(|alive| alive.contains(holder))
    };
    let mut applications = Vec::new();
    for key in store.keys(&Prefix::from(application_root())).await? {
        let Some(TypedKey::Spec(name)) = TypedKey::parse(&key) else { continue };
        let holder = holder(store, &name).await?;
        let files = match &holder {
            None => FilesState::None,
            Some(_) if !with_files => FilesState::NotAsked,
            Some(holder) if is_here(holder) => FilesState::Included,
            Some(_) => FilesState::Away,
        };
        let node = holder.map(String::from);
        applications.push(ApplicationContents { name: name.to_string(), files, node });
    }
    Ok(Contents {
        v: CLUSTER_VERSION,
        exported_at: clock.now().0,
        node: node.to_string(),
        cortex: env!("CARGO_PKG_VERSION").into(),
        applications,
    })
}

fn application_root() -> Key {
    "app".parse().expect("a well-formed key")
}

/// Returns the node that has the files of an application.
async fn holder(store: &SharedStore, name: &ApplicationName) -> Result<Option<NodeId>, StoreError> {
    let unreadable = |error: anyhow::Error| StoreError::Refused(format!("{error:#}"));
    let spec = lookup_record(&**store, TypedKey::Spec(name.clone()).key()).await;
    let spec: Option<ApplicationSpec> = spec.map_err(unreadable)?;
    let holder = lookup_record(&**store, TypedKey::Holder(name.clone()).key()).await;
    let holder: Option<Holder> = holder.map_err(unreadable)?;
    let is_own = |holder: &Holder| spec.as_ref().is_none_or(|spec| holder.is_of(spec.created_at));
    Ok(holder.filter(is_own).map(|holder| holder.node))
}
