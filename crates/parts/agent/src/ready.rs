//! The wait until a process that was just started can take requests; says in words what is missing
//! meanwhile. Knows processes, ports and HTTP, not claims or rollouts; driven by an application's
//! actor, which keeps the time limit and drops the wait when it has passed.

mod elsewhere;
mod parent;
mod settle;
mod workers;

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use agent_core::application::Mistake;
use model::PortId;
use model::application::{Health, InstanceProtocol};
use model::instance::ProcessIdentity;
use model::port::{InstancePorts, Transport};

use self::elsewhere::Elsewhere;
use self::parent::stays;
use self::settle::{Settled, settle};
use self::workers::WorkerDeaths;
use os::observe::process::is_alive;
use os::observe::{Listeners, Snapshot};
use runtime::probe;

/// The initial polling interval: a fast application is in service at once, a slow one costs little.
const LOOK_FIRST: Duration = Duration::from_millis(20);
const LOOK_LATER: Duration = Duration::from_millis(100);
const LOOK_LATER_AFTER: Duration = Duration::from_secs(2);
/// The interval between looks for other addresses that it listens on; each looks at every process.
const LOOK_ELSEWHERE: Duration = Duration::from_millis(500);
/// The time after which a process without a port counts as healthy: it has understood its arguments
/// at least.
const ALIVE: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It can take requests. `warning` names addresses that others can reach past the router;
    /// `remark` says what is odd about its first answer.
    Healthy { warning: Option<String>, remark: Option<String> },
    /// It ended; its shim says how.
    Gone,
    /// It will not become healthy.
    Hopeless { detail: String, mistake: Mistake },
}

/// The ports, the health check and the protocol that are expected of a process.
#[derive(Clone, Debug, Default)]
pub struct ReadyCriteria {
    /// The port for HTTP.
    pub port: Option<u16>,
    pub ports: InstancePorts,
    pub health: Health,
    pub protocol: InstanceProtocol,
}

/// A port that is to be bound.
#[derive(Clone, Copy, Debug)]
struct WantedPort {
    port: u16,
    /// The public port it is for; `None` for HTTP.
    id: Option<PortId>,
}

impl WantedPort {
    fn transport(self) -> Transport {
        self.id.map_or(Transport::Tcp, |id| id.transport)
    }
}

impl ReadyCriteria {
    fn wanted(&self) -> Vec<WantedPort> {
        let http = self.port.map(|port| WantedPort { port, id: None });
        let others = self.ports.iter().map(|(id, port)| WantedPort { port: *port, id: Some(*id) });
        http.into_iter().chain(others).collect()
    }
}

/// The reason why a process is not healthy, as last seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    pub detail: String,
    pub mistake: Option<Mistake>,
}

impl From<String> for Missing {
    fn from(detail: String) -> Missing {
        Missing { detail, mistake: None }
    }
}

/// Waits until a process is healthy. `host` is what a health check over HTTP names. `report` gets
/// each new reason for not being healthy yet.
pub async fn await_healthy(
    process: &ProcessIdentity,
    awaited: &ReadyCriteria,
    host: &str,
    mut report: impl FnMut(Missing) + Send,
) -> io::Result<Readiness> {
    let (started, wanted) = (Instant::now(), awaited.wanted());
    let mut looked_elsewhere = started;
    let mut last = Missing::default();
    let (mut elsewhere, mut workers) = (Elsewhere::default(), WorkerDeaths::default());
    loop {
        if !is_alive(process) {
            return Ok(Readiness::Gone);
        }
        let checked = match wanted.is_empty() {
            true if started.elapsed() >= ALIVE => Ok(None),
            true => Err(Missing::from("running for less than a second".to_owned())),
            false => {
                let everywhere = looked_elsewhere.elapsed() >= LOOK_ELSEWHERE;
                if everywhere {
                    looked_elsewhere = Instant::now();
                }
                match check(process.pid, &wanted, everywhere, &awaited.health, host).await? {
                    Some(checked) => checked,
                    // Nothing is known beyond what was known before.
                    None => Err(last.clone()),
                }
            }
        };
        let mut tell = |missing: Missing| {
            if missing != last {
                report(missing.clone());
                last = missing;
            }
        };
        let settled = match checked {
            Ok(warning) if awaited.port.is_none() || awaited.health.path.is_some() => {
                Some((warning, None))
            }
            Ok(warning) => match settle(process, awaited, host, &mut workers, &mut tell).await? {
                Settled::Ready { remark } => Some((warning, remark)),
                Settled::Dying(detail) => {
                    return Ok(Readiness::Hopeless { detail, mistake: Mistake::Workers });
                }
                // The next look says which of the two.
                Settled::Lost => None,
            },
            Err(missing) => {
                let tried = missing.mistake;
                tell(missing);
                if let Some(mistake) = tried
                    && elsewhere.lasts(process.pid, &last.detail)
                {
                    return Ok(Readiness::Hopeless { detail: last.detail, mistake });
                }
                None
            }
        };
        if let Some((warning, remark)) = settled
            && stays(process, &wanted).await?
        {
            return Ok(Readiness::Healthy { warning, remark });
        }
        let late = started.elapsed() >= LOOK_LATER_AFTER;
        tokio::time::sleep(if late { LOOK_LATER } else { LOOK_FIRST }).await;
    }
}

