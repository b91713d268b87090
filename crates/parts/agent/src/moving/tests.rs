//! Tests that send whole directories through the frames, with changes between the passes.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use tokio::sync::mpsc;

use super::frame::{EntryKind, FileEntry, MoveFrame, MoveStream};
use super::tree::{KnownFiles, Staging, walk};

/// Runs one pass; returns how many files were sent whole.
fn pass(from: &Path, known: KnownFiles, staging: &mut Staging) -> (KnownFiles, usize) {
    let (frames, mut taken) = mpsc::channel(4);
    let root = from.to_path_buf();
    let walking = std::thread::spawn(move || walk(&root, known, &frames).unwrap());
    let mut whole = 0;
    staging.begin();
    while let Some(frame) = taken.blocking_recv() {
        whole += usize::from(matches!(frame, MoveFrame::FileEnd(_)));
        staging.take(frame).unwrap();
    }
    (walking.join().unwrap(), whole)
}

fn write_long_ago(path: &Path, text: &[u8]) {
    fs::write(path, text).unwrap();
    let long_ago = SystemTime::now() - Duration::from_secs(600);
    fs::File::options().write(true).open(path).unwrap().set_modified(long_ago).unwrap();
}

#[test]
fn the_second_pass_sends_what_changed() {
    let directory = tempfile::tempdir().unwrap();
    let (from, target) = (directory.path().join("from"), directory.path().join("persist"));
    fs::create_dir_all(from.join("uploads/deep")).unwrap();
    let large: Vec<u8> = (0..200_000_u32).map(|n| (n % 251) as u8).collect();
    write_long_ago(&from.join("uploads/deep/large"), &large);
    write_long_ago(&from.join("db.sqlite3"), b"one");
    write_long_ago(&from.join("gone"), b"soon");
    fs::set_permissions(from.join("db.sqlite3"), fs::Permissions::from_mode(0o640)).unwrap();
    symlink("deep/large", from.join("uploads/link")).unwrap();
    let mut staging = Staging::create(directory.path().join("incoming")).unwrap();
    let (known, whole) = pass(&from, KnownFiles::default(), &mut staging);
    assert_eq!(whole, 3);

    write_long_ago(&from.join("db.sqlite3"), b"two");
    fs::remove_file(from.join("gone")).unwrap();
    fs::remove_file(from.join("uploads/link")).unwrap();
    fs::create_dir(from.join("uploads/link")).unwrap();
    fs::write(from.join("uploads/link/new"), b"new").unwrap();
    let (_, whole) = pass(&from, known, &mut staging);
    assert_eq!(whole, 2, "the large one is there");
    fs::create_dir(&target).unwrap();
    fs::write(target.join("stale"), b"of an earlier stay").unwrap();
    staging.put_in_place(&target).unwrap();
    assert_eq!(fs::read(target.join("uploads/deep/large")).unwrap(), large);
    assert_eq!(fs::read(target.join("db.sqlite3")).unwrap(), b"two");
    assert_eq!(fs::metadata(target.join("db.sqlite3")).unwrap().mode() & 0o777, 0o640);
    assert_eq!(fs::read(target.join("uploads/link/new")).unwrap(), b"new");
    assert!(!target.join("gone").exists() && !target.join("stale").exists());
    assert!(target.with_extension("before").join("stale").exists());
}

#[test]
fn a_file_that_was_just_written_is_sent_again() {
    let directory = tempfile::tempdir().unwrap();
    let from = directory.path().join("from");
    fs::create_dir(&from).unwrap();
    fs::write(from.join("db"), b"now").unwrap();
    let mut staging = Staging::create(directory.path().join("incoming")).unwrap();
    let (known, _) = pass(&from, KnownFiles::default(), &mut staging);
    assert_eq!(pass(&from, known, &mut staging).1, 1);
}

#[test]
fn nothing_outside_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let outside = directory.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let mut staging = Staging::create(directory.path().join("incoming")).unwrap();
    let entry = |path: &str, kind| {
        MoveFrame::Entry(FileEntry { path: path.as_bytes().to_vec(), mode: 0o644, kind })
    };
    let target = outside.to_str().unwrap().as_bytes().to_vec();
    staging.take(entry("link", EntryKind::Link(target))).unwrap();
    for path in ["link/file", "../file", "/tmp/cortex-file", "a/../../file", "", "missing/file"] {
        let taken = staging.take(entry(path, EntryKind::File));
        assert!(taken.is_err(), "{path}");
    }
    assert!(staging.take(entry("unsent", EntryKind::Same)).is_err());
    assert!(staging.take(MoveFrame::Data(b"x".to_vec())).is_err());
    staging.take(entry("half", EntryKind::File)).unwrap();
    staging.take(MoveFrame::Data(b"half of it".to_vec())).unwrap();
    let damaged = staging.take(MoveFrame::FileEnd([7; 32])).unwrap_err().to_string();
    assert!(damaged.contains("damaged"), "{damaged}");
    assert!(fs::read_dir(&outside).unwrap().next().is_none());
}

#[tokio::test]
async fn frames_come_as_they_were_sent() {
    let (near, far) = tokio::io::duplex(1 << 20);
    let (mut near, mut far) = (MoveStream::new(near), MoveStream::new(far));
    let path = b"name with \xff\n".to_vec();
    let frames = [
        MoveFrame::Entry(FileEntry { path, mode: 0o600, kind: EntryKind::Link(b"to".to_vec()) }),
        MoveFrame::Data(vec![1; 64 << 10]),
        MoveFrame::FileEnd([3; 32]),
        MoveFrame::PassEnd,
        MoveFrame::Fault("no".into()),
    ];
    for frame in &frames {
        near.send(frame).await.unwrap();
        assert_eq!(far.receive().await.unwrap(), *frame);
    }
    drop(near);
    assert!(far.receive().await.is_err());
}
