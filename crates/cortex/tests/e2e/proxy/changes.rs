//! Back ends come and go, and one process follows another, while clients count what fails.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use super::world::{LIMIT, Named, Proxy};
use crate::machine::free_port;
use crate::outside::Callers;
use crate::wait::{STATE_DEADLINE, wait_for};

const NAMES: [&str; 3] = ["alpha", "beta", "gamma"];

fn await_rows(proxy: &Proxy, what: &str, good: impl Fn(&[serde_json::Value]) -> bool) {
    wait_for(what, STATE_DEADLINE, || {
        let rows = proxy.change(&["list"]);
        if good(&rows) { Ok(()) } else { Err(format!("{rows:?}")) }
    });
}

#[test]
fn no_request_fails_while_back_ends_come_and_go() {
    let [alpha, beta, gamma] = NAMES.map(Named::start);
    let proxy = Proxy::start(&["--to", &alpha.to(), "--strategy", "round-robin"]);
    let callers = Callers::start(&proxy.site(), "/", &NAMES);
    callers.answered_more(50);
    for _ in 0..3 {
        proxy.change(&["add", &beta.to()]);
        proxy.change(&["add", &gamma.to(), "--weight", "3"]);
        callers.answered_more(50);
        proxy.change(&["drain", &alpha.to()]);
        callers.answered_more(50);
        proxy.change(&["weight", &alpha.to(), "2"]);
        proxy.change(&["remove", &beta.to()]);
        await_rows(&proxy, "the removed one to be gone", |rows| rows.len() == 2);
        let before = beta.count();
        callers.answered_more(50);
        assert_eq!(beta.count(), before, "who was removed is asked nothing");
        proxy.change(&["remove", &gamma.to()]);
        callers.answered_more(50);
        proxy.change(&["weight", &alpha.to(), "1"]);
        await_rows(&proxy, "one to be left", |rows| rows.len() == 1);
    }
    callers.finish_without_failure();
    assert!(beta.count() > 0 && gamma.count() > 0);
    let shown = proxy.try_change(&["list"]).succeeded().stdout;
    assert!(shown.contains("BACK END") && shown.contains("active"), "{shown}");
}

#[test]
fn what_is_not_well_is_left_out_and_taken_back() {
    let alpha = Named::start("alpha");
    let away = free_port();
    let to = format!("{},{away}", alpha.to());
    let options = ["--to", &to, "--health", "/up", "--health-interval", "0.1"];
    let proxy = Proxy::start(&options);
    let health = |index: usize, wanted: &'static str| {
        move |rows: &[serde_json::Value]| rows[index]["health"] == wanted
    };
    await_rows(&proxy, "the one that is there to be well", health(0, "well"));
    await_rows(&proxy, "the other one to be out", health(1, "failing"));
    let mut command = std::process::Command::new("python3");
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("up"), "yes").unwrap();
    command.args(["-m", "http.server", &away.to_string(), "--bind", "127.0.0.1"]);
    command.arg("--directory").arg(place.path());
    let _server = super::world::serve_with(command, away);
    await_rows(&proxy, "it to be taken back", health(1, "well"));
}

#[test]
fn no_connection_fails_when_another_process_takes_over() {
    let [alpha, beta, _] = NAMES.map(Named::start);
    let place = tempfile::tempdir().unwrap();
    let records = place.path().join("records");
    let first = ["--to", &alpha.to(), "--records", records.to_str().unwrap()];
    let mut first = Proxy::start(&first);
    let callers = Callers::start(&first.site(), "/", &NAMES);
    callers.answered_more(50);
    // What was changed meanwhile is handed over, too.
    first.change(&["add", &beta.to()]);
    let second = first.successor(&[]);
    callers.answered_more(200);
    let third = second.successor(&["--to", &beta.to()]);
    assert_eq!(third.change(&["list"]).len(), 1);
    callers.answered_more(200);
    callers.finish_without_failure();
    assert!(first.ended().success());
    let mut second = second;
    assert!(second.ended().success());
    assert!(first.said("err").contains("taken over"));
    let before = beta.count();
    third.site().get("/").assert_ok("beta");
    assert_eq!(beta.count(), before + 1);
    assert!(fs::read_to_string(&records).unwrap().lines().count() >= 50);
}

#[test]
fn a_connection_outlives_the_process_that_accepted_no_more() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap().port().to_string();
    let mut first = Proxy::start(&["--mode", "tcp", "--to", &to]);
    let mut client = TcpStream::connect(first.address()).unwrap();
    client.set_read_timeout(Some(LIMIT)).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let second = first.successor(&["--mode", "tcp", "--to", &to]);
    // The one from before still carries it.
    let mut heard = [0; 4];
    client.write_all(b"ping").unwrap();
    server.read_exact(&mut heard).unwrap();
    server.write_all(b"pong").unwrap();
    client.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"pong");
    let _new = TcpStream::connect(second.address()).unwrap();
    listener.accept().unwrap();
    drop((client, server));
    assert!(first.ended().success());
}
