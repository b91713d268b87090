//! Tests of the format: there and back however the bytes are cut, and whatever is done to a file.

use proptest::prelude::*;

use super::*;

/// The least work, so that many files can be made.
const QUICK: u8 = 1;
const PHRASE: &str = "correct horse battery staple";

fn random(seed: u8) -> Randomness {
    let mut bytes = [0; Randomness::BYTES];
    bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = seed.wrapping_add(at as u8));
    Randomness::of(&bytes)
}

fn encrypted(content: &[u8], step: usize) -> Vec<u8> {
    let (mut encryptor, mut file) = begin(PHRASE, QUICK, random(7));
    content.chunks(step).for_each(|piece| encryptor.push(piece, &mut file));
    encryptor.finish(&mut file);
    file
}

fn decrypted(file: &[u8], phrase: &str, step: usize) -> Result<Vec<u8>, AgeError> {
    let (header, length) = Header::parse(file)?.ok_or(AgeError::Cut)?;
    let mut decryptor = Decryptor::new(header.open(phrase)?, length);
    let mut out = Zeroizing::new(Vec::new());
    for piece in file[length..].chunks(step) {
        decryptor.push(piece, &mut out)?;
    }
    decryptor.finish(&mut out)?;
    Ok(out.to_vec())
}

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 3) as u8).collect()
}

/// Returns where the chunks of a file begin, and its end.
fn boundaries(file: &[u8]) -> Vec<usize> {
    let (_, header) = Header::parse(file).unwrap().unwrap();
    let first = header + PAYLOAD_NONCE_BYTES;
    (first..file.len()).step_by(CHUNK_BYTES + TAG_BYTES).chain([file.len()]).collect()
}

/// A file that `age` itself made of "hello\n", with the pass-phrase "pass".
#[test]
fn a_file_of_age_itself_opens() {
    let file = include_bytes!("fixture.age");
    assert_eq!(decrypted(file, "pass", 1000), Ok(b"hello\n".to_vec()));
    assert_eq!(decrypted(file, "Pass", 1000), Err(AgeError::PassPhrase));
}

#[test]
fn every_length_around_a_chunk_goes_there_and_back() {
    for length in [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES] {
        let content = content(length);
        let file = encrypted(&content, 50_000);
        assert_eq!(file, encrypted(&content, CHUNK_BYTES), "{length}");
        assert_eq!(decrypted(&file, PHRASE, 70_000), Ok(content), "{length}");
    }
}

#[test]
fn a_file_that_is_cut_at_or_near_a_boundary_of_chunks_is_refused() {
    let file = encrypted(&content(3 * CHUNK_BYTES + 99), 50_000);
    for boundary in boundaries(&file) {
        for at in boundary - 17..(boundary + 18).min(file.len()) {
            assert_eq!(decrypted(&file[..at], PHRASE, 70_000), Err(AgeError::Cut), "{at}");
        }
    }
    let longer = [&file[..], &[0]].concat();
    assert!(decrypted(&longer, PHRASE, 70_000).is_err());
}

#[test]
fn chunks_do_not_change_places() {
    let file = encrypted(&content(2 * CHUNK_BYTES + 9), 50_000);
    let at = boundaries(&file);
    let swapped =
        [&file[..at[0]], &file[at[1]..at[2]], &file[at[0]..at[1]], &file[at[2]..]].concat();
    let damaged = Err(AgeError::Damaged(at[0] as u64));
    assert_eq!(decrypted(&swapped, PHRASE, 70_000), damaged);
    let left_out = [&file[..at[0]], &file[at[1]..]].concat();
    assert_eq!(decrypted(&left_out, PHRASE, 70_000), damaged);
}

#[test]
fn another_format_is_told_from_damage() {
    let refused = |text: &str| Header::parse(text.as_bytes()).unwrap_err();
    assert_eq!(refused("age-encryption.org/v2\n"), AgeError::Version);
    assert_eq!(refused("something else"), AgeError::Header);
    let of_key = "age-encryption.org/v1\n-> X25519 abc\ndef\n--- ghi\n";
    assert_eq!(refused(of_key), AgeError::Recipient);
    let file = encrypted(b"x", 1);
    let (_, length) = Header::parse(&file).unwrap().unwrap();
    let text = String::from_utf8(file[..length].to_vec()).unwrap();
    let asks = |work: &str| Header::parse(text.replace(" 1\n", work).as_bytes());
    assert_eq!(asks(" 21\n"), Err(AgeError::Work(21)));
    assert!(AgeError::Work(21).to_string().contains("2048 MiB"));
    for work in [" 0\n", " 01\n", " +1\n", " 300\n", " 70\n", " \n"] {
        assert_eq!(asks(work), Err(AgeError::Header), "{work}");
    }
    assert_eq!(Header::parse(TITLE.as_bytes()), Ok(None));
    assert_eq!(Header::parse(&[TITLE.as_bytes(), &[b'a'; 9000]].concat()), Err(AgeError::Header));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn files_go_there_and_back_however_they_are_cut(
        length in 0..3 * CHUNK_BYTES,
        steps in (1usize..100_000, 1usize..100_000),
    ) {
        let content = content(length);
        let file = encrypted(&content, steps.0.max(length / 100 + 1));
        let step = steps.1.max(length / 100 + 1);
        prop_assert_eq!(decrypted(&file, PHRASE, step), Ok(content));
    }

    #[test]
    fn a_changed_byte_is_noticed_wherever_it_is(at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let mut file = encrypted(&content(CHUNK_BYTES + 300), 50_000);
        let at = at.index(file.len());
        file[at] ^= 1 << bit;
        prop_assert!(decrypted(&file, PHRASE, 70_000).is_err());
    }

    #[test]
    fn a_file_is_refused_wherever_it_is_cut(at in any::<prop::sample::Index>()) {
        let file = encrypted(&content(CHUNK_BYTES + 300), 50_000);
        let at = at.index(file.len());
        prop_assert!(decrypted(&file[..at], PHRASE, 70_000).is_err());
    }

    #[test]
    fn any_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(decrypted(&bytes, PHRASE, 7).is_err());
        let titled = [TITLE.as_bytes(), &bytes].concat();
        prop_assert!(decrypted(&titled, PHRASE, 7).is_err());
    }
}
