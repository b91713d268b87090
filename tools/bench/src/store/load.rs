//! The thesis's load: n turns, dealt out to k workers, each action repeated until it succeeds. One
//! thread drives all workers of a server, which leaves it as much of the two cores as possible.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use tokio::task::LocalSet;

use super::client::resp::Resp;
use super::client::{Action, Connection, TURN, sqlite};
use super::{Load, Mode};
use crate::statistics::Latencies;

/// The number of connections where workers share them: with one for each, etcd took half as much
/// processor time again for an operation.
const SHARED_CONNECTIONS: usize = 10;
const SHARED_POLL: Duration = Duration::from_millis(1);
/// The time limit for a run; one that takes longer has met a server that does not answer.
const RUN_TIME_MAX: Duration = Duration::from_secs(900);
/// The pause before an action is repeated, doubled each time: without it, workers that are refused
/// would take the processor from those that are served.
const REPEAT_PAUSE: Duration = Duration::from_millis(10);
const REPEAT_PAUSE_MAX: Duration = Duration::from_millis(640);
/// How long lookups may miss a write that nobody waited for, before it is sent again.
const LOST_AFTER: Duration = Duration::from_secs(1);
const INTERRUPTED_POLL: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
pub struct Seen {
    pub seconds: f64,
    pub operations: u64,
    pub repeated: u64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    /// The reason why one of them had to be repeated.
    pub failure: Option<String>,
}

/// The state that all workers of a run share.
struct Course {
    load: Load,
    started: Instant,
    next: Cell<u64>,
    repeated: Cell<u64>,
    failure: RefCell<Option<String>>,
    latencies: RefCell<Latencies>,
}

impl Course {
    fn new(load: Load) -> Course {
        Course {
            load,
            started: Instant::now(),
            next: Cell::new(0),
            repeated: Cell::new(0),
            failure: RefCell::default(),
            latencies: RefCell::new(Latencies::with_capacity(load.turns as usize * TURN.len())),
        }
    }

    fn turn(&self) -> Option<u64> {
        let turn = self.next.get();
        self.next.set(turn + 1);
        (turn < self.load.turns).then_some(turn)
    }

    async fn repeat(&self, error: &anyhow::Error, pause: &mut Pause) -> anyhow::Result<()> {
        self.repeated.set(self.repeated.get() + 1);
        self.failure.borrow_mut().get_or_insert_with(|| format!("{error:#}"));
        if self.started.elapsed() > RUN_TIME_MAX {
            bail!("not done after {RUN_TIME_MAX:?}; the last failure: {error:#}");
        }
        tokio::time::sleep(pause.next()).await;
        Ok(())
    }

    fn done(&self, since: Instant) {
        self.latencies.borrow_mut().add(since.elapsed());
    }
}

struct Pause(Duration);

impl Pause {
    fn new() -> Pause {
        Pause(REPEAT_PAUSE)
    }

    fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(REPEAT_PAUSE_MAX);
        pause
    }
}

/// Runs the load against a server that speaks `C`.
pub fn run<C: Connection>(
    address: SocketAddr,
    load: Load,
    sound: &dyn Fn() -> anyhow::Result<()>,
) -> anyhow::Result<Seen> {
    let pool = Rc::new(Pool::<C>::default());
    drive(load, sound, async move |course| match load.mode {
        Mode::NewConnection => new_connections::<C>(address, course).await,
        Mode::Persistent => kept_connection::<C>(address, course, &pool).await,
        Mode::Unawaited => bail!("only the Redis protocol is sent without waiting"),
    })
}

/// Runs the load with writes that are sent and not waited for, as the thesis's clients did.
pub fn run_unawaited(
    address: SocketAddr,
    load: Load,
    sound: &dyn Fn() -> anyhow::Result<()>,
) -> anyhow::Result<Seen> {
    drive(load, sound, async move |course| unawaited(address, course).await)
}

/// Drives the workers until they are done, or there is no use in going on.
fn drive<F>(load: Load, sound: &dyn Fn() -> anyhow::Result<()>, work: F) -> anyhow::Result<Seen>
where
    F: AsyncFn(&Course) -> anyhow::Result<()> + Clone + 'static,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = LocalSet::new();
    let course = Rc::new(Course::new(load));
    let workers: Vec<_> = (0..load.workers)
        .map(|_| {
            let (course, work) = (course.clone(), work.clone());
            local.spawn_local(async move { work(&course).await })
        })
        .collect();
    let all = async {
        for worker in workers {
            worker.await??;
        }
        anyhow::Ok(())
    };
    let told = async {
        while course.started.elapsed() < RUN_TIME_MAX {
            sound()?;
            tokio::time::sleep(INTERRUPTED_POLL).await;
        }
        bail!("the server did not answer for {RUN_TIME_MAX:?}")
    };
    runtime.block_on(local.run_until(async {
        tokio::select! {
            ended = all => ended,
            ended = told => ended,
        }
    }))?;
    let seconds = course.started.elapsed().as_secs_f64();
    drop(local);
    drop(runtime);
    let course = Rc::into_inner(course).context("a worker is left")?;
    let seen = Seen::new(seconds, course.latencies.into_inner(), course.repeated.get())?;
    Ok(Seen { failure: course.failure.into_inner(), ..seen })
}

impl Seen {
    fn new(seconds: f64, latencies: Latencies, repeated: u64) -> anyhow::Result<Seen> {
        let operations = latencies.len() as u64;
        let percentiles = latencies.percentiles_ms([0.5, 0.99]);
        let [p50_ms, p99_ms] = percentiles.context("a run without operations")?;
        Ok(Seen { seconds, operations, repeated, p50_ms, p99_ms, failure: None })
    }
}

