//! Tests with peers that lie, disks that rot and bytes that are no frames: nothing false is ever
//! kept.

use std::sync::Arc;

use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use super::world::{Fate, Node, Peers, bytes, runtime};
use crate::bulk::frame::{BulkFrameKind, BulkRequest, decode_bits, encode_bits};
use crate::bulk::outline::Outline;
use crate::bulk::serve::BulkServer;
use crate::bulk::{BulkError, GROUP_BYTES, SPAN_GROUPS, ValueName};

fn flip(at: u64, bits: u8) -> Fate {
    Fate { flip: Some((at, bits)), ..Fate::default() }
}

/// Asserts that what is kept of a value, if anything, is a part of it from its start.
fn assert_true(to: &Node, value: &ValueName, whole: &[u8], what: &str) {
    assert_eq!(to.load(value), None, "{what}");
    let kept = std::fs::read(to.partial(value)).unwrap_or_default();
    assert!(whole.starts_with(&kept), "{what}: {} bytes kept", kept.len());
}

#[tokio::test(start_paused = true)]
async fn a_flipped_bit_anywhere_is_found_at_its_group() {
    let whole = bytes(3 * GROUP_BYTES + 200, 1);
    let from = Node::new();
    let value = from.store(&whole);
    let probe = Peers::of(&[&from]);
    probe.fetch(&Node::new(), value).await.unwrap();
    let length = probe.brought(0)[0].len() as u64;
    // Each byte of the first frames' heads and hashes, then some of each group and all the heads.
    let head = 200.min(length);
    let frames = (0..4).flat_map(|n| {
        let start = head + n * GROUP_BYTES as u64;
        start.saturating_sub(30)..start + 30
    });
    let places = (0..head).chain(frames).chain((0..length).step_by(1009));
    for at in places.filter(|at| *at < length) {
        let (to, peers) = (Node::new(), Peers::of(&[&from]));
        let bits = 1 << (at % 8);
        peers.fates(
            0,
            [flip(at, bits)].into_iter().chain([Fate { cut_after: Some(0), ..Fate::default() }; 8]),
        );
        let error = peers.fetch(&to, value).await.expect_err("it was not the value");
        assert_true(&to, &value, &whole, &format!("byte {at}: {error}"));
    }
    // The flipped bit is found at its group: those before it are kept.
    let (to, peers) = (Node::new(), Peers::of(&[&from]));
    peers.fates(0, [flip(length - 10, 1)]);
    let error = peers.fetch(&to, value).await.unwrap_err();
    assert!(matches!(error, BulkError::False(_)), "{error}");
    assert_eq!(std::fs::read(to.partial(&value)).unwrap(), whole[..3 * GROUP_BYTES]);
}

#[tokio::test(start_paused = true)]
async fn another_holder_completes_a_value_that_a_liar_began() {
    let whole = bytes(40 * GROUP_BYTES, 2);
    let (liar, honest, to) = (Node::new(), Node::new(), Node::new());
    let value = liar.store(&whole);
    honest.store(&whole);
    let peers = Peers::of(&[&liar, &honest]);
    peers.fates(0, [flip(20 * GROUP_BYTES as u64, 4)]);
    peers.fetch(&to, value).await.unwrap();
    assert_eq!(to.load(&value), Some(whole.clone()));
    assert_eq!(peers.brought(0).len(), 1, "who lied is not asked again");
    let rest = peers.brought(1)[0].len();
    assert!(rest < whole.len() * 2 / 3, "{rest} bytes from the other one");
}

