//! Changes under load: back ends come and go, and one process follows another, while clients count
//! what fails.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread::JoinHandle;
use std::time::Duration;

use os::finishing::FINISHING_MAX;
use rustix::process::Signal;

use super::world::{LIMIT, Named, Proxy};
use crate::long_lived::await_let_go;
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
fn a_back_end_that_is_unhealthy_is_left_out_and_taken_back() {
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
    // The process from before still carries the connection.
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

#[test]
fn oldest_process_gives_way_when_many_follow_it() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap().port().to_string();
    let options = ["--mode", "tcp", "--to", &to];
    let mut proxies = vec![Proxy::start(&options)];
    let mut talks = Vec::new();
    // One more than may finish at a time follow the first, and each carries a connection.
    for _ in 0..=FINISHING_MAX {
        let newest = proxies.last().unwrap();
        let client = TcpStream::connect(newest.address()).unwrap();
        client.set_read_timeout(Some(LIMIT)).unwrap();
        talks.push((client, listener.accept().unwrap().0));
        let next = newest.successor(&options);
        // Until then either of the two may take the next connection.
        await_let_go(newest.pid(), newest.place.path());
        proxies.push(next);
    }
    assert!(proxies[0].ended().success());
    let (mut cut, _) = talks.remove(0);
    assert!(cut.read(&mut [0]).is_err(), "it is not as if the server had ended it");
    for (mut client, mut server) in talks {
        client.write_all(b"ping").unwrap();
        let mut heard = [0; 4];
        server.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"ping");
    }
    for proxy in &mut proxies[1..=FINISHING_MAX] {
        assert!(proxy.ended().success(), "it has nothing left");
    }
}

/// The duration of a request, long enough for another one to come meanwhile.
const WORK: Duration = Duration::from_millis(2);

/// A server that notes how many requests it had at once.
struct Serial {
    port: u16,
    most: Arc<AtomicU64>,
}

impl Serial {
    fn start() -> Serial {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (most, now) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let noted = most.clone();
        // The threads end with the test.
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let (most, now) = (noted.clone(), now.clone());
                std::thread::spawn(move || {
                    while read_head(&mut stream).is_ok() {
                        most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
                        // Its work takes as long as it listens in vain for more.
                        stream.set_read_timeout(Some(WORK)).unwrap();
                        stream.peek(&mut [0]).ok();
                        stream.set_read_timeout(None).unwrap();
                        now.fetch_sub(1, SeqCst);
                        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
                        if stream.write_all(answer).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Serial { port, most }
    }
}

fn read_head(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut seen = Vec::new();
    while !seen.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        seen.push(byte[0]);
    }
    Ok(())
}

/// Clients that ask one after the other, each on a connection that it keeps until it is told to
/// end.
struct Keepers {
    answered: Arc<AtomicU64>,
    enough: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Keepers {
    fn start(proxy: &Proxy, count: usize) -> Keepers {
        let (answered, enough) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (address, mut threads) = (proxy.address(), Vec::new());
        for _ in 0..count {
            let (answered, enough) = (answered.clone(), enough.clone());
            threads.push(std::thread::spawn(move || {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.set_read_timeout(Some(LIMIT)).unwrap();
                while !enough.load(SeqCst) {
                    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
                    read_head(&mut stream).unwrap();
                    answered.fetch_add(1, SeqCst);
                }
            }));
        }
        let keepers = Keepers { answered, enough, threads };
        keepers.answered_more(2 * count as u64);
        keepers
    }

    fn answered_more(&self, count: u64) {
        let goal = self.answered.load(SeqCst) + count;
        wait_for("more answers", STATE_DEADLINE, || {
            let now = self.answered.load(SeqCst);
            if now >= goal { Ok(()) } else { Err(format!("{now} of {goal}")) }
        });
    }

    fn end(self) {
        self.enough.store(true, SeqCst);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// Asserts that a serial back end has one request at a time although each process has clients of
/// its own that go on asking, and that each gets its turn.
#[test]
fn a_serial_back_end_has_one_request_at_a_time_whoever_took_over() {
    let serial = Serial::start();
    let to = format!("127.0.0.1:{}", serial.port);
    let options = ["--to", &to, "--concurrency", "1"];
    let mut first = Proxy::start(&options);
    let of_first = Keepers::start(&first, 3);
    let mut second = first.successor(&options);
    first.await_hand_over();
    let of_second = Keepers::start(&second, 3);
    let third = second.successor(&options);
    second.await_hand_over();
    let of_third = Keepers::start(&third, 3);
    for _ in 0..3 {
        [&of_first, &of_second, &of_third].iter().for_each(|keepers| keepers.answered_more(10));
    }
    of_first.end();
    assert!(first.ended().success());
    [&of_second, &of_third].iter().for_each(|keepers| keepers.answered_more(10));
    assert_eq!(serial.most.load(SeqCst), 1);
    // A process that dies takes no place with it; the back end may still be busy with what it sent.
    second.signal(Signal::KILL);
    second.ended();
    of_third.answered_more(30);
    // Its clients saw their connections end.
    of_second.threads.into_iter().for_each(|thread| drop(thread.join().unwrap_err()));
    of_third.end();
}
