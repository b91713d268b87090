//! TLS and HTTP/2 towards the public, with `curl`: through an upgrade, and with certificates that
//! are no good.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use rcgen::{CertificateParams, KeyPair};
use tempfile::TempDir;
use time::{Duration, OffsetDateTime};

use crate::machine::free_port;
use crate::node::{Node, run};
use crate::outside::Site;
use crate::project::{copy_of_example, of_files};
use crate::upgrade::other_binary;
use crate::wait::{STATE_DEADLINE, wait_for, wait_until};

/// The number of answers, so that some come before, while and after the node hands over.
const ANSWERS: u64 = 200;
/// The number of answers on one connection, after which another one is made.
const ANSWERS_EACH: usize = 20;

/// Writes `NAME.pem` and `NAME.key` into the directory, for `NAME.example`.
fn write(directory: &Path, name: &str, end: Duration) {
    let mut params = CertificateParams::new(vec![format!("{name}.example")]).expect("a name");
    params.not_before = OffsetDateTime::now_utc() - Duration::days(9);
    params.not_after = OffsetDateTime::now_utc() + end;
    let key = KeyPair::generate().expect("a key");
    let certificate = params.self_signed(&key).expect("a certificate");
    fs::write(directory.join(format!("{name}.key")), key.serialize_pem()).expect("a file");
    fs::write(directory.join(format!("{name}.pem")), certificate.pem()).expect("a file");
}

/// Pushes a static site under all of the names.
fn push(node: &Node, names: &[&str]) -> Site {
    let project = node.path("project");
    copy_of_example("static", &project);
    let domains: Vec<String> = names.iter().map(|name| format!("'{name}.example'")).collect();
    let settings = format!("domains = [{}]\n", domains.join(", "));
    of_files(&project, &[("cortex.toml", &settings)]);
    node.push(&project, "site")
}

/// Starts a node with a port inside TLS for certificates of these names.
fn secured(directory: TempDir, names: &[&str]) -> (Node, u16) {
    let port = free_port();
    let mut options = vec!["--https".to_owned(), format!("127.0.0.1:{port}")];
    for name in names {
        let path = |end: &str| directory.path().join(format!("{name}.{end}")).display().to_string();
        options.extend(["--tls-cert".to_owned(), path("pem"), "--tls-key".to_owned(), path("key")]);
    }
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    (Node::start_in(directory, &options), port)
}

/// Returns a command that trusts `NAME.pem` alone, and prints status and version of each answer on
/// a line.
fn curl(place: &Path, name: &str, port: u16, options: &[&str], count: usize) -> Command {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--max-time", "60", "--cacert"]);
    command.arg(place.join(format!("{name}.pem"))).args(options);
    command.args(["--resolve", &format!("{name}.example:{port}:127.0.0.1")]);
    command.args(["--write-out", "%{http_code} %{http_version}\\n"]);
    for _ in 0..count {
        command.args(["--output", "/dev/null", &format!("https://{name}.example:{port}/")]);
    }
    command
}

/// A client that asks until it is told to stop; every answer must be good.
struct Asking {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Asking {
    fn start(node: &Node, port: u16, option: &'static str, version: &'static str) -> Asking {
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (place, stopped, count) = (node.path(""), stop.clone(), answered.clone());
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::SeqCst) {
                let command = curl(&place, "site", port, &[option], ANSWERS_EACH);
                let said = run(command, &format!("curl {option}")).succeeded().stdout;
                let good = format!("200 {version}\n").repeat(ANSWERS_EACH);
                assert_eq!(said, good);
                count.fetch_add(ANSWERS_EACH as u64, Ordering::SeqCst);
            }
        });
        Asking { stop, answered, thread }
    }

    fn answered_more(&self) {
        let before = self.answered.load(Ordering::SeqCst);
        wait_for("more answers", STATE_DEADLINE, || {
            let more = self.answered.load(Ordering::SeqCst) - before;
            let ended = self.thread.is_finished();
            assert!(!ended, "a request failed");
            if more >= ANSWERS { Ok(()) } else { Err(format!("{more} more")) }
        });
    }

    fn finish(self) {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().expect("no request failed");
    }
}

#[test]
fn an_upgrade_costs_no_request_inside_tls_nor_over_http_2() {
    let directory = TempDir::with_prefix("cortex-e2e-").expect("a temporary directory");
    write(directory.path(), "site", Duration::days(9));
    let (node, port) = secured(directory, &["site"]);
    push(&node, &["site"]);
    let all = [("--http1.1", "1.1"), ("--http2", "2")];
    let all = all.map(|(option, version)| Asking::start(&node, port, option, version));
    all.iter().for_each(Asking::answered_more);
    let next = other_binary(node.directory.path(), "next");
    node.cortex(&["upgrade", "--binary", next.to_str().expect("text")]);
    all.iter().for_each(Asking::answered_more);
    all.into_iter().for_each(Asking::finish);
}

#[test]
fn a_certificate_that_is_no_good_stops_nothing_and_its_successor_is_taken() {
    let directory = TempDir::with_prefix("cortex-e2e-").expect("a temporary directory");
    write(directory.path(), "old", -Duration::DAY);
    write(directory.path(), "site", Duration::days(9));
    let names = ["old", "absent", "site"];
    let (node, port) = secured(directory, &names);
    push(&node, &names).get("/").assert_ok("A static site");
    let log = node.log();
    let names_both = log.contains("old.pem") && log.contains("absent.pem");
    assert!(names_both && log.contains("the certificate expired at"), "{log}");
    let asks = |name: &str| run(curl(&node.path(""), name, port, &[], 1), "curl");
    assert_eq!(asks("site").succeeded().stdout, "200 2\n");
    assert!(!asks("old").status.success());
    write(&node.path(""), "old", Duration::days(9));
    write(&node.path(""), "absent", Duration::days(9));
    for name in names {
        wait_until("each certificate to be used", || asks(name).stdout == "200 2\n");
    }
}
