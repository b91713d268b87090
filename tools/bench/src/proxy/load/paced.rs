//! The load at a fixed rate: requests are due whether or not earlier ones were answered, and are
//! dealt out to connections in turn. HTTP/1.1, in clear and inside TLS. What each waits counts from
//! when it was due, so that no wait hides another (coordinated omission).

mod connection;
mod timer;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tokio::sync::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{JoinSet, LocalSet};

use self::connection::{Client, Target};
use self::timer::Timer;
use super::sliced::Sliced;
use super::{Load, PERCENTILES, Seen};
use crate::interrupted::Interrupted;
use crate::poisson::Poisson;
use crate::process::on_core;
use crate::proxy::workload::Workload;

/// How long requests may still take after the end; those that take longer count as failed.
const OVERTIME_MAX: Duration = Duration::from_secs(10);
/// The seed of the times at which requests are due: the same for all contenders.
const SEED: u64 = 1;
/// The number of requests between two checks for an interruption.
const CHECK_EVERY: usize = 256;

struct Tally {
    start: Instant,
    latencies: Sliced,
    errors: u64,
    failure: Option<String>,
}

pub fn run(
    load: &Load<'_>,
    workload: &Workload,
    port: u16,
    per_second: f64,
    seconds: u32,
) -> anyhow::Result<Seen> {
    let target = Target::new(workload, port, &load.certificate)?;
    let connections = workload.connections;
    let tally = on_core(load.core, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let course = drive(target, connections, per_second, seconds, load.interrupted);
        LocalSet::new().block_on(&runtime, course)
    })??;
    if let Some(failure) = &tally.failure {
        eprintln!("{}: {} requests failed, the first: {failure}", workload.name, tally.errors);
    }
    let requests = tally.latencies.len() as u64;
    let percentiles = tally.latencies.percentiles_ms(PERCENTILES);
    let [p50_ms, p99_ms] = percentiles.context("no request was answered")?;
    let requests_per_second = requests as f64 / f64::from(seconds);
    Ok(Seen { requests, requests_per_second, p50_ms, p99_ms, errors: tally.errors })
}

async fn drive(
    target: Target,
    connections: u32,
    per_second: f64,
    seconds: u32,
    interrupted: &Interrupted,
) -> anyhow::Result<Tally> {
    let (sender, receiver) = unbounded_channel();
    let (target, receiver) = (Rc::new(target), Rc::new(Mutex::new(receiver)));
    let mut clients = Vec::new();
    for _ in 0..connections {
        clients.push(Client::open(target.clone()).await?);
    }
    let start = Instant::now();
    let tally = Tally { start, latencies: Sliced::default(), errors: 0, failure: None };
    let tally = Rc::new(RefCell::new(tally));
    let mut workers = JoinSet::new();
    for client in clients {
        workers.spawn_local(work(client, receiver.clone(), tally.clone()));
    }
    let expected = make_due(sender, start, per_second, seconds, interrupted).await?;
    let ended = async { while workers.join_next().await.is_some() {} };
    tokio::time::timeout(OVERTIME_MAX, ended).await.ok();
    workers.shutdown().await;
    let tally = Rc::into_inner(tally).context("a worker is left")?;
    let mut tally = tally.into_inner();
    tally.errors += expected - tally.errors - tally.latencies.len() as u64;
    Ok(tally)
}

/// Makes requests due at the rate, and returns how many there were.
async fn make_due(
    sender: UnboundedSender<Instant>,
    start: Instant,
    per_second: f64,
    seconds: u32,
    interrupted: &Interrupted,
) -> anyhow::Result<u64> {
    let timer = Timer::new()?;
    let time = Duration::from_secs(seconds.into());
    let mut count = 0;
    for (at, number) in Poisson::new(SEED, per_second).take_while(|at| *at < time).zip(0..) {
        if number % CHECK_EVERY == 0 {
            interrupted.check()?;
        }
        timer.until(start + at).await?;
        ensure!(sender.send(start + at).is_ok(), "no connection is left");
        count += 1;
    }
    Ok(count)
}

/// Sends what is due in turn with the others.
async fn work(
    mut client: Client,
    receiver: Rc<Mutex<UnboundedReceiver<Instant>>>,
    tally: Rc<RefCell<Tally>>,
) {
    loop {
        let next = receiver.lock().await.recv().await;
        let Some(due) = next else { return };
        let answered = client.ask().await;
        let mut tally = tally.borrow_mut();
        match answered {
            Ok(()) => {
                let at = due - tally.start;
                tally.latencies.add(at, due.elapsed());
            }
            Err(error) => {
                tally.errors += 1;
                tally.failure.get_or_insert_with(|| format!("{error:#}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;
    use crate::proxy::workload::SMALL;

    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    const FAILED: &[u8] = b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\nno";

    /// Starts a server that answers one request after another; with `is_failing`, every tenth on a
    /// connection fails.
    fn server(pause: Duration, is_failing: bool) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let serve = move |mut stream: std::net::TcpStream| {
            let mut bytes = [0; 1024];
            for number in 1_u32.. {
                match stream.read(&mut bytes) {
                    Ok(count) if count > 0 => {}
                    _ => return,
                }
                std::thread::sleep(pause);
                let fails = is_failing && number.is_multiple_of(10);
                if stream.write_all(if fails { FAILED } else { ANSWER }).is_err() {
                    return;
                }
            }
        };
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || serve(stream));
            }
        });
        port
    }

    fn seen(port: u16, per_second: f64) -> Seen {
        let directory = tempfile::tempdir().unwrap();
        let interrupted = Interrupted::default();
        let load = Load {
            wrk: "wrk".into(),
            h2load: "h2load".into(),
            directory: directory.path(),
            certificate: directory.path().join("none.pem"),
            core: None,
            interrupted: &interrupted,
        };
        let workload = Workload { connections: 2, ..SMALL };
        run(&load, &workload, port, per_second, 1).unwrap()
    }

    #[test]
    fn all_that_is_due_is_asked_and_failures_are_counted() {
        let good = seen(server(Duration::ZERO, false), 500.0);
        assert!((400..600).contains(&good.requests) && good.errors == 0, "{good:?}");
        let bad = seen(server(Duration::ZERO, true), 500.0);
        assert!(bad.errors >= 30 && bad.errors + bad.requests == good.requests, "{bad:?}");
    }

    #[test]
    fn what_waits_for_a_connection_waits_from_when_it_was_due() {
        // Two connections of 20 ms can answer 100 in a second; the last ones wait about a second
        // more.
        let late = seen(server(Duration::from_millis(20), false), 200.0);
        assert!(late.p50_ms > 200.0 && late.errors == 0, "{late:?}");
    }
}
