//! Tests of export and import as a client meets them, over the API of a store that stands alone.

use std::fs::File;
use std::io::Write;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::Method;
use model::{Key, Prefix, Timestamp};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::backend::Backend;
use api_types::Imported;
use api_types::export::{FormatError, Totals};
use client::transfer::{Verified, export, import, verify};
use client::{Client, ClientError};
use os::layout::DataDirectory;
use runtime::driver::Clock;
use store::options::Options;
use store::{INLINE_VALUE_MAX, SharedStore, Submission, Submitted};

pub const LARGE: usize = 5 << 20;

/// A store behind its API.
pub struct Served {
    pub store: SharedStore,
    pub client: Client,
    directory: TempDir,
    serving: JoinHandle<anyhow::Result<()>>,
}

impl Served {
    pub async fn start(backend: &Backend) -> Served {
        let directory = TempDir::new().unwrap();
        let layout =
            DataDirectory::new(directory.path().join("data"), &directory.path().join("run"));
        os::directory::private_directory(layout.root()).unwrap();
        let (node, clock) = ("n1".parse().unwrap(), Clock::start());
        let store = backend.open(&layout, node, clock, Options::default()).await.unwrap();
        let (served, of) = (store.clone(), layout.clone());
        let serving = tokio::spawn(async move { api::serve_keys(&of, served).await });
        let client = Client::new(&layout);
        let answering = async {
            while !client.is_answering().await {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), answering).await.expect("the API answers");
        Served { store, client, directory, serving }
    }

    pub async fn export(&self, prefix: &str) -> (Vec<u8>, Totals) {
        let mut bytes = Vec::new();
        let totals = export(&self.client, prefix, &mut bytes).await.unwrap();
        (bytes, totals)
    }

    pub fn file(&self, bytes: &[u8]) -> File {
        let path = self.directory.path().join("exported");
        File::create(&path).unwrap().write_all(bytes).unwrap();
        File::open(path).unwrap()
    }

    pub async fn import(&self, bytes: &[u8]) -> Imported {
        let verified = verify(self.file(bytes)).unwrap();
        let (all, mut seen) = (verified.file_bytes, 0);
        let imported = import(&self.client, verified, |sent| {
            assert!(seen <= sent && sent <= all);
            seen = sent;
        });
        imported.await.unwrap()
    }

    /// Returns the key, end and bytes of everything but the notes.
    pub async fn content(&self) -> Vec<(String, Option<Timestamp>, Bytes)> {
        let mut content = Vec::new();
        for entry in self.store.prefix(&Prefix::all()).await.unwrap() {
            if !entry.key.is_local() {
                let bytes = entry.value.read(LARGE as u64).unwrap();
                content.push((entry.key.to_string(), entry.expires, bytes));
            }
        }
        content
    }

