//! A large value between two stores while the connection is cut again and again: memory is bounded
//! on both sides, and small commits keep coming.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::node::{Running, binary};
use crate::replication::member::Member;
use crate::wait::wait_for;

const MIB: u64 = 1 << 20;
/// The variable that `./test --long` sets, which asks for the long form.
const LONG: &str = "CORTEX_LONG_PROOFS";
const CUTS: u64 = 10;
/// The most memory that the store may use beyond what it used idle.
const MEMORY_MAX: u64 = 64 * MIB;
/// The time limit for the transfer of a gigabyte on a slow and busy machine; reached only when
/// something is wrong.
const TRANSFER_DEADLINE: Duration = Duration::from_secs(900);

/// A relay between two nodes that cuts a connection each time `step` bytes have passed.
struct Cutter {
    address: String,
    cuts: Arc<AtomicUsize>,
    ends: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

struct Toll {
    passed: AtomicU64,
    /// The number of passed bytes at which the next cut is.
    next: Mutex<u64>,
    step: u64,
    cuts: Arc<AtomicUsize>,
}

impl Toll {
    /// Returns whether the connection that brought these bytes is cut.
    fn take(&self, bytes: u64) -> bool {
        let passed = self.passed.fetch_add(bytes, Ordering::SeqCst) + bytes;
        let mut next = self.next.lock().expect("no panic holds it");
        if passed < *next || self.cuts.load(Ordering::SeqCst) as u64 >= CUTS {
            return false;
        }
        *next = passed + self.step;
        self.cuts.fetch_add(1, Ordering::SeqCst);
        true
    }
}

impl Cutter {
    /// Starts a relay to the node that listens at `to`; a cut comes after each `step` bytes.
    fn start(listener: TcpListener, to: String, step: u64) -> Cutter {
        let address = listener.local_addr().expect("it is bound").to_string();
        let (cuts, ends) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (passed, next) = (AtomicU64::new(0), Mutex::new(step));
        let toll = Arc::new(Toll { passed, next, step, cuts: cuts.clone() });
        let ending = ends.clone();
        let accepting = std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                if ending.load(Ordering::SeqCst) {
                    return;
                }
                // A node that is not up yet refuses connections, and so does the relay.
                let Ok(far) = TcpStream::connect(&to) else { continue };
                carry(&near, &far, None);
                carry(&far, &near, Some(toll.clone()));
            }
        });
        Cutter { address, cuts, ends, accepting: Some(accepting) }
    }

    fn cuts(&self) -> usize {
        self.cuts.load(Ordering::SeqCst)
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        TcpStream::connect(&self.address).ok();
        self.accepting.take().map(JoinHandle::join);
    }
}

/// Carries bytes in one direction, until either end closes.
fn carry(from: &TcpStream, to: &TcpStream, toll: Option<Arc<Toll>>) {
    let (mut from, mut to) = (from.try_clone().expect("a copy"), to.try_clone().expect("a copy"));
    std::thread::spawn(move || {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let cut = toll.as_ref().is_some_and(|toll| toll.take(count as u64));
            // The last bytes of a connection that is cut are lost.
            if cut || to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        from.shutdown(Shutdown::Both).ok();
        to.shutdown(Shutdown::Both).ok();
    });
}

/// Returns the most memory that a process has had, in bytes.
fn memory_peak(member: &Member) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", member.pid())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).expect("Linux tells it");
    kib.parse::<u64>().expect("a number") * 1024
}

/// Streams `size` bytes into a key and returns their hash.
fn upload(member: &Member, key: &str, size: u64) -> blake3::Hash {
    let mut command = Command::new(binary());
    command.arg("--data-dir").arg(member.data()).args(["store", "set", key]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::inherit());
    let mut upload = Running(command.spawn().expect("the binary starts"));
    let mut stdin = upload.0.stdin.take().expect("a pipe");
    let mut content = blake3::Hasher::new_derive_key("a large value").finalize_xof();
    let mut hasher = blake3::Hasher::new();
    let mut left = size;
    let mut buffer = vec![0; 64 << 10];
    while left > 0 {
        let now = left.min(buffer.len() as u64) as usize;
        content.fill(&mut buffer[..now]);
        hasher.update(&buffer[..now]);
        stdin.write_all(&buffer[..now]).expect("the upload goes on");
        left -= now as u64;
    }
    drop(stdin);
    assert!(upload.0.wait().expect("it ends").success(), "the upload of {key}");
    hasher.finalize()
}

