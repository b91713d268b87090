//! A port that is for HTTP in one release and for something else in the next.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

use super::world::ANSWER_TIME_MAX;
use crate::long_lived::SERVER;
use crate::machine::free_port;
use crate::node::Node;
use crate::outside::Site;
use crate::project::{edit, of_files};
use crate::wait::{space_out, wait_until};

const NAME: &str = "turning";

/// A client that connects again and again, and counts how often nobody listened.
struct Knocking {
    ended: Arc<AtomicBool>,
    tried: Arc<AtomicU64>,
    thread: JoinHandle<Vec<String>>,
}

impl Knocking {
    fn start(port: u16) -> Knocking {
        let (ended, tried) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stop, count) = (ended.clone(), tried.clone());
        let thread = std::thread::spawn(move || {
            let mut refused = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                if let Err(error) = TcpStream::connect(("127.0.0.1", port)) {
                    refused.push(error.to_string());
                }
                count.fetch_add(1, Ordering::Relaxed);
                space_out(Duration::from_millis(2));
            }
            refused
        });
        Knocking { ended, tried, thread }
    }

    fn finish_without_refusal(self) {
        self.ended.store(true, Ordering::Relaxed);
        let refused = self.thread.join().expect("it does not panic");
        assert!(refused.is_empty(), "{:?}: {refused:?}", self.tried);
    }
}

fn is_http(port: u16) -> bool {
    let site = Site { host: format!("127.0.0.1:{port}"), port };
    site.try_get("/").is_ok_and(|answer| answer.status == 200)
}

fn says_lines_again(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    stream.set_read_timeout(Some(ANSWER_TIME_MAX)).expect("a time limit");
    let mut heard = String::new();
    stream.write_all(b"well?\n").is_ok()
        && BufReader::new(stream).read_line(&mut heard).is_ok()
        && heard == "well?\n"
}

#[test]
fn port_turns_with_the_release_that_serves_and_is_open_all_the_while() {
    let node = Node::start();
    let (port, other, project) = (free_port(), free_port(), node.path(NAME));
    let process = "[processes]\nweb = 'python3 bin/server.py'\n";
    let lines = format!("[[ports]]\nport = {port}\nenv = 'LINES_PORT'\n");
    let manifest = project.join("cortex.toml");
    let before = format!("port = {port}\n{process}");
    let after = format!("port = {other}\n{process}{lines}");
    of_files(&project, &[("bin/server.py", SERVER), ("cortex.toml", &before)]);
    let push = || node.push_as_it_is(&project, NAME);
    push().succeeded();
    assert!(is_http(port));
    let knocking = Knocking::start(port);

    // What clashes is refused, with what to do.
    let clash = format!("port = {port}\n{process}{lines}");
    std::fs::write(&manifest, clash).expect("it can be written");
    let why = format!("{port}/tcp: 'port' has it for HTTP; give one of the two another number");
    push().refused().saying(&[&why]);

    // A release that does not come to serve turns nothing.
    std::fs::write(&manifest, &after).expect("it can be written");
    edit(&project.join("bin/server.py"), "import os", "raise SystemExit(3)\nimport os");
    push().refused();
    assert!(is_http(port) && !is_http(other));
    let rows: Value = serde_json::from_str(&node.cortex(&["apps", "--json"])).expect("JSON");
    assert_eq!(rows[0]["port"], port, "{rows}");

    edit(&project.join("bin/server.py"), "raise SystemExit(3)\n", "");
    push().succeeded();
    wait_until("the other port to answer HTTP", || is_http(other));
    assert!(says_lines_again(port));

    node.cortex(&["rollback", "-a", NAME]);
    wait_until("the port to answer HTTP again", || is_http(port));
    wait_until("the other one to be closed", || TcpStream::connect(("127.0.0.1", other)).is_err());
    knocking.finish_without_refusal();
}