/// A warning if the process is healthy, or what is missing.
type Checked = Result<Option<String>, Missing>;

async fn check(
    pid: u32,
    wanted: &[WantedPort],
    elsewhere: bool,
    health: &Health,
    host: &str,
) -> io::Result<Option<Checked>> {
    let all = wanted.to_vec();
    let look = move || look(pid, &all, elsewhere);
    let bound = match runtime::task::spawn_blocking(look).await?? {
        Some(bound) => bound,
        None => return Ok(None),
    };
    let warning = match bound {
        Bound::Right { warning } => warning,
        Bound::Wrong(missing) => return Ok(Some(Err(missing))),
    };
    let timeout = Duration::from_millis(health.timeout_ms);
    for one in wanted.iter().filter(|one| one.transport() == Transport::Tcp) {
        let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), one.port);
        let path = health.path.as_ref().filter(|_| one.id.is_none());
        let refused = match path {
            Some(path) => {
                match probe::http_get(address, host, path, &health.headers, timeout).await {
                    Ok(200..=399) => None,
                    Ok(status) => Some(format!("GET {path} answers {status}")),
                    Err(error) => Some(format!("GET {path}: {error}")),
                }
            }
            // A socket of IPv6 alone looks the same in the table, and a firewall is not seen there.
            None if warning.is_some() => probe::tcp(address, timeout)
                .await
                .err()
                .map(|error| format!("{address}: {error}; bind $HOST, which is 127.0.0.1")),
            None => None,
        };
        if let Some(refused) = refused {
            return Ok(Some(Err(refused.into())));
        }
    }
    Ok(Some(Ok(warning)))
}

/// Looks at what is bound; `None` when nothing listens on one of the ports and `elsewhere` is
/// false. Blocking.
fn look(pid: u32, wanted: &[WantedPort], elsewhere: bool) -> io::Result<Option<Bound>> {
    let mut listening = Vec::new();
    for transport in [Transport::Tcp, Transport::Udp] {
        let of_it: Vec<WantedPort> =
            wanted.iter().copied().filter(|one| one.transport() == transport).collect();
        if !of_it.is_empty() {
            listening.push((Listeners::take(transport)?, of_it));
        }
    }
    let all_taken = listening
        .iter()
        .all(|(listeners, of_it)| of_it.iter().all(|one| listeners.any_on(one.port)));
    if !all_taken && !elsewhere {
        return Ok(None);
    }
    let (snapshot, mut first) = (Snapshot::take()?, None);
    for (listeners, of_it) in listening {
        let addresses = listeners.of(&snapshot, pid);
        for one in of_it {
            match judge(one, listeners.any_on(one.port), &addresses) {
                Bound::Right { warning } => first = first.or(warning),
                wrong @ Bound::Wrong(_) => return Ok(Some(wrong)),
            }
        }
    }
    Ok(Some(Bound::Right { warning: first }))
}

#[derive(Debug, PartialEq, Eq)]
enum Bound {
    Right { warning: Option<String> },
    Wrong(Missing),
}

fn judge(wanted: WantedPort, taken: bool, addresses: &BTreeSet<SocketAddr>) -> Bound {
    let port = wanted.port;
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
    let missing = |detail, mistake| Bound::Wrong(Missing { detail, mistake });
    if all.iter().any(|address| address.port() == port) {
        let detail = format!("listens on {}, but HOST is 127.0.0.1", join(&all));
        missing(detail, Some(Mistake::Address))
    } else if taken {
        let detail = format!("port {port} is taken by a process that is not the application's");
        missing(detail, None)
    } else if let Some(id) = wanted.id {
        missing(format!("nothing listens on port {port}, which is for {id}"), None)
    } else if all.is_empty() {
        missing(format!("nothing listens on port {port}"), None)
    } else {
        missing(format!("listens on {}, but PORT is {port}", join(&all)), Some(Mistake::Port))
    }
}

