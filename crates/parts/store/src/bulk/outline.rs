//! The BLAKE3 tree of a value, cut at groups and spans, which tells a true group from a false one.
//!
//! Only the hashes of the groups are kept (32 bytes for 16 KiB); everything above follows from
//! them. A value is proven from above: its hash proves the hashes of its spans, the hash of a span
//! those of its groups, and the hash of a group its bytes. So nothing unproven is ever longer than
//! a message.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use blake3::Hasher;
use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};

use super::{BUFFER_BYTES, Cv, GROUP_BYTES, SPAN_GROUPS};

/// The way in which a value of some length is cut into groups and spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub size: u64,
}

impl Shape {
    /// Returns the number of groups; an empty value is one empty group.
    pub fn groups(&self) -> u64 {
        self.size.div_ceil(GROUP_BYTES as u64).max(1)
    }

    pub fn spans(&self) -> u64 {
        self.groups().div_ceil(SPAN_GROUPS as u64)
    }

    pub fn groups_in(&self, span: u64) -> usize {
        let first = span * SPAN_GROUPS as u64;
        self.groups().saturating_sub(first).min(SPAN_GROUPS as u64) as usize
    }

    pub fn group_bytes(&self, group: u64) -> usize {
        let start = group * GROUP_BYTES as u64;
        self.size.saturating_sub(start).min(GROUP_BYTES as u64) as usize
    }

    /// Returns the hash of one group, which depends on its place in the tree.
    pub fn hash_group(&self, group: u64, bytes: &[u8]) -> Cv {
        if self.groups() == 1 {
            return *blake3::hash(bytes).as_bytes();
        }
        let mut hasher = Hasher::new();
        hasher.set_input_offset(group * GROUP_BYTES as u64).update(bytes).finalize_non_root()
    }

    /// Returns whether these are the hashes of the spans of the value with this hash.
    pub fn proves_spans(&self, hash: &[u8; 32], spans: &[Cv]) -> bool {
        spans.len() as u64 == self.spans() && fold(spans, TreeNode::Root) == *hash
    }

    /// Returns whether these are the hashes of the groups of that span.
    pub fn proves_page(&self, span: u64, hash: &Cv, page: &[Cv]) -> bool {
        page.len() == self.groups_in(span) && fold(page, self.place_of_spans()) == *hash
    }

