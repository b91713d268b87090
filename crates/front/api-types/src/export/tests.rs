//! Tests of the format of exports, whole, cut and damaged.

use proptest::prelude::*;

use super::*;

type Stored = (String, Option<u64>, Vec<u8>);

fn export(stored: &[Stored]) -> Vec<u8> {
    let (mut encoder, mut bytes) = ExportEncoder::begin();
    for (key, ends, value) in stored {
        let (key, ends) = (key.parse().unwrap(), ends.map(Timestamp));
        bytes.extend(encoder.key(&key, ends, value.len() as u64));
        encoder.value(value);
        bytes.extend(value);
        bytes.extend(encoder.check());
    }
    bytes.extend(encoder.end());
    bytes
}

fn import(bytes: &[u8], step: usize) -> Result<(Vec<Stored>, Totals), FormatError> {
    let (mut decoder, mut stored) = (ExportDecoder::default(), Vec::<Stored>::new());
    for chunk in bytes.chunks(step) {
        decoder.push(chunk, |piece| {
            match piece {
                ExportPiece::Key { key, ends, .. } => {
                    stored.push((key.to_string(), ends.map(|ends| ends.0), Vec::new()));
                }
                ExportPiece::Value(bytes) => stored.last_mut().unwrap().2.extend(bytes),
                _ => {}
            }
            Ok::<(), FormatError>(())
        })?;
    }
    Ok((stored, decoder.finish()?))
}

fn some() -> Vec<Stored> {
    vec![
        ("a::b".into(), None, b"value".to_vec()),
        ("empty".into(), Some(9), Vec::new()),
        ("ä".into(), None, vec![7; 300]),
    ]
}

proptest! {
    #[test]
    fn exports_round_trip_however_they_are_cut(
        stored in prop::collection::vec(
            ("[a-z]{1,9}(::[a-zä]{1,9})?", prop::option::of(1u64..99),
             prop::collection::vec(any::<u8>(), 0..200)),
            0..6,
        ),
        step in 1usize..400,
    ) {
        let stored: Vec<Stored> =
            stored.into_iter().filter(|(key, ..)| !key.starts_with("local")).collect();
        let bytes = stored.iter().map(|(_, _, value)| value.len() as u64).sum();
        let totals = Totals { keys: stored.len() as u64, bytes };
        prop_assert_eq!(import(&export(&stored), step), Ok((stored, totals)));
    }

    #[test]
    fn any_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(import(&bytes, 7).is_err());
        let titled = [b"cortex store export 1\n", &bytes[..]].concat();
        prop_assert!(import(&titled, 7).is_err());
    }
}

#[test]
fn every_cut_and_every_flipped_bit_is_noticed() {
    let whole = export(&some());
    for end in 0..whole.len() {
        let error = import(&whole[..end], 64).unwrap_err();
        let is_cut = matches!(error, FormatError::Cut(_) | FormatError::Title);
        assert!(is_cut, "{end}: {error}");
    }
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << bit;
            assert!(import(&flipped, 64).is_err(), "{at} {bit}");
        }
    }
    let longer = [&whole[..], b"\n"].concat();
    assert_eq!(import(&longer, 9), Err(FormatError::Trailing(whole.len() as u64)));
    let twice = [&whole[..], &whole].concat();
    assert_eq!(import(&twice, 9), Err(FormatError::Trailing(whole.len() as u64)));
}

#[test]
fn what_is_wrong_is_said() {
    let newer = export(&some());
    let of_cluster = [b"cortex store export 2\n", &newer[22..]].concat();
    assert_eq!(import(&of_cluster, 5), Err(FormatError::Cluster));
    let newer = [b"cortex store export 3\n", &newer[22..]].concat();
    assert_eq!(import(&newer, 5), Err(FormatError::Version("3".into())));
    assert_eq!(import(b"hello", 5), Err(FormatError::Title));
    assert_eq!(import(b"", 5), Err(FormatError::Title));
    let note = export(&[("local::x".into(), None, Vec::new())]);
    assert_eq!(import(&note, 5), Err(FormatError::Key("local::x".into())));
    let (_, mut failed) = ExportEncoder::begin();
    failed.extend(ExportEncoder::failure("the disk is gone"));
    assert_eq!(import(&failed, 5), Err(FormatError::Failed("the disk is gone".into())));
    let long = ExportEncoder::failure(&"ä".repeat(5000));
    assert!(long.len() <= MESSAGE_BYTES_MAX + 3);
}

fn cluster() -> Vec<u8> {
    let contents = Contents { node: "n1".into(), exported_at: 7, ..Contents::default() };
    let (mut encoder, mut bytes) = ExportEncoder::begin_cluster(&contents);
    bytes.extend(encoder.key(&"a::b".parse().unwrap(), None, 3));
    encoder.value(b"abc");
    bytes.extend(b"abc");
    bytes.extend(encoder.check());
    for (name, why) in [("blog", None), ("shop", Some("its node went away"))] {
        bytes.extend(encoder.files(&name.parse().unwrap()));
        bytes.extend(encoder.frame(b"one"));
        bytes.extend(encoder.frame(&[9; 300]));
        bytes.extend(encoder.files_end(why));
    }
    bytes.extend(encoder.end());
    bytes
}

fn pieces(bytes: &[u8], step: usize) -> Result<(Vec<ExportPiece>, Totals), FormatError> {
    let (mut decoder, mut pieces) = (ExportDecoder::of_cluster(), Vec::new());
    for chunk in bytes.chunks(step) {
        decoder.push(chunk, |piece| {
            pieces.push(piece);
            Ok::<(), FormatError>(())
        })?;
    }
    Ok((pieces, decoder.finish()?))
}

#[test]
fn a_cluster_has_contents_and_files_besides() {
    let (found, totals) = pieces(&cluster(), 1000).unwrap();
    assert_eq!(totals, Totals { keys: 1, bytes: 3 });
    let name = |text: &str| text.parse().unwrap();
    let Some(ExportPiece::Contents(contents)) = found.first() else { panic!("{found:?}") };
    assert_eq!((contents.node.as_str(), contents.exported_at), ("n1", 7));
    let files = [
        ExportPiece::Files(name("blog")),
        ExportPiece::Frame(b"one".to_vec()),
        ExportPiece::Frame(vec![9; 300]),
        ExportPiece::FilesEnd(None),
        ExportPiece::Files(name("shop")),
        ExportPiece::Frame(b"one".to_vec()),
        ExportPiece::Frame(vec![9; 300]),
        ExportPiece::FilesEnd(Some("its node went away".into())),
        ExportPiece::End(totals),
    ];
    assert_eq!(found[4..], files);
    // A store alone is welcome where a cluster is.
    assert_eq!(pieces(&export(&some()), 9).unwrap().1.keys, 3);
}

#[test]
fn every_cut_and_every_flipped_bit_of_a_cluster_is_noticed() {
    let whole = cluster();
    for end in 0..whole.len() {
        let error = pieces(&whole[..end], 64).unwrap_err();
        let is_cut = matches!(error, FormatError::Cut(_) | FormatError::Title);
        assert!(is_cut, "{end}: {error}");
    }
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << bit;
            assert!(pieces(&flipped, 64).is_err(), "{at} {bit}");
        }
    }
}
