//! A bad network between two nodes on loopback, by a proxy of our own in front of each node port:
//! everything between nodes is TCP there, liveness too. Every byte is late, bursts of loss hold all
//! of them up as TCP does while it sends again, and now and then every connection is reset.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use agent_core::lease::LEASE;

use crate::fixtures::cluster::{await_acquaintance, id_of, invitation, local_address};
use crate::machine::processes_below;
use crate::node::{Node, Row};
use crate::outside::{Callers, Site};
use crate::project::copy_of_example;
use crate::wait::{STATE_DEADLINE, space_out, wait_for};

/// The delay each way: a call to the other node takes 100 ms more.
const DELAY: Duration = Duration::from_millis(50);
/// The time from one burst to the next, and how long it lasts: as long as TCP takes to send twice
/// again.
const BURST_EVERY: Duration = Duration::from_secs(4);
const BURST: Duration = Duration::from_millis(700);
/// The number of bursts of which one also resets connections.
const RESETS_EVERY: u64 = 3;
/// How long the weather lasts: longer than a lease, so that what runs twice for longer is seen.
const WEATHER: Duration = Duration::from_secs(45);
const NAME: &str = "hello";
const INSTANCES: usize = 4;
/// The most bytes read at once.
const CHUNK_BYTES: usize = 16 * 1024;

