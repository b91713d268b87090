//! Tests of archives in files: there and back, cut, damaged, and with another pass-phrase.

use std::io::Write;

use api_types::export::ExportEncoder;

use super::*;

const PHRASE: &str = "correct horse battery staple";

fn export(values: usize) -> Vec<u8> {
    let contents = Contents { node: "n1".into(), ..Contents::default() };
    let (mut encoder, mut bytes) = ExportEncoder::begin_cluster(&contents);
    for n in 0..values {
        let value = vec![n as u8; 50_000];
        bytes.extend(encoder.key(&format!("k::{n}").parse().unwrap(), None, 50_000));
        encoder.value(&value);
        bytes.extend(value);
        bytes.extend(encoder.check());
    }
    bytes.extend(encoder.end());
    bytes
}

fn archive(content: &[u8], phrase: Option<&str>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = ArchiveWriter::begin(&mut bytes, phrase).unwrap();
    content.chunks(9_999).for_each(|piece| writer.write_all(piece).unwrap());
    let written = writer.finish().unwrap();
    assert_eq!(bytes.len() as u64, written);
    bytes
}

fn file(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    file
}

fn check(bytes: &[u8], phrase: Option<&str>) -> anyhow::Result<Checked> {
    Archive::open(file(bytes), phrase)?.check()
}

#[test]
fn an_archive_is_read_as_often_as_one_likes() {
    let content = export(9);
    for phrase in [None, Some(PHRASE)] {
        let bytes = archive(&content, phrase);
        let kind = if phrase.is_some() { Wrapping::PassPhrase } else { Wrapping::Plain };
        assert_eq!(wrapping_of(&mut file(&bytes)).unwrap(), kind);
        let mut archive = Archive::open(file(&bytes), phrase).unwrap();
        let checked = archive.check().unwrap();
        assert_eq!((checked.totals.keys, checked.totals.bytes), (9, 450_000));
        assert_eq!(checked.contents.unwrap().node, "n1");
        assert_eq!(checked.hash, blake3::hash(&content).to_hex().to_string());
        let (mut out, mut last) = (Vec::new(), 0);
        let read = archive.read(|piece, at| {
            out.extend_from_slice(piece);
            last = at;
            Ok(())
        });
        read.unwrap();
        assert_eq!((out == content, last), (true, bytes.len() as u64));
    }
}

#[test]
fn what_is_wrong_is_told_apart() {
    let bytes = archive(&export(3), Some(PHRASE));
    let said = |bytes: &[u8], phrase| check(bytes, phrase).err().expect("refused").to_string();
    assert!(said(&bytes, Some("another phrase")).contains("pass-phrase is wrong"));
    assert!(said(&bytes[..bytes.len() - 1], Some(PHRASE)).contains("end is missing or damaged"));
    assert!(said(&bytes[..100], Some(PHRASE)).contains("end is missing"));
    let mut flipped = bytes.clone();
    flipped[1000] ^= 1;
    assert!(said(&flipped, Some(PHRASE)).contains("damaged at byte"));
    // A file that ends in order, but whose content does not.
    let content = export(3);
    let short = archive(&content[..content.len() - 49], Some(PHRASE));
    assert!(said(&short, Some(PHRASE)).contains("cut after 3 keys"));
    let newer = [b"cortex store export 3\n", &content[22..]].concat();
    let newer = archive(&newer, Some(PHRASE));
    assert!(said(&newer, Some(PHRASE)).contains("version 3"));
    let wrapped = |text: &str| wrapping_of(&mut file(text.as_bytes())).unwrap_err().to_string();
    assert!(wrapped("").contains("empty"));
    assert!(wrapped("-----BEGIN AGE ENCRYPTED FILE-----\n").contains("age -d"));
    assert!(wrapped("<html>").contains("no exported store"));
}
