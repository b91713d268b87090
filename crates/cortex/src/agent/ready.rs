//! Waits until a process that was just started can take requests, and says in words what is
//! missing meanwhile. Knows processes, ports and HTTP, not claims or rollouts; driven by an
//! application's actor, which keeps the time limit and drops the wait when it has passed.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use model::application::Health;
use model::instance::ProcessIdentity;

use crate::observe::process::is_alive;
use crate::observe::{Listeners, Snapshot};
use crate::probe;

/// Between two looks: a fast application is in service at once, a slow one costs little.
const LOOK_FIRST: Duration = Duration::from_millis(20);
const LOOK_LATER: Duration = Duration::from_millis(100);
const LOOK_LATER_AFTER: Duration = Duration::from_secs(2);
/// Where else it may be listening takes a look at every process; not each time.
const LOOK_ELSEWHERE: Duration = Duration::from_millis(500);
/// A process without a port that lives this long has understood its arguments at least.
const ALIVE: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// `warning` names addresses that others can reach, past the router.
    Healthy { warning: Option<String> },
    /// It ended; its shim says how.
    Gone,
}

/// `host` is what a health check over HTTP names. `report` gets each new reason for not being
/// healthy yet.
pub async fn await_healthy(
    process: &ProcessIdentity,
    port: Option<u16>,
    health: &Health,
    host: &str,
    mut report: impl FnMut(String) + Send,
) -> io::Result<Readiness> {
    let started = Instant::now();
    let mut looked_elsewhere = started;
    let mut last = String::new();
    loop {
        if !is_alive(process) {
            return Ok(Readiness::Gone);
        }
        let checked = match port {
            None if started.elapsed() >= ALIVE => Ok(None),
            None => Err("running for less than a second".to_owned()),
            Some(port) => {
                let elsewhere = looked_elsewhere.elapsed() >= LOOK_ELSEWHERE;
                if elsewhere {
                    looked_elsewhere = Instant::now();
                }
                match check(process.pid, port, elsewhere, health, host).await? {
                    Some(checked) => checked,
                    // Nothing is known beyond what was.
                    None => Err(last.clone()),
                }
            }
        };
        match checked {
            Ok(warning) => return Ok(Readiness::Healthy { warning }),
            Err(detail) if detail != last => {
                report(detail.clone());
                last = detail;
            }
            Err(_) => {}
        }
        let late = started.elapsed() >= LOOK_LATER_AFTER;
        tokio::time::sleep(if late { LOOK_LATER } else { LOOK_FIRST }).await;
    }
}

/// Healthy with a warning, or what is missing.
type Checked = Result<Option<String>, String>;

async fn check(
    pid: u32,
    port: u16,
    elsewhere: bool,
    health: &Health,
    host: &str,
) -> io::Result<Option<Checked>> {
    let look = move || look(pid, port, elsewhere);
    let bound = match crate::task::spawn_blocking(look).await?? {
        Some(bound) => bound,
        None => return Ok(None),
    };
    let warning = match bound {
        Bound::Right { warning } => warning,
        Bound::Wrong { detail } => return Ok(Some(Err(detail))),
    };
    let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
    let timeout = Duration::from_millis(health.timeout_ms);
    let refused = match &health.path {
        Some(path) => match probe::http_get(address, host, path, timeout).await {
            Ok(200..=399) => None,
            Ok(status) => Some(format!("GET {path} answers {status}")),
            Err(error) => Some(format!("GET {path}: {error}")),
        },
        // A socket of IPv6 alone looks the same in the table; and who knows the firewall.
        None if warning.is_some() => probe::tcp(address, timeout)
            .await
            .err()
            .map(|error| format!("{address}: {error}; bind $HOST, which is 127.0.0.1")),
        None => None,
    };
    Ok(Some(refused.map_or(Ok(warning), Err)))
}

/// None when nothing listens on the port and nothing else was looked for. Blocking.
fn look(pid: u32, port: u16, elsewhere: bool) -> io::Result<Option<Bound>> {
    let listeners = Listeners::take()?;
    let taken = listeners.any_on(port);
    if !taken && !elsewhere {
        return Ok(None);
    }
    let addresses = listeners.of(&Snapshot::take()?, pid);
    Ok(Some(judge(port, taken, &addresses)))
}

#[derive(Debug, PartialEq, Eq)]
enum Bound {
    Right { warning: Option<String> },
    Wrong { detail: String },
}

fn judge(port: u16, taken: bool, addresses: &BTreeSet<SocketAddr>) -> Bound {
    let reachable = |ip: IpAddr| ip == Ipv4Addr::LOCALHOST || ip.is_unspecified();
    let exposed: Vec<SocketAddr> =
        addresses.iter().filter(|address| !address.ip().is_loopback()).copied().collect();
    if addresses.iter().any(|address| address.port() == port && reachable(address.ip())) {
        let warning = (!exposed.is_empty()).then(|| {
            format!(
                "listens on {}, which others can reach past the router; bind $HOST, which is \
                 127.0.0.1",
                join(&exposed)
            )
        });
        return Bound::Right { warning };
    }
    let all: Vec<SocketAddr> = addresses.iter().copied().collect();
    let detail = if all.iter().any(|address| address.port() == port) {
        format!("listens on {}, but HOST is 127.0.0.1", join(&all))
    } else if taken {
        format!("port {port} is taken by a process that is not the application's")
    } else if all.is_empty() {
        format!("nothing listens on port {port}")
    } else {
        format!("listens on {}, but PORT is {port}", join(&all))
    };
    Bound::Wrong { detail }
}

