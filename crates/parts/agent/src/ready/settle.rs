//! The wait after an HTTP process has bound its port: until it answers, or has at least lived and
//! held its port for a while, with its workers. Driven by the wait for it to be healthy.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use model::application::InstanceProtocol;
use model::instance::ProcessIdentity;
use model::port::Transport;

use super::workers::{WorkerDeaths, WorkerId};
use super::{Missing, ReadyCriteria};
use os::observe::process::is_alive;
use os::observe::{Listeners, Snapshot};
use runtime::probe::{self, ProbeError};

/// The interval between two looks at its tree, which has no other sign of life for us meanwhile.
const LOOK: Duration = Duration::from_millis(100);
/// The pause after an answer that does not count: something may still be loading.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// The path that is requested where no other one is configured.
const PATH: &str = "/";

pub enum Settled {
    Ready {
        remark: Option<String>,
    },
    /// Its workers end one after the other.
    Dying(String),
    /// It ended, or does not hold its port any more.
    Lost,
}

/// An answer that counts, or the reason why there was none.
enum SettlingAnswer {
    Counts { remark: Option<String> },
    Not(String),
}

/// Asks once, and again only after an answer that does not count, so that a serial server never has
/// two of our requests. No answer is waited for longer than the process has to settle.
pub async fn settle(
    process: &ProcessIdentity,
    awaited: &ReadyCriteria,
    host: &str,
    workers: &mut WorkerDeaths,
    tell: &mut (impl FnMut(Missing) + Send),
) -> io::Result<Settled> {
    let Some(port) = awaited.port else { return Ok(Settled::Ready { remark: None }) };
    let (began, time) = (Instant::now(), Duration::from_millis(awaited.health.settle_ms));
    let left = || time.saturating_sub(began.elapsed());
    let ask = |pause: Duration| async move {
        tokio::time::sleep(pause).await;
        answer(port, awaited, host, left().max(LOOK)).await
    };
    let mut asking = Box::pin(ask(Duration::ZERO));
    let mut why = unanswered();
    loop {
        tokio::select! {
            answer = &mut asking => match answer {
                SettlingAnswer::Counts { remark } => return Ok(Settled::Ready { remark }),
                SettlingAnswer::Not(said) => {
                    why = said;
                    tell(why.clone().into());
                    asking.set(ask(ASK_AGAIN));
                }
            },
            () = tokio::time::sleep(LOOK) => {
                let pid = process.pid;
                let seen = runtime::task::spawn_blocking(move || look(pid, port)).await??;
                workers.see(&seen.workers);
                let holds = seen.bound && is_alive(process);
                let over = left().is_zero() || !holds;
                if over && workers.end_in_a_row() {
                    return Ok(Settled::Dying(dying(workers, began)));
                }
                if !holds {
                    return Ok(Settled::Lost);
                }
                tell(why.clone().into());
                if over {
                    let seconds = time.as_secs_f64();
                    let remark = format!(
                        "{why}; as it lived and held its port for {seconds} s, it counts as ready"
                    );
                    return Ok(Settled::Ready { remark: Some(remark) });
                }
            }
        }
    }
}

fn unanswered() -> String {
    format!("GET {PATH} is not answered")
}

fn dying(workers: &WorkerDeaths, began: Instant) -> String {
    let seconds = began.elapsed().as_secs() + 1;
    let deaths = workers.deaths();
    format!(
        "binds its port, but its worker processes end one after the other ({deaths} within {seconds} s)"
    )
}

async fn answer(
    port: u16,
    awaited: &ReadyCriteria,
    host: &str,
    timeout: Duration,
) -> SettlingAnswer {
    let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
    if awaited.protocol == InstanceProtocol::H2c {
        return match probe::h2(address, timeout).await {
            Ok(()) => SettlingAnswer::Counts { remark: None },
            Err(error) => SettlingAnswer::Not(format!("HTTP/2: {error}")),
        };
    }
    match probe::http_get(address, host, PATH, &awaited.health.headers, timeout).await {
        Ok(..400) => SettlingAnswer::Counts { remark: None },
        Ok(status @ 400..500) => {
            SettlingAnswer::Counts { remark: Some(format!("GET {PATH} answers {status}")) }
        }
        Ok(status) => SettlingAnswer::Not(format!("GET {PATH} answers {status}")),
        Err(ProbeError::TimedOut(_)) => SettlingAnswer::Not(unanswered()),
        Err(error) => SettlingAnswer::Not(format!("GET {PATH}: {error}")),
    }
}

struct Seen {
    bound: bool,
    workers: Vec<WorkerId>,
}

/// Looks at a tree. Blocking. Workers are those processes of it that run what their parent runs, as
/// after a fork, or that hold the port; a command that a server runs does neither.
fn look(pid: u32, port: u16) -> io::Result<Seen> {
    let (listeners, snapshot) = (Listeners::take(Transport::Tcp)?, Snapshot::take()?);
    let program = |pid: u32| std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    let (mut bound, mut workers) = (false, Vec::new());
    for one in snapshot.tree(pid) {
        let Some(stat) = snapshot.stat(one) else { continue };
        let holds = listeners.of_process(one).iter().any(|address| address.port() == port);
        bound |= holds;
        let own = || program(one).is_some_and(|own| program(stat.parent) == Some(own));
        if one != pid && (holds || own()) {
            workers.push((one, stat.start_ticks));
        }
    }
    Ok(Seen { bound, workers })
}