async fn new_connections<C: Connection>(
    address: SocketAddr,
    course: &Course,
) -> anyhow::Result<()> {
    while let Some(turn) = course.turn() {
        for action in TURN {
            let (since, mut pause) = (Instant::now(), Pause::new());
            while let Err(error) = once::<C>(address, action, turn).await {
                course.repeat(&error, &mut pause).await?;
            }
            course.done(since);
        }
    }
    Ok(())
}

async fn once<C: Connection>(address: SocketAddr, action: Action, turn: u64) -> anyhow::Result<()> {
    let mut connection = C::open(address, false).await?;
    connection.perform(action, turn).await?;
    connection.close().await;
    Ok(())
}

/// The connections that workers share; empty if the protocol cannot share them.
struct Pool<C> {
    open: RefCell<Vec<C>>,
    next: Cell<usize>,
}

impl<C> Default for Pool<C> {
    fn default() -> Pool<C> {
        Pool { open: RefCell::default(), next: Cell::new(0) }
    }
}

impl<C: Connection> Pool<C> {
    /// Returns a shared connection; `None` for the first workers, which open one, and if nothing is
    /// shared.
    async fn connection(&self) -> Option<C> {
        let number = self.next.replace(self.next.get() + 1);
        if !C::SHARES || number < SHARED_CONNECTIONS {
            return None;
        }
        while self.open.borrow().is_empty() {
            tokio::time::sleep(SHARED_POLL).await;
        }
        let open = self.open.borrow();
        open[number % open.len()].shared()
    }

    fn add(&self, opened: &C) {
        let mut open = self.open.borrow_mut();
        if open.len() < SHARED_CONNECTIONS {
            open.extend(opened.shared());
        }
    }
}

async fn kept_connection<C: Connection>(
    address: SocketAddr,
    course: &Course,
    pool: &Pool<C>,
) -> anyhow::Result<()> {
    let mut kept = pool.connection().await;
    while let Some(turn) = course.turn() {
        for action in TURN {
            let (since, mut pause) = (Instant::now(), Pause::new());
            loop {
                let error = match &mut kept {
                    None => match C::open(address, true).await {
                        Ok(opened) => {
                            pool.add(&opened);
                            kept = Some(opened);
                            continue;
                        }
                        Err(error) => error,
                    },
                    Some(connection) => match connection.perform(action, turn).await {
                        Ok(()) => break,
                        Err(error) => error,
                    },
                };
                kept = None;
                course.repeat(&error, &mut pause).await?;
            }
            course.done(since);
        }
    }
    if let Some(connection) = kept {
        connection.close().await;
    }
    Ok(())
}

async fn unawaited(address: SocketAddr, course: &Course) -> anyhow::Result<()> {
    while let Some(turn) = course.turn() {
        for action in TURN {
            let (since, mut pause) = (Instant::now(), Pause::new());
            let mut told = Instant::now();
            loop {
                let ended = match action {
                    Action::Lookup => once::<Resp>(address, action, turn).await,
                    Action::Set | Action::Delete => tell(address, action, turn).await,
                };
                let Err(error) = ended else { break };
                course.repeat(&error, &mut pause).await?;
                if action == Action::Lookup && told.elapsed() > LOST_AFTER {
                    told = Instant::now();
                    // The next lookup shows whether it arrived.
                    tell(address, Action::Set, turn).await.ok();
                }
            }
            course.done(since);
        }
    }
    Ok(())
}

async fn tell(address: SocketAddr, action: Action, turn: u64) -> anyhow::Result<()> {
    Resp::new(address)?.tell_action(action, turn).await
}

/// Runs the load with a thread for each worker, as SQLite's calls block.
pub fn run_sqlite(
    file: &Path,
    load: Load,
    sound: &(dyn Fn() -> anyhow::Result<()> + Sync),
) -> anyhow::Result<Seen> {
    ensure!(load.mode != Mode::Unawaited, "SQLite's writes are always waited for");
    let next = AtomicU64::new(0);
    let started = Instant::now();
    let worker = || -> anyhow::Result<(Latencies, u64, Option<String>)> {
        let (mut latencies, mut repeated, mut failure) = (Latencies::default(), 0, None);
        let mut kept = None;
        loop {
            let turn = next.fetch_add(1, Ordering::Relaxed);
            if turn >= load.turns {
                return Ok((latencies, repeated, failure));
            }
            sound()?;
            for action in TURN {
                let (since, mut pause) = (Instant::now(), Pause::new());
                loop {
                    let connection = kept.take().map_or_else(|| sqlite::open(file), Ok);
                    let ended = connection.and_then(|connection| {
                        sqlite::perform(&connection, action, turn)?;
                        Ok(connection)
                    });
                    match ended {
                        Ok(connection) => {
                            kept = (load.mode == Mode::Persistent).then_some(connection);
                            break;
                        }
                        Err(error) => {
                            ensure!(started.elapsed() < RUN_TIME_MAX, "SQLite: {error:#}");
                            repeated += 1;
                            failure.get_or_insert(format!("{error:#}"));
                            std::thread::sleep(pause.next());
                        }
                    }
                }
                latencies.add(since.elapsed());
            }
        }
    };
    let (mut latencies, mut repeated, mut failure) = (Latencies::default(), 0, None);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..load.workers).map(|_| scope.spawn(worker)).collect();
        for thread in threads {
            let ended = thread.join().map_err(|_| anyhow::anyhow!("a worker panicked"))?;
            let (its, again, why) = ended?;
            latencies.append(its);
            repeated += again;
            failure = failure.take().or(why);
        }
        anyhow::Ok(())
    })?;
    let seen = Seen::new(started.elapsed().as_secs_f64(), latencies, repeated)?;
    Ok(Seen { failure, ..seen })
}
