//! Serial servers: each takes one connection at a time and answers one request on it, after
//! sleeping or working for as long as the path says. They are threads of this process, on ports of
//! their own.

use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::poisson::chance;

/// The time limit for a request to come in full, as it must not hold an instance for ever.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(10);
/// The longest time that a request may ask for.
const TASK_TIME_MAX: Duration = Duration::from_secs(60);
/// The largest deviation in percent: no request takes less than no time.
const PERCENT_MAX: u64 = 100;
/// The length of the calibration, long enough that the clock's own cost does not count.
const CALIBRATION: Duration = Duration::from_millis(50);

pub struct Instances {
    pub ports: Vec<u16>,
    stopped: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// Returns the path `/sleep/MICROSECONDS`, on which an instance waits as for a database.
pub fn sleeping(time: Duration) -> String {
    format!("/sleep/{}", time.as_micros())
}

/// Returns the path `/sleep/MICROSECONDS/PERCENT`, which takes up to so much longer or shorter, as
/// no server takes exactly the same time twice: requests that begin together soon end apart.
pub fn sleeping_about(time: Duration, percent: u64) -> String {
    format!("{}/{percent}", sleeping(time))
}

/// Returns the path `/compute/STEPS`, on which an instance computes.
pub fn working(steps: u64) -> String {
    format!("/compute/{steps}")
}

/// Returns how many steps keep a processor busy for `time` when nobody else wants it.
pub fn steps_in(time: Duration) -> u64 {
    let (start, mut steps) = (Instant::now(), 0_u64);
    while start.elapsed() < CALIBRATION {
        steps += 1000;
        work(1000);
    }
    let share = time.as_secs_f64() / start.elapsed().as_secs_f64();
    (steps as f64 * share) as u64
}

impl Instances {
    pub fn start(count: usize) -> anyhow::Result<Instances> {
        let stopped = Arc::new(AtomicBool::new(false));
        let mut started =
            Instances { ports: Vec::new(), stopped: stopped.clone(), threads: Vec::new() };
        for index in 0..count {
            let listener = TcpListener::bind(("127.0.0.1", 0)).context("a port for an instance")?;
            started.ports.push(listener.local_addr()?.port());
            let stopped = stopped.clone();
            let builder = std::thread::Builder::new().name(format!("instance-{index}"));
            started.threads.push(builder.spawn(move || serve(index, &listener, &stopped))?);
        }
        Ok(started)
    }
}

impl Drop for Instances {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        for port in &self.ports {
            // The connection wakes a server that waits for one; it closes those that are queued at
            // once.
            TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], *port))).ok();
        }
        for thread in self.threads.drain(..) {
            thread.join().ok();
        }
    }
}

fn serve(index: usize, listener: &TcpListener, stopped: &AtomicBool) {
    for number in 0.. {
        if stopped.load(Ordering::Relaxed) {
            return;
        }
        if let Ok((stream, _)) = listener.accept() {
            // A client that leaves is no concern of a measurement's server.
            answer(stream, chance(index as u64, number), stopped).ok();
        }
    }
}

/// Answers one request; `chance` from 0 to 1 decides the deviation of one that varies.
fn answer(stream: TcpStream, chance: f64, stopped: &AtomicBool) -> std::io::Result<()> {
    stream.set_read_timeout(Some(REQUEST_TIME_MAX))?;
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    let (mut first, mut line) = (String::new(), String::new());
    reader.read_line(&mut first)?;
    while reader.read_line(&mut line)? > 2 {
        line.clear();
    }
    if stopped.load(Ordering::Relaxed) {
        return Ok(());
    }
    let mut path = first.split(' ').nth(1).unwrap_or_default().split('/').skip(1);
    let task = path.next();
    let mut number = || path.next().and_then(|text| text.parse::<u64>().ok());
    match (task, number()) {
        (Some("sleep"), Some(micros)) => {
            let spread = number().unwrap_or(0).min(PERCENT_MAX) as f64 / PERCENT_MAX as f64;
            let time = Duration::from_micros(micros).min(TASK_TIME_MAX);
            std::thread::sleep(time.mul_f64(1.0 + spread * (2.0 * chance - 1.0)));
        }
        (Some("compute"), Some(steps)) => work(steps),
        _ => {}
    }
    let text = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\ndone\n";
    reader.get_mut().write_all(text.as_bytes())
}

pub fn work(steps: u64) {
    black_box((0..steps).fold(1, model::hash::pair));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_answers_what_it_is_asked_and_ends_with_its_owner() {
        let instances = Instances::start(2).unwrap();
        for port in &instances.ports {
            let short = Duration::from_micros(10);
            for path in [sleeping(short), sleeping_about(short, 999), working(10), "/".into()] {
                let mut stream = TcpStream::connect(("127.0.0.1", *port)).unwrap();
                let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
                stream.write_all(request.as_bytes()).unwrap();
                let answer = std::io::read_to_string(stream).unwrap();
                assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
            }
        }
        let port = instances.ports[0];
        drop(instances);
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
        assert!(steps_in(Duration::from_millis(1)) > 0);
    }
}
