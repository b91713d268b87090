//! A store with its secrets sealed, over one on a disk: what is in the files, what readers get, and
//! what happens without the key.

use std::path::Path;

use ::store::open::open_alone;
use ::store::options::Options;
use model::hex::to_hex;
use os::layout::DataDirectory;
use runtime::driver::Clock;
use secret_core::sealed::SealingKey;
use zeroize::Zeroizing;

use super::*;
use crate::file::KeyFile;

const CANARY: &str = "canary-5f1d";

struct Fixture {
    directory: tempfile::TempDir,
    store: SealedStore,
}

fn key(text: &str) -> Key {
    text.parse().unwrap()
}

fn made(byte: u8) -> SealingKey {
    SealingKey::new(Zeroizing::new([byte; 32]))
}

fn config() -> Key {
    key("app::blog::config")
}

impl Fixture {
    fn new() -> Fixture {
        let directory = tempfile::tempdir().unwrap();
        let layout = DataDirectory::new(directory.path().join("data"), directory.path());
        os::directory::private_directory(layout.root()).unwrap();
        let node: model::NodeId = "n1".parse().unwrap();
        let beneath =
            open_alone(&layout, node.clone(), Clock::start(), Options::default()).unwrap();
        let keys = Keys::open(KeyFile::of(&layout, "c".into(), node)).unwrap();
        Fixture { directory, store: SealedStore::new(beneath, Arc::new(keys)) }
    }

    /// A store that seals.
    fn sealing() -> Fixture {
        let fixture = Fixture::new();
        fixture.store.keys.keep(made(1)).unwrap();
        fixture.store.keys.seal_with(Some(made(1).id()));
        fixture
    }

    async fn read(&self, at: &Key) -> Result<Option<Bytes>, StoreError> {
        let entry = self.store.lookup(at).await?;
        Ok(entry.map(|entry| entry.value.read(RECORD_BYTES_MAX).unwrap()))
    }

    async fn kept(&self, at: &Key) -> Bytes {
        let entry = self.store.beneath.lookup(at).await.unwrap().unwrap();
        entry.value.read(RECORD_BYTES_MAX).unwrap()
    }

    fn is_in_files(&self, text: &str) -> bool {
        holds(self.directory.path(), text.as_bytes())
    }
}

/// Returns whether a file at or below a path holds these bytes.
fn holds(path: &Path, wanted: &[u8]) -> bool {
    if path.is_dir() {
        let mut entries = std::fs::read_dir(path).unwrap();
        return entries.any(|entry| holds(&entry.unwrap().path(), wanted));
    }
    let bytes = std::fs::read(path).unwrap_or_default();
    bytes.windows(wanted.len()).any(|window| window == wanted)
}

#[tokio::test]
async fn a_secret_lies_sealed_and_reads_clear() {
    let fixture = Fixture::sealing();
    let text = format!("{{\"KEY\":\"{CANARY}\"}}");
    fixture.store.set(config(), text.clone().into()).await.unwrap();
    fixture.store.set(key("app::blog::spec"), "{}".into()).await.unwrap();
    assert_eq!(fixture.read(&config()).await.unwrap().unwrap(), text);
    assert_eq!(fixture.kept(&key("app::blog::spec")).await, "{}", "other records stay clear");
    let kept = fixture.kept(&config()).await;
    assert_eq!(sealed::key_of(&kept), Ok(Some(made(1).id())));
    let found = fixture.store.prefix(&"app".parse().unwrap()).await.unwrap();
    assert_eq!(found[0].value.inline().unwrap(), &text);
    fixture.store.close().await.unwrap();
    assert!(fixture.is_in_files("app::blog::config"), "the log is searched");
    assert!(!fixture.is_in_files(CANARY));
    assert!(!fixture.is_in_files(&to_hex(CANARY.as_bytes())));
}