    pub async fn set(&self, name: &str, value: impl Into<Bytes>) {
        self.store.set(key(name), value.into()).await.unwrap();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn key(name: &str) -> Key {
    name.parse().unwrap()
}

/// Fills the store with small, large and empty values, one with an end, and a note that stays where
/// it is.
pub async fn fill(served: &Served) {
    let large: Vec<u8> = (0..LARGE).map(|at| (at / 7) as u8).collect();
    served.set("a::large", large).await;
    served.set("a::edge", vec![1; INLINE_VALUE_MAX]).await;
    served.set("a::over", vec![2; INLINE_VALUE_MAX + 1]).await;
    served.set("empty", "").await;
    served.set("ä!", "bytes \u{0} and all").await;
    for n in 0..50 {
        served.set(&format!("many::{n}"), format!("{n}")).await;
    }
    let expires = Some(Timestamp(Clock::start().now().0 + 3_600_000));
    let change = Submitted::Set { value: "ends".into(), expires };
    let write = Submission { key: key("with::end"), change, only_over: None };
    served.store.write(write).await.unwrap();
    served.set("local::note", "stays").await;
}

#[tokio::test]
async fn what_is_exported_is_imported_beside_what_is_there() {
    let (one, two) = (Served::start(&Backend::Local).await, Served::start(&Backend::Local).await);
    fill(&one).await;
    let (bytes, totals) = one.export("").await;
    assert_eq!(totals.keys, 56);
    two.set("empty", "overwritten").await;
    two.set("other", "stays").await;
    let imported = two.import(&bytes).await;
    assert_eq!((imported.keys, imported.bytes), (totals.keys, totals.bytes));
    let mut expected = one.content().await;
    expected.push(("other".into(), None, "stays".into()));
    expected.sort();
    assert_eq!(two.content().await, expected);
    assert!(two.store.lookup(&key("local::note")).await.unwrap().is_none());
    let (part, totals) = one.export("many::1").await;
    assert_eq!((totals.keys, verify(one.file(&part)).unwrap().totals), (1, totals));
}

#[tokio::test]
async fn a_store_without_keys_has_an_export_too() {
    let served = Served::start(&Backend::Local).await;
    let (bytes, totals) = served.export("").await;
    assert_eq!(totals, Totals::default());
    assert_eq!(served.import(&bytes).await, Imported::default());
}

#[tokio::test]
async fn a_file_that_is_not_whole_and_unchanged_is_refused_before_anything_is_written() {
    let served = Served::start(&Backend::Local).await;
    fill(&served).await;
    let (bytes, _) = served.export("").await;
    let head = served.store.head().await.unwrap();
    let refused = |bytes: &[u8]| {
        let error = verify(served.file(bytes)).unwrap_err();
        error.downcast::<FormatError>().unwrap()
    };
    assert!(matches!(refused(&bytes[..bytes.len() - 1]), FormatError::Cut(56)));
    assert!(matches!(refused(&bytes[..bytes.len() / 2]), FormatError::Cut(_)));
    for at in [30, bytes.len() / 2, bytes.len() - 1] {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1;
        let error = refused(&flipped);
        let known = matches!(error, FormatError::Damaged(_) | FormatError::Key(_));
        assert!(known, "{at}: {error}");
    }
    let newer = [b"cortex store export 9\n", &bytes[22..]].concat();
    assert_eq!(refused(&newer), FormatError::Version("9".into()));
    assert_eq!(refused(b"app::x = 1\n"), FormatError::Title);
    assert_eq!(served.store.head().await.unwrap(), head);
}

#[tokio::test]
async fn a_node_takes_no_value_that_was_changed_on_its_way() {
    let (one, two) = (Served::start(&Backend::Local).await, Served::start(&Backend::Local).await);
    one.set("a", "1").await;
    one.set("b", vec![7; INLINE_VALUE_MAX * 3]).await;
    let (bytes, _) = one.export("").await;
    let mut flipped = bytes.clone();
    flipped[bytes.len() - 100] ^= 1;
    // The import is sent as if a client had not checked it: the first value is whole, the second is
    // not.
    let verified = Verified { file: two.file(&flipped), totals: Totals::default(), file_bytes: 0 };
    let error = import(&two.client, verified, |_| {}).await.unwrap_err();
    let error = error.downcast_ref::<ClientError>().unwrap();
    assert!(error.to_string().contains("damaged at byte"), "{error}");
    assert!(error.hint().unwrap().starts_with("1 keys had been written"), "{:?}", error.hint());
    assert_eq!(two.content().await, [("a".to_string(), None, "1".into())]);
    // An import that is cut fails as well.
    let chunks = futures_util::stream::iter([Ok(Bytes::from(bytes[..80].to_vec()))]);
    let cut = two.client.upload::<Imported>(Method::POST, "/v1/store/import", chunks);
    assert!(cut.await.unwrap_err().to_string().contains("its end is missing"));
}

#[tokio::test]
async fn an_export_that_fails_says_why_and_has_no_end() {
    let served = Served::start(&Backend::Local).await;
    served.set("a", "1").await;
    served.set("b", vec![7; LARGE]).await;
    let entry = served.store.lookup(&key("b")).await.unwrap().unwrap();
    let store::Value::File { path, .. } = entry.value else { panic!("a file") };
    std::fs::remove_file(path).unwrap();
    let mut bytes = Vec::new();
    let error = export(&served.client, "", &mut bytes).await.unwrap_err();
    assert!(error.to_string().contains("failed where it was made"), "{error}");
    let body = served.client.download("/v1/store/export").await.unwrap();
    let bytes = body.collect().await.unwrap().to_bytes();
    assert!(verify(served.file(&bytes)).is_err());
}

#[cfg(feature = "store-etcd")]
mod etcd {
    use super::super::etcd_server::EtcdServer;
    use super::*;

    #[tokio::test]
    async fn a_store_moves_to_etcd_and_back() {
        let server = EtcdServer::start();
        let local = Served::start(&Backend::Local).await;
        fill(&local).await;
        let (bytes, totals) = local.export("").await;
        let etcd =
            Served::start(&format!("etcd://127.0.0.1:{}/moved", server.port()).parse().unwrap())
                .await;
        assert_eq!(etcd.import(&bytes).await.keys, totals.keys);
        let content = local.content().await;
        assert_eq!(etcd.content().await, content);
        let (again, of_etcd) = etcd.export("").await;
        assert_eq!(of_etcd, totals);
        let back = Served::start(&Backend::Local).await;
        assert_eq!(back.import(&again).await.keys, totals.keys);
        assert_eq!(back.content().await, content);
        let large = content.iter().find(|(name, ..)| name == "a::large").unwrap();
        assert_eq!(large.2.len(), LARGE);
    }
}