#[tokio::test(start_paused = true)]
async fn a_value_of_another_length_or_content_is_refused() {
    let whole = bytes(5 * GROUP_BYTES, 3);
    let (from, to) = (Node::new(), Node::new());
    let value = from.store(&whole);
    let peers = Peers::of(&[&from]);
    for size in [0, 1, value.size - 1, value.size + 1, u64::from(u32::MAX), u64::MAX] {
        let wrong = ValueName { size, ..value };
        peers.fetch(&to, wrong).await.expect_err("another length");
        assert_eq!(to.load(&value), None);
    }
    // A rotten file is found by the node that has it, once its outline is not remembered.
    let mut rotten = whole.clone();
    rotten[70_000] ^= 1;
    std::fs::write(from.values.path(&value.hash), &rotten).unwrap();
    peers.fetch(&to, value).await.unwrap_err();
    assert_true(&to, &value, &whole, "rotten since it was written");
    assert!(from.values.is_damaged(&value), "it is not given again");
    let mut forgetful = Node::new();
    std::fs::create_dir_all(forgetful.values.path(&value.hash).parent().unwrap()).unwrap();
    std::fs::write(forgetful.values.path(&value.hash), &rotten).unwrap();
    forgetful.restart();
    let error = Peers::of(&[&forgetful]).fetch(&to, value).await.unwrap_err();
    assert!(matches!(error, BulkError::Unable(_)), "{error}");
    assert_eq!(forgetful.values.damaged().unwrap(), [value]);
    std::fs::write(forgetful.values.path(&value.hash), &rotten).unwrap();
    // This one has the outline of its forgery.
    forgetful.values.outlines.put(value.hash, Arc::new(Outline::read(&rotten[..]).unwrap()));
    let error = Peers::of(&[&forgetful]).fetch(&to, value).await.unwrap_err();
    assert!(matches!(error, BulkError::False(_)), "{error}");
    assert_true(&to, &value, &whole, "forged");
    // The same partial file serves an honest peer.
    from.store(&whole);
    peers.fetch(&to, value).await.unwrap();
    assert_eq!(to.load(&value), Some(whole));
}

#[tokio::test(start_paused = true)]
async fn a_request_beyond_the_end_ends_the_stream() {
    let from = Node::new();
    let value = from.store(&bytes(3 * GROUP_BYTES, 4));
    let server = Arc::new(BulkServer::new(from.values.clone()));
    for (span, start, until) in
        [(0u64, 0u32, 4u32), (1, 0, 1), (u64::MAX, 0, 1), (0, 2, 2), (0, 3, 1)]
    {
        let mut body = [&value.hash[..], &value.size.to_le_bytes(), &span.to_le_bytes()].concat();
        body.extend_from_slice(&start.to_le_bytes());
        body.extend_from_slice(&until.to_le_bytes());
        let mut frame = (body.len() as u32 + 1).to_le_bytes().to_vec();
        frame.push(BulkFrameKind::AskGroups as u8);
        frame.extend_from_slice(&body);
        let (mut near, far) = duplex(1 << 16);
        near.write_all(&frame).await.unwrap();
        let served = server.serve(far).await;
        assert!(matches!(served, Err(BulkError::False(_))), "{span} {start} {until}: {served:?}");
        let mut answer = Vec::new();
        near.read_to_end(&mut answer).await.unwrap();
        assert!(answer.is_empty(), "{span} {start} {until}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_upset_a_server(noise in proptest::collection::vec(any::<u8>(), 0..600)) {
        let runtime = runtime();
        runtime.block_on(async {
            let from = Node::new();
            let server = BulkServer::new(from.values.clone());
            let (mut near, far) = duplex(1 << 16);
            near.write_all(&noise).await.unwrap();
            near.shutdown().await.unwrap();
            // It may return any error, but it has to return.
            let _ = server.serve(far).await;
        });
    }

    #[test]
    fn no_body_upsets_a_decoder(body in proptest::collection::vec(any::<u8>(), 0..200)) {
        use BulkFrameKind::{AskGroups, AskHeld, AskSpans, Group};
        for kind in [AskHeld, AskSpans, AskGroups, Group] {
            if let Ok(BulkRequest::Groups(wanted)) = BulkRequest::decode(kind, &body) {
                prop_assert!(wanted.from < wanted.until && wanted.until <= SPAN_GROUPS);
            }
        }
    }

    #[test]
    fn bit_sets_are_read_back(bits in proptest::collection::vec(any::<bool>(), 0..300)) {
        let encoded = encode_bits(&bits);
        prop_assert_eq!(decode_bits(&encoded, bits.len()), Some(bits.clone()));
        prop_assert_eq!(decode_bits(&encoded, bits.len() + 8), None);
    }
}