#[derive(Default)]
struct Weather {
    is_bad: AtomicBool,
    bursts: AtomicU64,
    resets: AtomicU64,
    /// The time before which nothing passes.
    held_until: Mutex<Option<Instant>>,
    open: Mutex<Vec<TcpStream>>,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Weather {
    /// Starts a proxy in front of `target`, and returns where to call instead.
    fn proxy(self: &Arc<Self>, target: &str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address").to_string();
        let (weather, target) = (self.clone(), target.to_string());
        // The thread lives until the tests end, as other listeners of this process do.
        std::thread::spawn(move || {
            for caller in listener.incoming().flatten() {
                let Ok(called) = TcpStream::connect(&target) else { continue };
                weather.connect(caller, called);
            }
        });
        address
    }

    fn connect(self: &Arc<Self>, caller: TcpStream, called: TcpStream) {
        for stream in [&caller, &called] {
            stream.set_nodelay(true).ok();
        }
        let both = [(&caller, &called), (&called, &caller)];
        for (from, to) in both {
            let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else { return };
            let (sender, receiver) = mpsc::sync_channel(1024);
            std::thread::spawn(move || take_in(from, &sender));
            let weather = self.clone();
            std::thread::spawn(move || weather.give_out(to, &receiver));
        }
        let mut open = locked(&self.open);
        open.retain(|stream| stream.peer_addr().is_ok());
        open.extend([caller, called]);
    }

    fn give_out(&self, mut to: TcpStream, receiver: &mpsc::Receiver<(Instant, Vec<u8>)>) {
        while let Ok((came, bytes)) = receiver.recv() {
            if self.is_bad.load(Ordering::Relaxed) {
                space_out((came + DELAY).saturating_duration_since(Instant::now()));
                while let Some(until) = *locked(&self.held_until)
                    && let Some(wait) = until.checked_duration_since(Instant::now())
                {
                    space_out(wait);
                }
            }
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        to.shutdown(Shutdown::Both).ok();
    }

    /// Makes bursts, until it is told to end.
    fn blow(&self, ended: &mpsc::Receiver<()>) {
        self.is_bad.store(true, Ordering::Relaxed);
        while ended.recv_timeout(BURST_EVERY) == Err(mpsc::RecvTimeoutError::Timeout) {
            *locked(&self.held_until) = Some(Instant::now() + BURST);
            let count = self.bursts.fetch_add(1, Ordering::Relaxed) + 1;
            if count.is_multiple_of(RESETS_EVERY) {
                self.resets.fetch_add(1, Ordering::Relaxed);
                for stream in locked(&self.open).drain(..) {
                    stream.shutdown(Shutdown::Both).ok();
                }
            }
        }
        self.is_bad.store(false, Ordering::Relaxed);
    }
}

fn take_in(mut from: TcpStream, sender: &mpsc::SyncSender<(Instant, Vec<u8>)>) {
    let mut buffer = vec![0; CHUNK_BYTES];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if sender.send((Instant::now(), buffer[..count].to_vec())).is_err() {
            return;
        }
    }
}

/// Returns the nodes that run each slot, as each node itself says.
fn ready_by_slot(nodes: &[&Node]) -> BTreeMap<u32, BTreeSet<String>> {
    let mut slots: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
    for node in nodes {
        let id = id_of(node);
        let own = node.ready(NAME, "web").into_iter().filter(|row| row.node == id);
        for row in own {
            slots.entry(row.slot).or_default().insert(row.node);
        }
    }
    slots
}

#[test]
fn a_late_and_lossy_network_costs_no_request_and_settles() {
    let weather = Arc::new(Weather::default());
    let (first, second) = (local_address(), local_address());
    let (to_first, to_second) = (weather.proxy(&first), weather.proxy(&second));
    let load = "--load=20";
    let one = Node::start_with(&["--listen", &first, "--advertise", &to_first, load]);
    let word = invitation(&one, &["--address", &to_first]);
    let join = ["--listen", &second, "--advertise", &to_second, "--join", &word, load];
    let two = Node::start_with(&join);
    let both = [&one, &two];
    await_acquaintance(&both);
    let project = one.path(NAME);
    copy_of_example(NAME, &project);
    one.push(&project, NAME);
    one.cortex(&["scale", "-a", NAME, &format!("web={INSTANCES}")]);
    await_each_once(&both);

    let callers: Vec<Callers> = both
        .iter()
        .map(|node| {
            let host = format!("{NAME}.localhost:{}", node.http_port);
            Callers::start_gently(&Site { host, port: node.http_port }, "/", &["Hello"])
        })
        .collect();
    let (end, ended) = mpsc::channel();
    let blowing = weather.clone();
    let blower = std::thread::spawn(move || blowing.blow(&ended));
    let (began, mut twice) = (Instant::now(), BTreeMap::new());
    wait_for("the weather to be over", 2 * STATE_DEADLINE, || {
        let now = ready_by_slot(&both);
        twice.retain(|slot, _| now.get(slot).is_some_and(|nodes| nodes.len() > 1));
        for slot in now.iter().filter(|(_, nodes)| nodes.len() > 1).map(|(slot, _)| slot) {
            let since = twice.entry(*slot).or_insert_with(Instant::now).elapsed();
            assert!(since < LEASE, "web.{slot} runs twice for {since:?}");
        }
        if began.elapsed() > WEATHER { Ok(()) } else { Err(format!("{now:?}")) }
    });
    callers.iter().for_each(|callers| callers.answered_more(20));
    drop(end);
    blower.join().expect("it ends");
    let (bursts, resets) =
        (weather.bursts.load(Ordering::Relaxed), weather.resets.load(Ordering::Relaxed));
    assert!(bursts > 3 && resets > 0, "{bursts} bursts, {resets} resets");
    let noticed = both.iter().any(|node| node.log().contains("peer.lost"));
    assert!(noticed, "the nodes spoke through the proxy:\n{}", one.log());
    await_each_once(&both);
    callers.into_iter().for_each(Callers::finish_without_failure);
}

/// Waits until each slot runs once, as both see it and counted by process.
#[track_caller]
fn await_each_once(nodes: &[&Node]) {
    wait_for("each slot to run once", 2 * STATE_DEADLINE, || {
        for node in nodes {
            let rows = node.rows(NAME);
            let slots: BTreeSet<u32> = rows.iter().map(|row| row.slot).collect();
            let once = rows.len() == INSTANCES && slots.len() == INSTANCES;
            if !once || !rows.iter().all(Row::is_ready) {
                return Err(format!("{rows:#?}"));
            }
        }
        let living: Vec<_> =
            nodes.iter().flat_map(|node| processes_below(&node.data().join("apps"))).collect();
        if living.len() == INSTANCES { Ok(()) } else { Err(format!("{living:#?}")) }
    });
}