/// More than a person reads is cut off.
fn join(addresses: &[SocketAddr]) -> String {
    const SHOWN_MAX: usize = 5;
    let mut text = String::new();
    for address in addresses.iter().take(SHOWN_MAX) {
        if !text.is_empty() {
            text.push_str(", ");
        }
        text.push_str(&address.to_string());
    }
    if addresses.len() > SHOWN_MAX {
        text.push_str(", ...");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::process::identity;
    use std::net::TcpListener;
    use std::process::{Child, Command, Stdio};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn check_judge(addresses: &[&str], taken: bool) -> Bound {
        judge(20001, taken, &addresses.iter().map(|address| address.parse().unwrap()).collect())
    }

    fn wrong(detail: &str) -> Bound {
        Bound::Wrong { detail: detail.into() }
    }

    #[test]
    fn addresses_are_judged() {
        let right = Bound::Right { warning: None };
        assert_eq!(check_judge(&["127.0.0.1:20001"], true), right);
        assert_eq!(check_judge(&["127.0.0.1:20001", "[::1]:9"], true), right);
        for address in ["0.0.0.0:20001", "[::]:20001"] {
            let Bound::Right { warning: Some(warning) } = check_judge(&[address], true) else {
                panic!("{address}");
            };
            assert!(warning.starts_with(&format!("listens on {address}, which")), "{warning}");
        }
        let other = check_judge(&["127.0.0.1:3000"], false);
        assert_eq!(other, wrong("listens on 127.0.0.1:3000, but PORT is 20001"));
        let six = check_judge(&["[::1]:20001"], true);
        assert_eq!(six, wrong("listens on [::1]:20001, but HOST is 127.0.0.1"));
        assert_eq!(check_judge(&[], false), wrong("nothing listens on port 20001"));
        let taken = "port 20001 is taken by a process that is not the application's";
        assert_eq!(check_judge(&[], true), wrong(taken));
    }

    /// A child that does nothing; killed and reaped in the end.
    struct Idle(Child);

    impl Idle {
        fn start() -> Idle {
            Idle(Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap())
        }
    }

    impl Drop for Idle {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn free_port() -> u16 {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    }

    #[tokio::test]
    async fn a_process_that_ends_is_gone() {
        let mut idle = Idle::start();
        let process = identity(idle.0.id()).unwrap();
        let port = free_port();
        let health = Health::default();
        let mut killer = Some(&mut idle);
        // Killed when it is first complained about.
        let readiness = await_healthy(&process, Some(port), &health, "x", |detail| {
            assert_eq!(detail, format!("nothing listens on port {port}"));
            killer.take().unwrap().0.kill().unwrap();
        });
        assert_eq!(readiness.await.unwrap(), Readiness::Gone);
    }

    #[tokio::test]
    async fn a_process_without_a_port_is_healthy_if_it_lives() {
        let idle = Idle::start();
        let process = identity(idle.0.id()).unwrap();
        let readiness = await_healthy(&process, None, &Health::default(), "x", |_| {}).await;
        assert_eq!(readiness.unwrap(), Readiness::Healthy { warning: None });
    }

    #[tokio::test]
    async fn a_port_of_another_process_does_not_count() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut idle = Idle::start();
        let process = identity(idle.0.id()).unwrap();
        let mut details = Vec::new();
        let health = Health::default();
        let readiness = await_healthy(&process, Some(port), &health, "x", |detail| {
            details.push(detail);
            idle.0.kill().unwrap();
        });
        assert_eq!(readiness.await.unwrap(), Readiness::Gone);
        let taken = format!("port {port} is taken by a process that is not the application's");
        assert_eq!(details, [taken]);
    }

    #[tokio::test]
    async fn the_path_decides_once_the_port_is_bound() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        crate::task::spawn(async move {
            // Warming up for two requests.
            for status in ["503 Busy", "503 Busy", "302 Found"] {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 1024];
                let length = stream.read(&mut request).await.unwrap();
                assert!(request[..length].starts_with(b"GET /up HTTP/1.1\r\n"));
                let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        let own = identity(std::process::id()).unwrap();
        let health = Health { path: Some("/up".into()), ..Health::default() };
        let mut details = Vec::new();
        let readiness = await_healthy(&own, Some(port), &health, "shop.localhost", |detail| {
            details.push(detail);
        });
        // Other tests of this process may listen elsewhere: the warning is theirs.
        assert!(matches!(readiness.await.unwrap(), Readiness::Healthy { .. }));
        assert_eq!(details, ["GET /up answers 503"]);
    }
}