    fn place_of_spans(&self) -> TreeNode {
        if self.spans() == 1 { TreeNode::Root } else { TreeNode::Inner }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum TreeNode {
    Root,
    Inner,
}

/// Returns the hash over neighbours of equal weight, of which only the last may be lighter. As in
/// BLAKE3, the left side is the largest power of two that leaves something to the right.
fn fold(hashes: &[Cv], place: TreeNode) -> Cv {
    match hashes {
        [] => Cv::default(),
        [alone] => *alone,
        _ => {
            let (left, right) = hashes.split_at(1 << (hashes.len() - 1).ilog2());
            let (left, right) = (fold(left, TreeNode::Inner), fold(right, TreeNode::Inner));
            match place {
                TreeNode::Root => *merge_subtrees_root(&left, &right, Mode::Hash).as_bytes(),
                TreeNode::Inner => merge_subtrees_non_root(&left, &right, Mode::Hash),
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outline {
    pub shape: Shape,
    groups: Vec<Cv>,
}

impl Outline {
    pub fn hash(&self) -> [u8; 32] {
        fold(&self.spans(), TreeNode::Root)
    }

    pub fn spans(&self) -> Vec<Cv> {
        let place = self.shape.place_of_spans();
        self.groups.chunks(SPAN_GROUPS).map(|page| fold(page, place)).collect()
    }

    /// Returns the hashes of a span's groups; `None` beyond the end.
    pub fn page(&self, span: u64) -> Option<&[Cv]> {
        self.groups.chunks(SPAN_GROUPS).nth(usize::try_from(span).ok()?)
    }

    /// Returns the memory that the outline takes in bytes.
    pub fn bytes(&self) -> usize {
        // The outline's place in the map counts too.
        2 * size_of::<Outline>() + 64 + self.groups.len() * size_of::<Cv>()
    }

    pub fn read(mut from: impl Read) -> io::Result<Outline> {
        let mut outliner = Outliner::default();
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            match from.read(&mut buffer) {
                Ok(0) => return Ok(outliner.finish()),
                Ok(count) => outliner.update(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Makes an outline of bytes as they arrive; hashing them once gives the value's hash as well.
#[derive(Default)]
pub struct Outliner {
    size: u64,
    groups: Vec<Cv>,
    /// The hasher of the last group: only the end of the value tells whether it is the only one.
    open: Hasher,
    filled: usize,
}

impl Outliner {
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.filled == GROUP_BYTES {
                self.close_group();
            }
            let (now, rest) = bytes.split_at(bytes.len().min(GROUP_BYTES - self.filled));
            self.open.update(now);
            self.filled += now.len();
            self.size += now.len() as u64;
            bytes = rest;
        }
    }

    fn close_group(&mut self) {
        self.groups.push(self.open.finalize_non_root());
        self.open = Hasher::new();
        self.open.set_input_offset(self.size);
        self.filled = 0;
    }

    pub fn finish(mut self) -> Outline {
        let last = match self.groups.is_empty() {
            true => *self.open.finalize().as_bytes(),
            false => self.open.finalize_non_root(),
        };
        self.groups.push(last);
        Outline { shape: Shape { size: self.size }, groups: self.groups }
    }
}

/// The memory for outlines that may be asked for again, in bytes: enough for the longest value's,
/// or many.
const OUTLINES_BYTES_MAX: usize = 10 << 20;

/// The outlines made or asked for lately, so that a value fetched in many requests, or by several
/// nodes, is read through for its hashes once.
#[derive(Default)]
pub struct Outlines(Mutex<Recent>);

#[derive(Default)]
struct Recent {
    /// The outlines, each with the turn in which it was last asked for.
    held: BTreeMap<[u8; 32], (Arc<Outline>, u64)>,
    turn: u64,
    bytes: usize,
}

impl Outlines {
    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn get(&self, hash: &[u8; 32]) -> Option<Arc<Outline>> {
        let mut recent = self.recent();
        recent.turn += 1;
        let now = recent.turn;
        let (outline, turn) = recent.held.get_mut(hash)?;
        *turn = now;
        Some(outline.clone())
    }

    pub fn put(&self, hash: [u8; 32], outline: Arc<Outline>) {
        let mut recent = self.recent();
        recent.turn += 1;
        let now = recent.turn;
        recent.bytes += outline.bytes();
        if let Some((old, _)) = recent.held.insert(hash, (outline, now)) {
            recent.bytes -= old.bytes();
        }
        while recent.bytes > OUTLINES_BYTES_MAX {
            let oldest = recent.held.iter().min_by_key(|(_, (_, turn))| *turn);
            let Some(hash) = oldest.map(|(hash, _)| *hash) else { return };
            if let Some((old, _)) = recent.held.remove(&hash) {
                recent.bytes -= old.bytes();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(size: usize) -> Vec<u8> {
        (0..size).map(|n| (n / 7 + n % 251) as u8).collect()
    }

    fn check(size: usize, step: usize) {
        let value = bytes(size);
        let mut outliner = Outliner::default();
        value.chunks(step.max(1)).for_each(|piece| outliner.update(piece));
        let outline = outliner.finish();
        assert_eq!(outline.hash(), *blake3::hash(&value).as_bytes(), "{size} bytes by {step}");
        assert_eq!(outline, Outline::read(&value[..]).unwrap());
        let shape = Shape { size: size as u64 };
        assert_eq!(outline.shape, shape);
        let spans = outline.spans();
        assert!(shape.proves_spans(&outline.hash(), &spans));
        for (span, hash) in (0..).zip(&spans) {
            let page = outline.page(span).unwrap();
            assert!(shape.proves_page(span, hash, page));
            let first = span * SPAN_GROUPS as u64;
            for (group, expected) in (first..).zip(page) {
                let start = group as usize * GROUP_BYTES;
                let piece = &value[start..start + shape.group_bytes(group)];
                assert_eq!(shape.hash_group(group, piece), *expected);
            }
        }
        assert_eq!(outline.page(shape.spans()), None);
    }

    #[test]
    fn the_tree_is_that_of_blake3_at_every_edge() {
        let span = SPAN_GROUPS * GROUP_BYTES;
        for edge in [0, 1, 1024, GROUP_BYTES, 2 * GROUP_BYTES, 3 * GROUP_BYTES, span, 3 * span] {
            for size in [edge.saturating_sub(1), edge, edge + 1] {
                check(size, BUFFER_BYTES);
            }
        }
    }

    #[test]
    fn another_length_is_never_proven() {
        let outline = Outline::read(&bytes(5 * GROUP_BYTES)[..]).unwrap();
        let (hash, spans) = (outline.hash(), outline.spans());
        for size in [0, GROUP_BYTES, 5 * GROUP_BYTES + 1, 4 * GROUP_BYTES] {
            let shape = Shape { size: size as u64 };
            let page = outline.page(0).unwrap();
            assert!(!shape.proves_page(0, &hash, page), "{size}");
        }
        // The number of groups is the same: only the last one differs.
        let shape = Shape { size: 5 * GROUP_BYTES as u64 - 1 };
        assert!(shape.proves_spans(&hash, &spans));
        let last = &bytes(5 * GROUP_BYTES)[4 * GROUP_BYTES..5 * GROUP_BYTES - 1];
        assert_ne!(shape.hash_group(4, last), outline.page(0).unwrap()[4]);
    }

    #[test]
    fn outlines_are_bounded_and_the_oldest_go() {
        let outlines = Outlines::default();
        let large = Arc::new(Outline { shape: Shape { size: 0 }, groups: vec![[1; 32]; 100_000] });
        for n in 0..3 {
            outlines.put([n; 32], large.clone());
            outlines.put([n; 32], large.clone());
        }
        assert!(outlines.get(&[1; 32]).is_some(), "three fit, and the same one counts once");
        outlines.put([3; 32], large.clone());
        let kept = [0u8, 1, 2, 3].map(|n| outlines.get(&[n; 32]).is_some());
        assert_eq!(kept, [false, true, true, true]);
        assert!(outlines.recent().bytes <= OUTLINES_BYTES_MAX);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]
        #[test]
        fn the_tree_is_the_same_in_any_pieces(size in 0usize..200_000, step in 1usize..70_000) {
            check(size, step);
        }
    }
}
