//! Tests of what a push need not send.

use hyper::Method;

use super::fixture::{Fixture, archive, code};
use api_types::Released;
use api_types::delta::{DeltaEncoder, KnownPieces, Piece, Splitter};

const KNOWN: &str = "/v1/apps/hello/sources/known";

fn pieces(archive: &[u8]) -> Vec<(Piece, Vec<u8>)> {
    let (mut splitter, mut all) = (Splitter::default(), Vec::new());
    let mut each = |piece, bytes: &[u8]| {
        all.push((piece, bytes.to_vec()));
        Ok::<_, std::convert::Infallible>(())
    };
    splitter.push(archive, &mut each).unwrap();
    splitter.finish(&mut each).unwrap();
    all
}

fn delta(known: KnownPieces, archive: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = DeltaEncoder::begin(known, &mut out);
    pieces(archive).iter().for_each(|(_, bytes)| encoder.piece(bytes, &mut out));
    encoder.finish(&mut out);
    out
}

impl Fixture {
    async fn known(&self, archive: &[u8]) -> KnownPieces {
        let names: Vec<u8> =
            pieces(archive).into_iter().flat_map(|(piece, _)| piece.name).collect();
        let names = futures_util::stream::iter([Ok(bytes::Bytes::from(names))]);
        self.client.upload(Method::POST, KNOWN, names).await.unwrap()
    }

    async fn push_delta(&self, known: &KnownPieces, body: Vec<u8>) -> anyhow::Result<Released> {
        let bases: Vec<String> = known.bases.iter().map(ToString::to_string).collect();
        self.push_archive(&format!("/v1/apps/hello/releases?bases={}", bases.join(",")), body).await
    }

    async fn source(&self) -> Vec<u8> {
        let rows: Vec<api_types::ReleaseRow> =
            self.client.get("/v1/apps/hello/releases").await.unwrap();
        let source = format!("app::hello::source::{}", rows[0].source);
        let entry = self.store.lookup(&source.parse().unwrap()).await.unwrap().unwrap();
        let value = entry.value.here().await.unwrap();
        value.read(1 << 20).unwrap().to_vec()
    }
}

#[tokio::test]
async fn a_push_sends_what_earlier_sources_do_not_have() {
    let api = Fixture::start().await;
    let large = "a line of text\n".repeat(2000);
    let old = [("app.py", "print('one')\n"), ("large.txt", large.as_str())];
    let none = api.known(&archive(&old)).await;
    assert!(none.bases.is_empty() && none.runs.iter().all(|run| run.found.is_none()), "{none:?}");
    api.push("hello", &old).await.unwrap();

    let new = archive(&[("app.py", "print('two!')\n"), ("large.txt", large.as_str())]);
    let known = api.known(&new).await;
    let body = delta(known.clone(), &new);
    assert!(body.len() < 3000, "{} bytes are sent", body.len());
    let released = api.push_delta(&known, body).await.unwrap();
    assert_eq!(released.release, "v2");
    assert_eq!(api.source().await, new);
    // The small one is in the store's log, and can be built on as well.
    let small = archive(&[("app.py", "print('three')\n")]);
    api.push_archive("/v1/apps/hello/releases", small.clone()).await.unwrap();
    let known = api.known(&small).await;
    api.push_delta(&known, delta(known.clone(), &small)).await.unwrap();
    assert_eq!(api.source().await, small);
}

#[tokio::test]
async fn a_delta_of_something_else_changes_nothing() {
    let api = Fixture::start().await;
    let text = "text\n".repeat(2000);
    api.push("hello", &[("app.py", text.as_str())]).await.unwrap();
    let new = archive(&[("app.py", text.as_str()), ("new.py", "")]);
    let known = api.known(&new).await;
    let whole = delta(known.clone(), &new);
    let refused = |body: Vec<u8>| api.push_delta(&known, body);

    assert_eq!(code(refused(whole[..whole.len() - 1].to_vec()).await), "invalid_delta");
    assert_eq!(code(refused(new.clone()).await), "invalid_delta");
    let mut other = whole.clone();
    *other.last_mut().unwrap() ^= 1;
    assert_eq!(code(refused(other).await), "archive_differs");
    // It copies from behind the end, from a source that is not named, and without an end.
    let copy = |base: u8, offset: u64, bytes: u64| {
        let mut body = b"cortex delta 1\nC".to_vec();
        body.push(base);
        body.extend_from_slice(&offset.to_be_bytes());
        body.extend_from_slice(&bytes.to_be_bytes());
        body
    };
    for (base, offset, bytes) in [(0, 0, u64::MAX), (0, u64::MAX, 2), (1, 0, 512), (255, 0, 0)] {
        assert_eq!(code(refused(copy(base, offset, bytes)).await), "invalid_delta");
    }
    let gone = KnownPieces { bases: vec![model::value::ContentHash([7; 32])], runs: Vec::new() };
    assert_eq!(code(api.push_delta(&gone, whole.clone()).await), "base_gone");
    let none = api.push_archive("/v1/apps/hello/releases?bases=x", whole).await;
    assert_eq!(code(none), "invalid_request");
    let odd = futures_util::stream::iter([Ok(bytes::Bytes::from_static(b"seventeen bytes!!"))]);
    assert_eq!(
        code(api.client.upload::<KnownPieces>(Method::POST, KNOWN, odd).await),
        "invalid_request"
    );

    let rows: Vec<api_types::ReleaseRow> = api.client.get("/v1/apps/hello/releases").await.unwrap();
    assert_eq!(rows.len(), 1);
}
