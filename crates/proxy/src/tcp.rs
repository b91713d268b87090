//! Whole TCP connections: each is given to a back end when it comes, after what the proxy before
//! this one says of it and, where several services share the port, after its first bytes. Threads
//! of their own, each with its own listener.

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use router_core::detect::{self, Sort};
use router_core::proxy_protocol::{self, Addresses, HeaderVersion, Senders};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::watch;
use tokio::time::Instant;

use super::back_ends::{BackEnds, Service};
use super::records::{RecordEntry, Recorder, Status};
use super::{ProxyPhase, until_phase_changes};
use router::announced;
use router::announced::Unannounced;
use router::choice::Demands;
use router::entry;
use router::entry::{Attempt, ENTRY_TIME_MAX, Entered};
use router::moved::{Direction, Moved};
use router::permit::Permit;
use router::streams;
use router::streams::{Means, TransferEnd};
use runtime::driver::Clock;

/// The maximum number of connections of a thread: a descriptor and some 2 KiB each, twice.
const CONNECTIONS_MAX: usize = 20_000;
/// The pause when descriptors run out: some are free again in a moment.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The maximum silence of a client; after it, the client is taken to wait for the server's first
/// word.
const SILENCE_MAX: Duration = Duration::from_secs(2);
/// The interval at which the last connections are checked for their end.
const END_CHECK: Duration = Duration::from_millis(10);
/// The same where another process has taken over, and they may stay for an hour.
const LEAVE_CHECK: Duration = Duration::from_millis(250);

#[derive(Clone)]
pub struct TcpSettings {
    pub announced_by: Option<Senders>,
    pub send_proxy: Option<HeaderVersion>,
    pub idle: Duration,
    pub clock: Clock,
}

struct Thread {
    back_ends: Arc<BackEnds>,
    /// The sorts of the services, in their order; empty where all clients are for one.
    sorts: Vec<Sort>,
    settings: TcpSettings,
    means: Means,
    recorder: Recorder,
    connections: Cell<usize>,
}

/// Runs until it is told to end, and its connections have ended or their time is up.
pub fn run(
    back_ends: Arc<BackEnds>,
    settings: TcpSettings,
    recorder: Recorder,
    listener: TcpListener,
    phase: watch::Receiver<ProxyPhase>,
) -> anyhow::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default())?;
    let sorts = back_ends.services.iter().filter_map(|service| service.sort.clone()).collect();
    let thread = Rc::new(Thread {
        back_ends,
        sorts,
        settings,
        means: Means::default(),
        recorder,
        connections: Cell::new(0),
    });
    runtime.block_on(accept(thread, listener, phase))
}