#[tokio::test]
async fn a_large_secret_leaves_no_clear_file() {
    let fixture = Fixture::sealing();
    let text = CANARY.repeat(2000);
    fixture.store.set(config(), text.clone().into()).await.unwrap();
    assert_eq!(fixture.read(&config()).await.unwrap().unwrap(), text);
    assert!(!fixture.is_in_files(CANARY));
    let mut writer = fixture.store.writer().await.unwrap();
    writer.write(text.as_bytes()).unwrap();
    let file = writer.finish().unwrap();
    let other = key("cert::shop.example");
    fixture.store.set_file(other.clone(), file).await.unwrap();
    assert_eq!(fixture.read(&other).await.unwrap().unwrap(), text);
    assert_eq!(sealed::key_of(&fixture.kept(&other).await), Ok(Some(made(1).id())));
}

#[tokio::test]
async fn a_value_that_is_moved_to_another_key_does_not_open() {
    let fixture = Fixture::sealing();
    fixture.store.set(config(), "{}".into()).await.unwrap();
    let kept = fixture.kept(&config()).await;
    let other = key("app::shop::config");
    fixture.store.beneath.set(other.clone(), kept.clone()).await.unwrap();
    let error = fixture.read(&other).await.unwrap_err();
    assert!(error.to_string().contains("does not open"), "{error}");
    // What the store keeps of a node that joined is the same value.
    let lost = key("lost::app::blog::config");
    fixture.store.beneath.set(lost.clone(), kept).await.unwrap();
    assert_eq!(fixture.read(&lost).await.unwrap().unwrap(), "{}");
}

#[tokio::test]
async fn clear_values_are_read_as_before_and_sealed_in_place() {
    let fixture = Fixture::new();
    let expires = Some(Timestamp(u64::from(u32::MAX) * 1000));
    let change = Submitted::Set { value: "{}".into(), expires };
    let write = Submission { key: config(), change, only_over: None };
    fixture.store.write(write).await.unwrap();
    assert_eq!(fixture.kept(&config()).await, "{}", "there is no key yet");
    fixture.store.keys.keep(made(1)).unwrap();
    fixture.store.keys.seal_with(Some(made(1).id()));
    assert_eq!(fixture.read(&config()).await.unwrap().unwrap(), "{}");
    assert_eq!(fixture.store.reseal(None).await.unwrap(), 1);
    let found = secrets_of(&*fixture.store.beneath).await.unwrap();
    assert_eq!(found.sealed.len(), 1);
    assert_eq!(found.sealed[0].1, Some(made(1).id()));
    assert_eq!(found.sealed[0].0.expires, expires, "its end is kept");
    assert_eq!(fixture.read(&config()).await.unwrap().unwrap(), "{}");
    assert_eq!(fixture.store.reseal(None).await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn without_the_key_a_secret_is_neither_read_nor_written_clear() {
    let fixture = Fixture::sealing();
    fixture.store.set(config(), "{}".into()).await.unwrap();
    let record = SealingRecord { v: 1, seals: Some(made(1).id()), ..SealingRecord::default() };
    let record = model::record::encode(&record).into();
    fixture.store.set(TypedKey::Sealing.key(), record).await.unwrap();
    fixture.store.keys.forget(&made(1).id()).unwrap();
    let error = fixture.read(&config()).await.unwrap_err();
    assert!(error.to_string().contains("which this node does not have"), "{error}");
    let error = fixture.store.set(config(), CANARY.into()).await.unwrap_err();
    assert!(error.to_string().contains("secrets.json"), "{error}");
    assert!(!fixture.is_in_files(CANARY));
}

#[tokio::test]
async fn a_watcher_sees_clear_values_and_reads_again_when_a_key_comes() {
    let fixture = Fixture::sealing();
    let mut watch = fixture.store.watch("app".parse().unwrap(), None).await.unwrap();
    fixture.store.set(config(), "{}".into()).await.unwrap();
    let Some(WatchEvent::Changed { value: Some(value), .. }) = watch.next().await else {
        panic!("a change was announced");
    };
    assert_eq!(value.inline().unwrap(), "{}");
    fixture.store.keys.keep(made(2)).unwrap();
    assert!(matches!(watch.next().await, Some(WatchEvent::Resync { .. })));
}
