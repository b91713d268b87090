//! Certificates that are read, and read again.

use super::*;
use std::path::Path;

/// Waits until it is so, within a limit.
async fn wait(mut is_so: impl FnMut() -> bool) {
    let poll = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), poll).await.expect("it came to pass in time");
}

/// Writes a certificate for these names, as files `NAME.pem` and `NAME.key`.
fn write(directory: &Path, name: &str, names: &[&str]) -> CertificateFiles {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    let files = CertificateFiles {
        chain: directory.join(format!("{name}.pem")),
        key: directory.join(format!("{name}.key")),
    };
    std::fs::write(&files.chain, made.cert.pem()).unwrap();
    std::fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
    files
}

#[test]
fn the_name_asked_for_decides() {
    let directory = tempfile::tempdir().unwrap();
    let one = write(directory.path(), "one", &["a.example", "*.b.example"]);
    let two = write(directory.path(), "two", &["c.example", "a.example"]);
    let pairs = read(&[one, two]).into_iter().map(Result::ok).collect();
    let tls = Tls::of(Vec::new(), pairs).unwrap();
    let first = tls.certificate(None).unwrap();
    let is_first = |name: &str| Arc::ptr_eq(&tls.certificate(Some(name)).unwrap(), &first);
    for name in ["a.example", "A.Example", "x.b.example", "unknown.example", ""] {
        assert!(is_first(name), "{name}");
    }
    assert!(!is_first("c.example"));
    assert!(is_first("x.y.b.example") && is_first("b.example"));
    assert!(tls.covers("x.b.example", now()) && !tls.covers("x.y.b.example", now()));
}

#[tokio::test(start_paused = true)]
async fn files_that_change_are_read_again_and_bad_ones_are_not_used() {
    let directory = tempfile::tempdir().unwrap();
    let files = write(directory.path(), "one", &["a.example"]);
    let tls = Tls::load(vec![files.clone()]).unwrap();
    let current = || tls.certificate(None).unwrap();
    let before = current();
    let following = tokio::spawn(tls.follow());
    std::fs::write(&files.chain, "nonsense").unwrap();
    tokio::time::sleep(LOOK_INTERVAL * 5).await;
    assert!(Arc::ptr_eq(&before, &current()));
    let key = std::fs::read(write(directory.path(), "two", &["z"]).key).unwrap();
    write(directory.path(), "one", &["b.example"]);
    let good = std::fs::read(&files.key).unwrap();
    std::fs::write(&files.key, key).unwrap();
    tokio::time::sleep(LOOK_INTERVAL * 5).await;
    assert!(Arc::ptr_eq(&before, &current()), "a key that does not fit is not used");
    std::fs::write(&files.key, good).unwrap();
    wait(|| !Arc::ptr_eq(&before, &current())).await;
    assert!(tls.covers("b.example", now()));
    drop(tls);
    following.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn certificates_that_are_bad_at_the_start_are_used_once_they_are_good() {
    let directory = tempfile::tempdir().unwrap();
    let good = write(directory.path(), "good", &["a.example"]);
    let late = CertificateFiles {
        chain: directory.path().join("late.pem"),
        key: directory.path().join("late.key"),
    };
    assert!(Tls::load(vec![late.clone(), good.clone()]).is_err());
    let none = Tls::load_good(vec![late.clone()]).unwrap();
    assert!(none.certificate(Some("late.example")).is_none());
    let tls = Tls::load_good(vec![late, good]).unwrap();
    let named = tls.named.clone();
    let has = |name: &str| named.files.load().by_name.has(name);
    assert!(has("a.example") && !has("late.example"));
    let following = tokio::spawn(tls.follow());
    tokio::time::sleep(LOOK_INTERVAL * 3).await;
    assert!(has("a.example") && !has("late.example"));
    write(directory.path(), "late", &["late.example"]);
    wait(|| has("late.example")).await;
    assert!(has("a.example"));
    drop((tls, named));
    following.await.unwrap();
}
