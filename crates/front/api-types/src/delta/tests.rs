//! Tests of deltas: what both sides make of any archives, and of what is none.

use std::convert::Infallible;

use proptest::prelude::*;

use super::*;

/// Appends a file as tar does.
fn file(archive: &mut Vec<u8>, name: &str, content: &[u8]) {
    let mut header = [0; BLOCK_BYTES];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[124..136].copy_from_slice(format!("{:011o} ", content.len()).as_bytes());
    archive.extend_from_slice(&header);
    archive.extend_from_slice(content);
    archive.resize(archive.len().next_multiple_of(BLOCK_BYTES), 0);
}

fn archive(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut archive = Vec::new();
    files.iter().for_each(|(name, content)| file(&mut archive, name, content));
    archive.resize(archive.len() + 2 * BLOCK_BYTES, 0);
    archive
}

fn pieces(archive: &[u8], step: usize) -> Vec<(Piece, Vec<u8>)> {
    let (mut splitter, mut all) = (Splitter::default(), Vec::new());
    let mut each = |piece, bytes: &[u8]| {
        all.push((piece, bytes.to_vec()));
        Ok::<_, Infallible>(())
    };
    archive.chunks(step).for_each(|bytes| splitter.push(bytes, &mut each).unwrap());
    splitter.finish(&mut each).unwrap();
    all
}

fn index(bases: &[Vec<u8>]) -> PieceIndex {
    let mut index = PieceIndex::default();
    for (base, archive) in (0..).zip(bases) {
        let mut offset = 0;
        for (piece, bytes) in pieces(archive, 1000) {
            assert!(index.add(PieceOrigin { base, offset }, piece));
            offset += bytes.len() as u64;
        }
    }
    index
}

/// Returns the delta of an archive, and how many of its bytes are in it.
fn delta(bases: &[Vec<u8>], archive: &[u8]) -> (Vec<u8>, u64) {
    let pieces = pieces(archive, 77);
    let runs = index(bases).find(pieces.iter().map(|(piece, _)| piece.name));
    let known = KnownPieces { bases: Vec::new(), runs };
    let missing = known.missing_bytes(&pieces.iter().map(|(piece, _)| *piece).collect::<Vec<_>>());
    let mut out = Vec::new();
    let mut encoder = DeltaEncoder::begin(known, &mut out);
    pieces.iter().for_each(|(_, bytes)| encoder.piece(bytes, &mut out));
    encoder.finish(&mut out);
    (out, missing)
}

fn apply(bases: &[Vec<u8>], delta: &[u8], step: usize) -> Result<Vec<u8>, DeltaError> {
    let (mut decoder, mut archive) = (DeltaDecoder::default(), Vec::new());
    for bytes in delta.chunks(step) {
        decoder.push(bytes, |step| {
            match step {
                DeltaStep::Literal(bytes) => archive.extend_from_slice(bytes),
                DeltaStep::Copy { origin, bytes } => {
                    let base = &bases[usize::from(origin.base)];
                    archive.extend_from_slice(&base[origin.offset as usize..][..bytes as usize]);
                }
                DeltaStep::End(hash) => assert_eq!(hash.0, *blake3::hash(&archive).as_bytes()),
            }
            Ok::<_, DeltaError>(())
        })?;
    }
    decoder.finish()?;
    Ok(archive)
}

fn files() -> impl Strategy<Value = Vec<(String, Vec<u8>)>> {
    let content = (0..4000usize, any::<u8>()).prop_map(|(size, byte)| vec![byte; size]);
    prop::collection::vec(("[a-z]{1,8}", content), 0..12)
}

proptest! {
    #[test]
    fn the_other_side_gets_the_archive_whatever_it_had(
        bases in prop::collection::vec(files(), 0..=BASES_MAX),
        new in files(),
        kept in any::<prop::sample::Index>(),
        step in 1usize..3000,
    ) {
        let mut new = new;
        if let Some(base) = bases.first() {
            new.extend_from_slice(&base[..kept.index(base.len() + 1)]);
        }
        let bases: Vec<Vec<u8>> = bases.iter().map(|files| archive(files)).collect();
        let new = archive(&new);
        let (delta, _) = delta(&bases, &new);
        prop_assert_eq!(apply(&bases, &delta, step).unwrap(), new);
    }

    #[test]
    fn anything_can_be_cut_and_what_is_no_delta_is_refused(
        bytes in prop::collection::vec(any::<u8>(), 0..3000),
        step in 1usize..700,
    ) {
        let whole: Vec<u8> = pieces(&bytes, step).into_iter().flat_map(|(_, cut)| cut).collect();
        prop_assert_eq!(&whole, &bytes);
        prop_assert!(apply(&[], &bytes, step).is_err());
    }
}

#[test]
fn only_what_changed_is_sent() {
    let many = |changed: usize| {
        let content = |n: usize| format!("file {n} {}", u8::from(n == changed)).repeat(60);
        let files = (0..1000).map(|n| (format!("src/f{n}"), content(n).into_bytes()));
        archive(&files.collect::<Vec<_>>())
    };
    let (old, new) = (many(5000), many(500));
    let (same, sent) = delta(std::slice::from_ref(&old), &old);
    assert_eq!((same.len(), sent), (TITLE.len() + 1 + COPY_BYTES + 1 + HASH_BYTES, 0));
    let (delta, sent) = delta(std::slice::from_ref(&old), &new);
    assert_eq!(sent, 1024, "the content of one file");
    assert!(delta.len() < 1200);
    assert_eq!(apply(&[old], &delta, 100).unwrap(), new);
}

#[test]
fn a_large_file_is_sent_from_where_it_changed_on() {
    let content: Vec<u8> = (0..3 * PIECE_BYTES_MAX + 100).map(|n| (n / 700) as u8).collect();
    let old = archive(&[("a".into(), content.clone())]);
    let mut longer = content;
    longer.extend_from_slice(b"more");
    let new = archive(&[("a".into(), longer)]);
    let (delta, sent) = delta(std::slice::from_ref(&old), &new);
    assert_eq!(sent, 2 * BLOCK_BYTES as u64, "its header and its last piece");
    assert_eq!(apply(&[old], &delta, 5000).unwrap(), new);
}

#[test]
fn a_delta_that_is_cut_or_goes_on_is_refused() {
    let new = archive(&[("a".into(), b"text".to_vec())]);
    let (whole, _) = delta(&[], &new);
    for length in 0..whole.len() {
        assert!(apply(&[], &whole[..length], 9).is_err(), "{length}");
    }
    let longer = [&whole[..], b"L"].concat();
    assert_eq!(apply(&[], &longer, 9), Err(DeltaError::Damaged(whole.len() as u64)));
    let mut large = TITLE.to_vec();
    large.extend_from_slice(&[LITERAL, 255, 255, 255, 255]);
    assert!(matches!(apply(&[], &large, 9), Err(DeltaError::Damaged(_))));
}

#[test]
fn sizes_are_read_as_tar_writes_them() {
    let mut header = [0; BLOCK_BYTES];
    assert_eq!(content_bytes(&header), None, "the end mark");
    header[0] = b'a';
    assert_eq!(content_bytes(&header), Some(0));
    header[124..136].copy_from_slice(b"00000001001\0");
    assert_eq!(content_bytes(&header), Some(1024));
    header[124..136].copy_from_slice(&[0x80, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0]);
    assert_eq!(content_bytes(&header), Some(3 << 32));
    header[124..136].copy_from_slice(b"text is here");
    assert_eq!(content_bytes(&header), None);
}
