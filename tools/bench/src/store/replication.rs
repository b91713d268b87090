//! The benchmark of how soon a change on one node is visible on the other, under a steady stream of
//! writes: some of them are looked for on the other node until they are there.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::Serialize;
use tokio::task::LocalSet;
use tokio::time::MissedTickBehavior;

use super::client::resp::{Resp, RespValue};
use crate::interrupted::Interrupted;
use crate::statistics::Latencies;

pub const WRITES_PER_SECOND: u64 = 1000;
/// The number of writers; each writes every 50 ms, and has its answer long before.
const WRITERS: u64 = 50;
/// The number of a writer's writes of which one is looked for: 50 a second in all.
const LOOKED_FOR: u64 = 20;
/// The pause between two looks, which is the resolution of the figure.
const LOOK_PAUSE: Duration = Duration::from_millis(1);
/// The time after which a write counts as not visible.
const VISIBLE_TIME_MAX: Duration = Duration::from_secs(10);
const KEYS_PER_WRITER: u64 = 200;
const INTERRUPTED_POLL: Duration = Duration::from_millis(100);

#[derive(Clone, Debug, Serialize)]
pub struct Replicated {
    pub writes: u64,
    pub writes_per_second: f64,
    pub looked_for: u64,
    /// The number of writes that were not there after 10 seconds.
    pub not_visible: u64,
    /// The time from sending the write to seeing it on the other node.
    pub p50_ms: f64,
    pub p99_ms: f64,
}

struct Course {
    from: SocketAddr,
    to: SocketAddr,
    writes: Cell<u64>,
    not_visible: Cell<u64>,
    latencies: RefCell<Latencies>,
    /// The idle connections to the other node.
    idle: RefCell<Vec<Resp>>,
    looking: Cell<u64>,
}

pub fn measure(
    from: SocketAddr,
    to: SocketAddr,
    seconds: u64,
    interrupted: &Interrupted,
) -> anyhow::Result<Replicated> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let course = Rc::new(Course {
        from,
        to,
        writes: Cell::new(0),
        not_visible: Cell::new(0),
        latencies: RefCell::default(),
        idle: RefCell::default(),
        looking: Cell::new(0),
    });
    let started = Instant::now();
    let until = started + Duration::from_secs(seconds);
    let local = LocalSet::new();
    let mut writing = Duration::ZERO;
    runtime.block_on(local.run_until(async {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| tokio::task::spawn_local(write(course.clone(), writer, until)))
            .collect();
        for writer in writers {
            while !writer.is_finished() {
                interrupted.check()?;
                tokio::time::sleep(INTERRUPTED_POLL).await;
            }
            writer.await??;
        }
        writing = started.elapsed();
        // Each look ends by its own deadline.
        while course.looking.get() > 0 {
            interrupted.check()?;
            tokio::time::sleep(INTERRUPTED_POLL).await;
        }
        anyhow::Ok(())
    }))?;
    let latencies = course.latencies.take();
    let looked_for = latencies.len() as u64 + course.not_visible.get();
    let percentiles = latencies.percentiles_ms([0.5, 0.99]);
    let [p50_ms, p99_ms] = percentiles.context("no write was seen on the other node")?;
    Ok(Replicated {
        writes: course.writes.get(),
        writes_per_second: course.writes.get() as f64 / writing.as_secs_f64(),
        looked_for,
        not_visible: course.not_visible.get(),
        p50_ms,
        p99_ms,
    })
}

async fn write(course: Rc<Course>, writer: u64, until: Instant) -> anyhow::Result<()> {
    let period = Duration::from_millis(1000 * WRITERS / WRITES_PER_SECOND);
    // The writers are spread over the period.
    let first = tokio::time::Instant::now() + period * writer as u32 / WRITERS as u32;
    let mut ticks = tokio::time::interval_at(first, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut connection = Resp::new(course.from)?;
    let mut number = 0;
    while Instant::now() < until {
        ticks.tick().await;
        let key = format!("replicated::{writer}::{}", number % KEYS_PER_WRITER);
        let value = number.to_string();
        let sent = Instant::now();
        // The writers take turns.
        if (number + writer).is_multiple_of(LOOKED_FOR) {
            let (course, key, value) = (course.clone(), key.clone(), value.clone());
            course.looking.set(course.looking.get() + 1);
            tokio::task::spawn_local(async move {
                let seen = look(&course, &key, &value, sent).await;
                if !seen.unwrap_or(false) {
                    course.not_visible.set(course.not_visible.get() + 1);
                }
                course.looking.set(course.looking.get() - 1);
            });
        }
        connection.tell(&[b"SET", key.as_bytes(), value.as_bytes()]).await?;
        let answer = connection.answer().await?;
        ensure!(answer == RespValue::Simple("OK".into()), "a write was answered with {answer:?}");
        course.writes.set(course.writes.get() + 1);
        number += 1;
    }
    Ok(())
}

async fn look(course: &Course, key: &str, value: &str, sent: Instant) -> anyhow::Result<bool> {
    let idle = course.idle.borrow_mut().pop();
    let mut connection = idle.map_or_else(|| Resp::new(course.to), Ok)?;
    while sent.elapsed() < VISIBLE_TIME_MAX {
        connection.tell(&[b"GET", key.as_bytes()]).await?;
        if connection.answer().await? == RespValue::Bulk(value.as_bytes().into()) {
            course.latencies.borrow_mut().add(sent.elapsed());
            course.idle.borrow_mut().push(connection);
            return Ok(true);
        }
        tokio::time::sleep(LOOK_PAUSE).await;
    }
    Ok(false)
}