/// Returns the addresses as text; more than a person reads is cut off.
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
    use os::observe::process::identity;
    use std::net::TcpListener;
    use std::process::{Child, Command, Stdio};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn check_judge(addresses: &[&str], taken: bool) -> Bound {
        let wanted = WantedPort { port: 20001, id: None };
        judge(wanted, taken, &addresses.iter().map(|address| address.parse().unwrap()).collect())
    }

    fn wrong(detail: &str, mistake: Option<Mistake>) -> Bound {
        Bound::Wrong(Missing { detail: detail.into(), mistake })
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
        assert_eq!(
            other,
            wrong("listens on 127.0.0.1:3000, but PORT is 20001", Some(Mistake::Port))
        );
        let six = check_judge(&["[::1]:20001"], true);
        assert_eq!(
            six,
            wrong("listens on [::1]:20001, but HOST is 127.0.0.1", Some(Mistake::Address))
        );
        assert_eq!(check_judge(&[], false), wrong("nothing listens on port 20001", None));
        let taken = "port 20001 is taken by a process that is not the application's";
        assert_eq!(check_judge(&[], true), wrong(taken, None));
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
        let awaited = ReadyCriteria { port: Some(port), ..ReadyCriteria::default() };
        let mut killer = Some(&mut idle);
        // It is killed when it is first complained about.
        let readiness = await_healthy(&process, &awaited, "x", |missing| {
            assert_eq!(missing.detail, format!("nothing listens on port {port}"));
            killer.take().unwrap().0.kill().unwrap();
        });
        assert_eq!(readiness.await.unwrap(), Readiness::Gone);
    }

    #[tokio::test]
    async fn a_process_without_a_port_is_healthy_if_it_lives() {
        let idle = Idle::start();
        let process = identity(idle.0.id()).unwrap();
        let readiness = await_healthy(&process, &ReadyCriteria::default(), "x", |_| {}).await;
        assert_eq!(readiness.unwrap(), Readiness::Healthy { warning: None, remark: None });
    }

    #[tokio::test]
    async fn a_port_of_another_process_does_not_count() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut idle = Idle::start();
        let process = identity(idle.0.id()).unwrap();
        let mut details = Vec::new();
        let awaited = ReadyCriteria { port: Some(port), ..ReadyCriteria::default() };
        let readiness = await_healthy(&process, &awaited, "x", |missing| {
            details.push(missing.detail);
            idle.0.kill().unwrap();
        });
        assert_eq!(readiness.await.unwrap(), Readiness::Gone);
        let taken = format!("port {port} is taken by a process that is not the application's");
        assert_eq!(details, [taken]);
    }

    #[tokio::test]
    async fn every_port_is_awaited() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let free = free_port();
        let own = identity(std::process::id()).unwrap();
        let mut awaited = ReadyCriteria::default();
        awaited.ports.insert(PortId::tcp(1883), tcp.local_addr().unwrap().port());
        awaited.ports.insert(PortId::udp(53), free);
        let (mut late, mut details) = (None, Vec::new());
        let readiness = await_healthy(&own, &awaited, "x", |missing| {
            details.push(missing.detail);
            late.get_or_insert_with(|| std::net::UdpSocket::bind(("127.0.0.1", free)).unwrap());
        });
        assert!(matches!(readiness.await.unwrap(), Readiness::Healthy { .. }));
        assert_eq!(details, [format!("nothing listens on port {free}, which is for 53/udp")]);
    }

    #[tokio::test]
    async fn the_path_decides_once_the_port_is_bound() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        runtime::task::spawn(async move {
            // The server warms up for two requests.
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
        let awaited = ReadyCriteria { port: Some(port), health, ..ReadyCriteria::default() };
        let mut details = Vec::new();
        let readiness = await_healthy(&own, &awaited, "shop.localhost", |missing| {
            details.push(missing.detail);
        });
        // Other tests of this process may listen elsewhere; a warning would be theirs.
        assert!(matches!(readiness.await.unwrap(), Readiness::Healthy { .. }));
        assert_eq!(details, ["GET /up answers 503"]);
    }
}
