//! Tests with streams that are cut anywhere: the value comes whole, and what came before does not
//! come again.

use proptest::prelude::*;

use super::world::{Fate, Node, Peers, bytes, runtime};
use crate::bulk::{BulkError, GROUP_BYTES, SPAN_GROUPS};

const SPAN: usize = SPAN_GROUPS * GROUP_BYTES;
/// The bytes that one more stream may cost, apart from needed groups: hashes of spans and groups,
/// the group that was cut, and what was on its way.
const PER_CUT: u64 = (SPAN_GROUPS * 32 + 2 * GROUP_BYTES + 128 * 1024) as u64;

fn cut(after: u64) -> Fate {
    Fate { cut_after: Some(after), ..Fate::default() }
}

#[tokio::test(start_paused = true)]
async fn a_value_of_any_length_comes_whole() {
    let (mut from, to) = (Node::new(), Node::new());
    for size in [0, 1, 4097, GROUP_BYTES, GROUP_BYTES + 1, SPAN - 1, SPAN, SPAN + 1, 2 * SPAN + 9] {
        let value = from.store(&bytes(size, 1));
        // Half of the time, what the upload knew of the value is forgotten.
        if size % 2 == 1 {
            from.restart();
        }
        Peers::of(&[&from]).fetch(&to, value).await.unwrap();
        assert_eq!(to.load(&value), Some(bytes(size, 1)), "{size} bytes");
        assert!(!to.partial(&value).exists());
    }
}

/// Returns the offsets at which the frames of a stream end.
fn boundaries(stream: &[u8]) -> Vec<u64> {
    let (mut at, mut ends) = (0, vec![0]);
    while let Some(length) = stream[at..].first_chunk::<4>() {
        at += 4 + u32::from_le_bytes(*length) as usize;
        ends.push(at as u64);
    }
    ends
}

#[tokio::test(start_paused = true)]
async fn a_cut_at_every_message_boundary_costs_no_group() {
    let size = 5 * GROUP_BYTES + 77;
    let from = Node::new();
    let value = from.store(&bytes(size, 2));
    let whole = Peers::of(&[&from]);
    whole.fetch(&Node::new(), value).await.unwrap();
    let stream = whole.brought(0).remove(0);
    let ends = boundaries(&stream);
    assert_eq!(ends.len(), 1 + 2 + 6, "spans, a page and six groups");
    let cuts = ends.iter().flat_map(|end| [end.saturating_sub(1), *end, end + 1]);
    for at in cuts.filter(|at| *at < stream.len() as u64) {
        let (to, peers) = (Node::new(), Peers::of(&[&from]));
        peers.fates(0, [cut(at)]);
        peers.fetch(&to, value).await.unwrap_or_else(|error| panic!("cut at {at}: {error}"));
        assert_eq!(to.load(&value), Some(bytes(size, 2)), "cut at {at}");
        let brought = peers.brought(0);
        assert_eq!(brought.len(), 2, "cut at {at}");
        // The groups that had come whole are the frames after the first two.
        let groups = ends.iter().skip(3).filter(|end| **end <= at).count();
        let again = boundaries(&brought[1]).len() - 1;
        let hashes = if at < ends[1] { 2 } else { 1 };
        assert_eq!(again, hashes + 6 - groups, "cut at {at}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_value_arrives_through_ten_cuts_from_two_holders() {
    let size = 4 * SPAN + 12_345;
    let (one, two, to) = (Node::new(), Node::new(), Node::new());
    let value = one.store(&bytes(size, 3));
    two.store(&bytes(size, 3));
    let peers = Peers::of(&[&one, &two]);
    // Some cuts are within a group, some after megabytes, some before anything was proven.
    let places = [900_001, 10, 2_500_000, 40_000, 1, 3_333_333, 65_536, 0, 1_000_000, 123_456];
    for (n, at) in (0..).zip(places) {
        peers.fates(n % 2, [cut(at)]);
    }
    peers.fetch(&to, value).await.unwrap();
    assert_eq!(to.load(&value), Some(bytes(size, 3)));
    let streams = peers.brought(0).len() + peers.brought(1).len();
    assert!(streams >= 11 && peers.brought(1).len() >= 5, "{streams} streams");
    let brought = peers.all_brought();
    assert!(brought < size as u64 + 12 * PER_CUT, "{brought} bytes for {size}");
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_the_rest_comes_and_damage_is_found() {
    let size = 3 * SPAN + 5 * GROUP_BYTES + 1;
    let from = Node::new();
    let value = from.store(&bytes(size, 4));
    let at = (SPAN + 10 * GROUP_BYTES) as u64;
    let ruin = |to: &Node, how: usize| {
        let path = to.partial(&value);
        let mut kept = std::fs::read(&path).unwrap();
        let original = kept.len();
        assert!(original > SPAN, "{original}");
        match how {
            0 => {}
            1 => kept.extend_from_slice(&[0; 100_000]),
            2 => kept[original - 1] ^= 1,
            3 => kept[SPAN + 5] ^= 1,
            4 => kept[5] ^= 1,
            5 => kept.truncate(original / 2 + 7),
            6 => kept.resize(size + 50_000, 7),
            _ => kept.clear(),
        }
        std::fs::write(&path, kept).unwrap();
    };
    for how in 0..8 {
        let (mut to, peers) = (Node::new(), Peers::of(&[&from]));
        // The second stream is cut before it brings anything, and so are the others.
        peers.fates(0, [cut(at)].into_iter().chain([cut(0); 4]));
        let error = peers.fetch(&to, value).await.unwrap_err();
        assert!(matches!(error, BulkError::Cut(_)), "{error}");
        assert_eq!(to.load(&value), None);
        ruin(&to, how);
        to.restart();
        peers.forget();
        peers.fetch(&to, value).await.unwrap_or_else(|error| panic!("{how}: {error}"));
        assert_eq!(to.load(&value), Some(bytes(size, 4)), "{how}");
        let brought = peers.all_brought();
        let most = match how {
            0..=2 => size as u64 - at + 2 * PER_CUT,
            3 => (size - SPAN) as u64 + 2 * PER_CUT,
            _ => size as u64 + 2 * PER_CUT,
        };
        assert!(brought < most, "{how}: {brought} bytes, at most {most}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn a_value_arrives_whatever_the_cuts(
        size in 1usize..400_000,
        cuts in proptest::collection::vec(0u64..200_000, 0..6),
        restart in any::<bool>(),
    ) {
        let runtime = runtime();
        runtime.block_on(async {
            let (from, mut to) = (Node::new(), Node::new());
            let value = from.store(&bytes(size, 5));
            let peers = Peers::of(&[&from]);
            peers.fates(0, cuts.iter().map(|at| cut(*at)));
            // Too many fruitless attempts end a round; the next one goes on.
            for _ in 0..4 {
                match peers.fetch(&to, value).await {
                    Ok(()) => break,
                    Err(error) => assert!(matches!(error, BulkError::Cut(_)), "{error}"),
                }
                if restart {
                    to.restart();
                }
            }
            assert_eq!(to.load(&value), Some(bytes(size, 5)));
        });
    }
}
