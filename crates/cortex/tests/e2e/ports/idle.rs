//! Connections on which nothing is said.

use std::io::{ErrorKind, Read};
use std::time::{Duration, Instant};

use super::world::{Talk, Two};
use crate::machine::free_port;
use crate::wait::{STATE_DEADLINE, wait_for};

const IDLE: Duration = Duration::from_secs(2);
/// The number of silences, one after the other: a connection that was silent all the while has been
/// so for longer than any of them.
const SILENCES: usize = 2;
/// The number of attempts; on a machine that stands still for as long as `IDLE` nobody speaks.
const ATTEMPTS_MAX: usize = 5;

/// Returns whether the connection has been ended, with a reset, as neither side has said its last.
fn is_cut(silent: &mut Talk) -> Result<(), String> {
    silent.0.get_ref().set_read_timeout(Some(Duration::from_millis(20))).expect("a time limit");
    match silent.0.read(&mut [0]) {
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(()),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Err("it is there".into()),
        other => panic!("silence ended with {other:?}"),
    }
}

/// Asserts that two connections go on for as long as silent ones beside them take to end: what the
/// client says keeps the one, and what the instance says the other. `pause` becomes the longest
/// pause between looks.
fn talk_one_way(ip: &str, port: u16, pause: &mut Duration) -> Result<(), String> {
    let (mut asking, mut hearing) = (Talk::open(ip, port)?, Talk::open(ip, port)?);
    hearing.write("tell")?;
    for _ in 0..SILENCES {
        let mut silent = Talk::open(ip, port)?;
        silent.say("hello")?;
        let (mut last, mut broken) = (Instant::now(), None);
        wait_for("a silent connection to end", STATE_DEADLINE, || {
            let spoken = asking.write("quiet").and_then(|()| hearing.hear());
            *pause = (*pause).max(last.elapsed());
            last = Instant::now();
            match spoken {
                Ok(_) => is_cut(&mut silent),
                Err(error) => {
                    broken = Some(error);
                    Ok(())
                }
            }
        });
        if let Some(error) = broken {
            return Err(error);
        }
    }
    // What has been told meanwhile comes first.
    asking.say("hello")?;
    hearing.write("enough")?;
    while hearing.hear()? != "enough" {}
    asking.finish()?;
    hearing.finish()
}

#[test]
fn silence_ends_a_connection_and_traffic_in_one_direction_keeps_it() {
    let ips = ["127.0.0.85", "127.0.0.86"];
    let port = free_port();
    let _nodes = Two::start_plain(ips, port, &format!("idle = '{}s'\n", IDLE.as_secs()));
    for ip in ips {
        for attempt in 1.. {
            let mut pause = Duration::ZERO;
            match talk_one_way(ip, port, &mut pause) {
                Ok(()) => break,
                Err(error) => {
                    let was_slow = pause > IDLE / 2 && attempt < ATTEMPTS_MAX;
                    assert!(was_slow, "{ip}: {error}, with pauses up to {pause:?}");
                }
            }
        }
    }
}