fn download(member: &Member, key: &str) -> Result<blake3::Hash, String> {
    let mut command = Command::new(binary());
    command.arg("--data-dir").arg(member.data()).args(["store", "get", key]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut download = Running(command.spawn().expect("the binary starts"));
    let mut hasher = blake3::Hasher::new();
    let mut stdout = download.0.stdout.take().expect("a pipe");
    std::io::copy(&mut stdout, &mut hasher).map_err(|error| error.to_string())?;
    match download.0.wait().expect("it ends").success() {
        true => Ok(hasher.finalize()),
        false => Err(format!("{key} cannot be read yet")),
    }
}

#[test]
fn a_large_value_comes_through_ten_cuts_in_bounded_memory_while_commits_flow() {
    let size = if std::env::var_os(LONG).is_some() { 1024 * MIB } else { 64 * MIB } + 12_345;
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let advertised = listener.local_addr().expect("it is bound").to_string();
    let giver = Member::start("giver", &["--advertise", &advertised]);
    let cutter = Cutter::start(listener, giver.address(), size / (CUTS + 2));
    let taker = Member::join("taker", &giver);
    giver.set("first::key", "seen");
    taker.await_value("first::key", "seen");
    let idle = [&giver, &taker].map(memory_peak);

    let written = Arc::new(AtomicUsize::new(0));
    let done = Arc::new(AtomicBool::new(false));
    let (count, stop, mut client) = (written.clone(), done.clone(), giver.client());
    let stream = std::thread::spawn(move || {
        while !stop.load(Ordering::SeqCst) {
            let number = count.load(Ordering::SeqCst);
            let reply = client.command(&["SET", &format!("small::{number}"), &number.to_string()]);
            assert_eq!(reply, "+OK");
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    let sent = upload(&giver, "large::value", size);
    let before = written.load(Ordering::SeqCst);
    // The value is read on the other node as soon as its commit is there, long before its bytes
    // are.
    let read = wait_for("the value on the other node", TRANSFER_DEADLINE, || {
        download(&taker, "large::value")
    });
    assert_eq!(read, sent, "what was read is what was written");
    wait_for("ten cuts and the file", TRANSFER_DEADLINE, || {
        let hex = sent.to_hex().to_string();
        let file = taker.data().join("values").join(&hex[..2]).join(&hex);
        let whole = fs::metadata(&file).is_ok_and(|found| found.len() == size);
        if whole { Ok(()) } else { Err(format!("{} cuts", cutter.cuts())) }
    });
    // Commits went on all the time, and nothing of them was lost on the way.
    let after = written.load(Ordering::SeqCst);
    done.store(true, Ordering::SeqCst);
    stream.join().expect("every write was acknowledged");
    assert!(after > before + 10, "{before} writes before the transfer, {after} after it");
    let last = written.load(Ordering::SeqCst) - 1;
    taker.await_value(&format!("small::{last}"), &last.to_string());
    let listed = taker.cortex(&["store", "ls", "small"]);
    assert_eq!(listed.matches("small::").count(), last + 1);
    assert_eq!(cutter.cuts() as u64, CUTS);
    let hashes = [&giver, &taker].map(|member| member.cortex(&["store", "hash", "large::value"]));
    assert_eq!(hashes[0], hashes[1]);
    for (member, idle) in [&giver, &taker].into_iter().zip(idle) {
        let peak = memory_peak(member);
        println!("{}: {} KiB idle, {} KiB at most", member.name, idle / 1024, peak / 1024);
        assert!(peak < idle + MEMORY_MAX, "{}: {idle} bytes idle, {peak} at most", member.name);
    }
}

#[test]
fn a_value_that_rots_on_one_disk_comes_again_from_the_other() {
    let one = Member::start("one", &[]);
    let two = Member::join("two", &one);
    let sent = upload(&one, "large::value", MIB);
    let hex = sent.to_hex().to_string();
    let file = two.data().join("values").join(&hex[..2]).join(&hex);
    wait_for("the file", TRANSFER_DEADLINE, || match fs::metadata(&file) {
        Ok(found) if found.len() == MIB => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let mut rotten = fs::read(&file).expect("its file");
    rotten[70_000] ^= 1;
    fs::write(&file, &rotten).expect("a bad disk");
    assert!(download(&two, "large::value").is_err(), "false bytes are never taken for the value");
    let read = wait_for("the value again", TRANSFER_DEADLINE, || download(&two, "large::value"));
    assert_eq!(read, sent);
    wait_for("a sound file", TRANSFER_DEADLINE, || match fs::read(&file) {
        Ok(bytes) if blake3::hash(&bytes) == sent => Ok(()),
        other => Err(format!("{:?}", other.map(|bytes| bytes.len()))),
    });
    assert_eq!(two.log().matches("bulk.value_damaged").count(), 1, "{}", two.log());
}