async fn accept(
    thread: Rc<Thread>,
    listener: TcpListener,
    mut phase: watch::Receiver<ProxyPhase>,
) -> anyhow::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let accepting = async {
        loop {
            if thread.connections.get() >= CONNECTIONS_MAX {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
            match listener.accept().await {
                Ok((stream, peer)) => {
                    thread.connections.set(thread.connections.get() + 1);
                    let counted = Counted(thread.clone());
                    tokio::task::spawn_local(async move {
                        serve(&counted.0, stream, peer).await;
                        drop(counted);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "proxy.accept_failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    tokio::select! {
        () = accepting => {}
        () = until_phase_changes(&mut phase) => {}
    }
    drop(listener);
    loop {
        let now = *phase.borrow_and_update();
        let (deadline, check) = match now {
            ProxyPhase::Serving => return Ok(()),
            ProxyPhase::Leaving(deadline) => (deadline, LEAVE_CHECK),
            ProxyPhase::Ending(deadline) => (deadline, END_CHECK),
        };
        if thread.connections.get() == 0 || Instant::now() >= deadline {
            return Ok(());
        }
        tokio::time::timeout(check, until_phase_changes(&mut phase)).await.ok();
    }
}

/// A guard that counts one connection less when it is dropped, however that ends.
struct Counted(Rc<Thread>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.set(self.0.connections.get() - 1);
    }
}

/// A connection before it has a back end.
struct NewClient {
    stream: TcpStream,
    addresses: Addresses,
    /// The bytes that were read already and are for the back end.
    first: Vec<u8>,
}

type Chosen = Entered<TcpStream>;

async fn serve(thread: &Thread, stream: TcpStream, peer: SocketAddr) {
    let started = Instant::now();
    stream.set_nodelay(true).ok();
    let destination = stream.local_addr().unwrap_or(peer);
    let addresses = Addresses { client: peer, destination };
    let mut client = NewClient { stream, addresses, first: Vec::new() };
    let moved = Moved::default();
    let (mut queue, mut address) = (Duration::ZERO, None);
    let status = match begin(thread, &mut client).await {
        Err(status) => status,
        Ok(chosen) => {
            (queue, address) = (chosen.queue, chosen.permit.endpoint.address());
            let status = pass(thread, &client, &chosen, &moved).await;
            // The permit is dropped after the connection, so that a serial back end is really free.
            drop(chosen.connection);
            drop(chosen.permit);
            status
        }
    };
    if matches!(status, Status::NO_BACK_END | Status::BAD_HEADER) {
        streams::cut(&client.stream);
    }
    thread.recorder.record(RecordEntry {
        started: started.into_std(),
        total: started.elapsed(),
        queue,
        client: client.addresses.client,
        back_end: address,
        method: None,
        status,
        bytes_in: moved.get(Direction::FromClient),
        bytes_out: moved.get(Direction::ToClient),
    });
}

async fn begin(thread: &Thread, client: &mut NewClient) -> Result<Chosen, Status> {
    let announced_by = thread.settings.announced_by.as_ref();
    if announced_by.is_some_and(|by| by.includes(client.addresses.client.ip())) {
        read_header(client).await?;
    }
    let service = choose_service(thread, client).await?;
    choose_back_end(thread, service, client.addresses.client.ip()).await
}

/// Reads off the front what the proxy before this one announces.
async fn read_header(client: &mut NewClient) -> Result<(), Status> {
    match announced::read(&client.stream).await {
        Ok(said) => client.addresses = said.unwrap_or(client.addresses),
        Err(Unannounced::Left) => return Err(Status::LEFT),
        Err(Unannounced::Bad(error)) => {
            tracing::debug!(client = %client.addresses.client, %error, "proxy.bad_header");
            return Err(Status::BAD_HEADER);
        }
    }
    Ok(())
}

async fn choose_service<'a>(
    thread: &'a Thread,
    client: &mut NewClient,
) -> Result<&'a Service, Status> {
    let services = &thread.back_ends.services;
    if thread.sorts.is_empty() {
        return services.first().ok_or(Status::NO_SERVICE);
    }
    let until = Instant::now() + SILENCE_MAX;
    let chosen = loop {
        if let Some(spoken) = detect::detect(&client.first) {
            break detect::choose(&thread.sorts, &spoken);
        }
        let max = client.first.len() + detect::BYTES_MAX;
        match streams::read_more(&client.stream, &mut client.first, max, until).await {
            Ok(1..) => {}
            Ok(0) if client.first.is_empty() => return Err(Status::LEFT),
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                break match client.first.is_empty() {
                    true => detect::choose_silent(&thread.sorts),
                    false => detect::choose(&thread.sorts, &detect::Spoken::Other),
                };
            }
            // It says no more: what it has said is for some service, or for none.
            Ok(0) => break detect::choose(&thread.sorts, &detect::Spoken::Other),
            Err(_) => return Err(Status::CLIENT_RESET),
        }
    };
    chosen.and_then(|at| services.get(at)).ok_or(Status::NO_SERVICE)
}

/// Chooses a back end, and another one if it does not answer.
async fn choose_back_end(
    thread: &Thread,
    service: &Service,
    client: IpAddr,
) -> Result<Chosen, Status> {
    let attempt = async |permit: &Permit| {
        let Some(address) = permit.endpoint.address() else { return Attempt::Hopeless };
        let attempt = entry::connect(address).await;
        let now_ms = || thread.settings.clock.now().0;
        match &attempt {
            Attempt::Stands(_) => permit.endpoint.succeeded(now_ms),
            Attempt::Failed => drop(permit.endpoint.failed(now_ms())),
            Attempt::Hopeless => {}
        }
        attempt
    };
    let (queue, current) = (&service.queue, || Some(service.application()));
    let wants = Demands::near(client);
    let entered = entry::enter(queue, current, wants, client, ENTRY_TIME_MAX, attempt).await;
    entered.ok_or(Status::NO_BACK_END)
}

async fn pass(thread: &Thread, client: &NewClient, chosen: &Chosen, moved: &Moved) -> Status {
    let mut first = Vec::new();
    if let Some(version) = thread.settings.send_proxy {
        proxy_protocol::write(version, client.addresses, &mut first);
    }
    first.extend_from_slice(&client.first);
    let until = Instant::now() + thread.settings.idle;
    if streams::write_first(&chosen.connection, &first, until).await.is_err() {
        streams::cut(&client.stream);
        return Status::BACK_END_RESET;
    }
    moved.add(Direction::FromClient, client.first.len());
    let idle = thread.settings.idle;
    // If this process ends before the connection does, that is not to look like the connection's
    // own end.
    let both = [&client.stream, &chosen.connection];
    both.into_iter().for_each(streams::cut);
    let ended = streams::relay(&thread.means, both[0], both[1], idle, moved).await;
    if ended == TransferEnd::Closed {
        both.into_iter().for_each(streams::uncut);
    }
    ended.into()
}
