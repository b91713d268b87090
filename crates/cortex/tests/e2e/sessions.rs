//! Commands that outlive what carries them: cut connections, killed node processes, upgrades; and
//! those that somebody starts, leaves and attaches to.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use rustix::termios::LocalModes;
use serde_json::Value;

use crate::fixtures::cluster::{await_loads, cluster, id_of};
use crate::machine::{free_port, kill};
use crate::node::{Node, Running, binary, run};
use crate::project::of_files;
use crate::reach::{Laptop, invite};
use crate::run::{NAME, Person, await_file, create, platform_says, push, start};
use crate::upgrade::other_binary;
use crate::wait::{STATE_DEADLINE, space_out, wait_for, wait_until};

/// The bytes that pass in each direction of the test of cuts.
const STREAM_BYTES: usize = 4 << 20;
/// The bytes of either direction after which the connection is cut, once and again.
const CUT_AFTER: [usize; 4] = [300_000, 700_001, 65_537, 1_000_003];

/// The pieces in which somebody types, and the pause between two: some bytes come before, while and
/// after each cut.
const PIECE_BYTES: usize = 16 << 10;
const PIECE_PAUSE: Duration = Duration::from_millis(20);

/// Something between a client and a node that cuts each connection, until it has cut enough.
struct Cutter {
    port: u16,
    cuts: Arc<AtomicU32>,
    /// Whether nothing passes any more on the connections there are, which stay: so it is for a
    /// laptop that has slept, or moved to another network.
    hangs: Arc<AtomicBool>,
}

impl Cutter {
    /// Leads to `to`, and cuts so many connections.
    fn start(to: String, cuts_max: u32) -> Cutter {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("it is bound").port();
        let cuts = Arc::new(AtomicU32::new(0));
        let counted = cuts.clone();
        let hangs = Arc::new(AtomicBool::new(false));
        let hanging = hangs.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(node) = TcpStream::connect(&to) else { continue };
                let cut = counted.load(Ordering::Relaxed);
                let after = match cut < cuts_max {
                    true => CUT_AFTER[cut as usize % CUT_AFTER.len()],
                    false => usize::MAX,
                };
                // A connection that comes later passes.
                hanging.store(false, Ordering::Relaxed);
                let own = Arc::new(AtomicBool::new(false));
                pass(&client, &node, after, &counted, &hanging, &own);
            }
        });
        Cutter { port, cuts, hangs }
    }

    fn cuts(&self) -> u32 {
        self.cuts.load(Ordering::Relaxed)
    }
}

/// Passes bytes both ways, in threads, and cuts both connections after so many of them.
fn pass(
    client: &TcpStream,
    node: &TcpStream,
    after: usize,
    cuts: &Arc<AtomicU32>,
    hanging: &Arc<AtomicBool>,
    hangs: &Arc<AtomicBool>,
) {
    let passed = Arc::new(AtomicUsize::new(0));
    for (from, to) in [(client, node), (node, client)] {
        let (mut from, mut to) = (from.try_clone().expect("a copy"), to.try_clone().expect("one"));
        let (passed, cuts) = (passed.clone(), cuts.clone());
        let (hanging, hangs) = (hanging.clone(), hangs.clone());
        std::thread::spawn(move || {
            let mut chunk = [0; 16 << 10];
            while let Ok(count @ 1..) = from.read(&mut chunk) {
                // Once it hangs it hangs for good.
                if hanging.load(Ordering::Relaxed) {
                    hangs.store(true, Ordering::Relaxed);
                }
                if hangs.load(Ordering::Relaxed) {
                    continue;
                }
                let before = passed.fetch_add(count, Ordering::Relaxed);
                if before < after && before + count >= after {
                    cuts.fetch_add(1, Ordering::Relaxed);
                }
                if before + count >= after || to.write_all(&chunk[..count]).is_err() {
                    break;
                }
            }
            from.shutdown(Shutdown::Both).ok();
            to.shutdown(Shutdown::Both).ok();
        });
    }
}

/// Returns a command for a client elsewhere that reaches the node by way of `port`.
fn far_command(node: &Node, laptop: &Laptop, port: u16, arguments: &[&str]) -> Command {
    let shown: Value = serde_json::from_str(&node.cortex(&["whoami", "--json"])).expect("JSON");
    let fingerprint = shown["nodes"][0]["fingerprint"].as_str().expect("one");
    let mut command = laptop.command(arguments);
    command.env("CORTEX_URL", format!("https://127.0.0.1:{port}#{fingerprint}"));
    command.env("CORTEX_TOKEN", token(node));
    command
}

fn token(node: &Node) -> String {
    static MADE: AtomicU32 = AtomicU32::new(0);
    if node.run(&["users", "add", "ana", "--role", "owner"]).status.success() {
        MADE.store(0, Ordering::Relaxed);
    }
    let name = format!("t{}", MADE.fetch_add(1, Ordering::Relaxed));
    node.cortex(&["tokens", "create", &name, "--user", "ana"]).trim().into()
}

fn address(node: &Node) -> String {
    let shown: Value = serde_json::from_str(&node.cortex(&["whoami", "--json"])).expect("JSON");
    shown["nodes"][0]["addresses"][0].as_str().expect("one").into()
}

fn random_looking(count: usize) -> Vec<u8> {
    (0..count as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// Writes a program that numbers what it prints on both outputs until it is told to end, and then
/// ends with this code.
fn counter(code: u8) -> String {
    format!(
        "import os, sys, time
n = 0
while not os.path.exists(sys.argv[1]):
    n += 1
    print('line', n, flush=True)
    if n % 10 == 0: print('tenth', n, file=sys.stderr, flush=True)
    time.sleep(0.002)
sys.exit({code})
"
    )
}

fn push_counter(node: &Node, settings: &str) {
    create(node);
    let project = node.path(NAME);
    push(node, settings);
    of_files(&project, &[("count.py", &counter(7))]);
    node.push_as_it_is(&project, NAME).succeeded();
}

fn numbered(path: &Path, word: &str) -> Vec<u64> {
    let text = fs::read_to_string(path).expect("it is there");
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().filter_map(|line| line.strip_prefix(word)?.trim().parse().ok()).collect()
}

fn await_lines(path: &Path, more: u64) {
    let before = numbered(path, "line").last().copied().unwrap_or(0);
    wait_for("more lines", STATE_DEADLINE, || match numbered(path, "line").last() {
        Some(last) if *last >= before + more => Ok(()),
        last => {
            let said = fs::read_to_string(path.with_file_name("errors")).unwrap_or_default();
            Err(format!("{last:?}: {}", said.chars().take(2000).collect::<String>()))
        }
    });
}

/// Checks that every line came once and in order, on both outputs.
fn check_lines(output: &Path, errors: &Path) {
    let lines = numbered(output, "line");
    let expected: Vec<u64> = (1..=lines.len() as u64).collect();
    assert!(lines == expected, "{} lines, {:?}", lines.len(), lines.last());
    let tenths = numbered(errors, "tenth");
    let expected: Vec<u64> = (1..=lines.len() as u64 / 10).map(|n| 10 * n).collect();
    assert_eq!(tenths, expected);
}

#[track_caller]
fn ended(child: &mut Child, code: i32) {
    let status = wait_for("the command to end", STATE_DEADLINE, || {
        child.try_wait().expect("it can be awaited").ok_or_else(|| "it goes on".to_string())
    });
    assert_eq!(status.code(), Some(code));
}

#[test]
fn no_byte_is_lost_or_doubled_over_connections_that_are_cut() {
    let node = Node::start_with(&["--listen", &format!("127.0.0.1:{}", free_port())]);
    create(&node);
    push(&node, "");
    let laptop = Laptop::new();
    let cutter = Cutter::start(address(&node), 12);
    let sent = random_looking(STREAM_BYTES);
    let (from, to) = (node.path("sent"), node.path("received"));
    fs::write(&from, &sent).expect("a file");
    // What it gets it prints, and counts on the other output; then it ends in its own way.
    let script = "tee copy.$$ ; wc -c < copy.$$ >&2; exit 9";
    let arguments = ["run", "-a", NAME, "--", "sh", "-c", script];
    let mut copy = far_command(&node, &laptop, cutter.port, &arguments);
    copy.stdin(File::open(&from).expect("it is there"));
    copy.stdout(File::create(&to).expect("a file"));
    let errors = to.with_extension("err");
    copy.stderr(File::create(&errors).expect("a file"));
    let mut copy = Running(copy.spawn().expect("it starts"));
    let status = copy.0.wait().expect("it ends");
    let said = fs::read_to_string(&errors).expect("it is there");
    assert_eq!(status.code(), Some(9), "{said}");
    let received = fs::read(&to).expect("it is there");
    assert_eq!(blake3::hash(&received), blake3::hash(&sent), "{} bytes", received.len());
    let own: Vec<&str> = said.lines().filter(|line| !line.starts_with("cortex: ")).collect();
    assert_eq!(own, [STREAM_BYTES.to_string()], "{said}");
    assert_eq!(cutter.cuts(), 12, "{said}");
    let audit = node.cortex(&["audit", "-n", "100"]);
    let attached = audit.lines().filter(|line| line.contains("ana") && line.contains("/attach"));
    assert!(attached.count() >= 12, "{audit}");
}

#[test]
fn a_connection_that_leads_nowhere_is_noticed_and_a_revoked_token_hangs_up() {
    let node = Node::start_with(&["--listen", &format!("127.0.0.1:{}", free_port())]);
    push_counter(&node, "");
    let laptop = Laptop::new();
    let cutter = Cutter::start(address(&node), 0);
    let end = node.path("end");
    let (output, errors) = (node.path("output"), node.path("errors"));
    let script = format!("exec python3 count.py {}", end.display());
    let mut counting = far_command(&node, &laptop, cutter.port, &["run", "-a", NAME, &script]);
    counting.stdin(Stdio::null()).stdout(File::create(&output).expect("a file"));
    counting.stderr(File::create(&errors).expect("a file"));
    let mut counting = Running(counting.spawn().expect("it starts"));
    await_lines(&output, 100);
    cutter.hangs.store(true, Ordering::Relaxed);
    wait_until("the client to notice", || {
        fs::read_to_string(&errors).is_ok_and(|said| said.contains("connected again"))
    });
    await_lines(&output, 100);

    let rows: Vec<Value> = serde_json::from_str(&node.cortex(&["tokens", "--json"])).expect("JSON");
    for row in rows.iter().filter(|row| row["user"] == "ana") {
        node.cortex(&["tokens", "revoke", "ana", row["name"].as_str().expect("a name")]);
    }
    ended(&mut counting.0, 255);
    let said = fs::read_to_string(&errors).expect("it is there");
    assert!(said.contains("was revoked"), "{said}");
    platform_says(&node, "its client went away");
    let lines = numbered(&output, "line");
    assert!(lines.windows(2).all(|pair| pair[1] == pair[0] + 1), "{lines:?}");
}

#[test]
fn a_command_outlives_node_processes_and_upgrades() {
    let mut node = Node::start();
    push_counter(&node, "");
    let end = node.path("end");
    let (output, errors) = (node.path("output"), node.path("errors"));
    let script = format!("exec python3 count.py {}", end.display());
    let mut run = Command::new(binary());
    run.arg("--data-dir").arg(node.data()).args(["run", "-a", NAME, &script]);
    run.stdin(Stdio::null()).stdout(File::create(&output).expect("a file"));
    let mut run = Running(run.stderr(File::create(&errors).expect("a file")).spawn().expect("it"));
    await_lines(&output, 100);
    let [row] = &node.ready(NAME, "run")[..] else { panic!("one") };
    let process = row.identity();
    node.kill_nine();
    node.up();
    await_lines(&output, 300);
    let next = other_binary(node.directory.path(), "next");
    node.cortex(&["upgrade", "--binary", next.to_str().expect("text")]);
    await_lines(&output, 300);
    let [row] = &node.ready(NAME, "run")[..] else { panic!("one") };
    assert_eq!(row.identity(), process, "the same process");
    assert!(process.is_some());

    // It ends while nobody can say so: its client learns that from the next node process.
    fs::write(&end, "").expect("a file");
    ended(&mut run.0, 7);
    check_lines(&output, &errors);
    wait_until("it to be forgotten", || node.ready(NAME, "run").is_empty());
}

/// Waits until so many bytes more are there.
fn await_bytes(path: &Path, more: u64) {
    let length = || fs::metadata(path).expect("it is there").len();
    let before = length();
    wait_until("more bytes", || length() >= before + more);
}

#[test]
fn bytes_in_both_directions_outlive_a_kill_and_an_upgrade() {
    let mut node = Node::start();
    create(&node);
    push(&node, "");
    let output = node.path("output");
    let to = File::create(&output).expect("a file");
    let arguments = ["run", "-a", NAME, "--", "sh", "-c", "cat; exit 8"];
    let mut copy = Running(start(&node, &arguments, Stdio::piped(), to.into()));
    let mut input = copy.0.stdin.take().expect("a pipe");
    let sent = random_looking(STREAM_BYTES);
    let typed = sent.clone();
    let typing = std::thread::spawn(move || {
        for piece in typed.chunks(PIECE_BYTES) {
            input.write_all(piece).expect("it listens");
            space_out(PIECE_PAUSE);
        }
    });
    await_bytes(&output, 500_000);
    node.kill_nine();
    node.up();
    await_bytes(&output, 500_000);
    let next = other_binary(node.directory.path(), "next");
    node.cortex(&["upgrade", "--binary", next.to_str().expect("text")]);
    typing.join().expect("all was typed");
    ended(&mut copy.0, 8);
    let received = fs::read(&output).expect("it is there");
    assert_eq!(blake3::hash(&received), blake3::hash(&sent), "{} bytes", received.len());
}

#[test]
fn an_exit_code_waits_for_a_client_that_was_cut_off() {
    let mut node = Node::start();
    push_counter(&node, "");
    let end = node.path("end");
    let (output, errors) = (node.path("output"), node.path("errors"));
    let script = format!("exec python3 count.py {}", end.display());
    let mut run = Command::new(binary());
    run.arg("--data-dir").arg(node.data()).args(["run", "-a", NAME, &script]);
    run.stdin(Stdio::null()).stdout(File::create(&output).expect("a file"));
    let mut run = Running(run.stderr(File::create(&errors).expect("a file")).spawn().expect("it"));
    await_lines(&output, 100);
    let [row] = &node.ready(NAME, "run")[..] else { panic!("one") };
    let process = row.identity().expect("it runs");
    node.kill_nine();
    fs::write(&end, "").expect("a file");
    wait_until("the command to have ended", || !crate::machine::lives(process));
    node.up();
    ended(&mut run.0, 7);
    check_lines(&output, &errors);
}

#[test]
fn a_client_elsewhere_goes_on_over_another_node() {
    let [mut one, two] = cluster([&[], &[]]);
    await_loads(&[&one, &two]);
    // What keeps files runs on the node that has them, and the client speaks to the other one.
    push_counter(&two, "persist = [\"kept/\"]\n");
    let holder = id_of(&two);
    let laptop = Laptop::new();
    laptop.log_in(&invite(&one, &["ana", "--role", "owner"])).succeeded();
    laptop.cortex(&["whoami"]);
    let end = two.path("end");
    let (output, errors) = (one.path("output"), one.path("errors"));
    let script = format!("echo $CORTEX_NODE > {0}.node; exec python3 count.py {0}", end.display());
    let mut run = laptop.command(&["run", "-a", NAME, &script]);
    run.stdin(Stdio::piped()).stdout(File::create(&output).expect("a file"));
    let mut run = Running(run.stderr(File::create(&errors).expect("a file")).spawn().expect("it"));
    await_lines(&output, 100);
    assert_eq!(fs::read_to_string(two.path("end.node")).expect("a file").trim(), holder);
    // Both nodes list it.
    for node in [&one, &two] {
        let listed = node.cortex(&["ps", "-a", NAME]);
        assert!(listed.contains("by ana, ") && listed.contains(&holder), "{listed}");
    }
    one.kill_nine();
    await_lines(&output, 500);
    // A signal passes on the new connection, too.
    fs::write(&end, "").expect("a file");
    ended(&mut run.0, 7);
    check_lines(&output, &errors);
    one.up();
}

fn id_in(listing: &str) -> &str {
    listing.trim()
}

#[test]
fn somebody_starts_a_command_leaves_and_attaches_to_it() {
    let node = Node::start();
    create(&node);
    push(&node, "");
    let go = node.path("go");
    let script = format!(
        "echo begun; while ! [ -e {} ]; do sleep 0.05; done; echo done; exit 5",
        go.display()
    );
    let started = node.cortex(&["run", "-d", "-a", NAME, &script]);
    let id = id_in(&started);
    let listed = node.cortex(&["ps", "-a", NAME]);
    assert!(listed.contains(id) && listed.contains("(detached)"), "{listed}");

    // Whoever attaches takes it over.
    let seen = node.path("seen");
    let to = File::create(&seen).expect("a file");
    let first = start(&node, &["attach", "-a", NAME, id], Stdio::piped(), to.into());
    let mut first = Running(first);
    wait_until("the output from before", || {
        fs::read_to_string(&seen).is_ok_and(|seen| seen == "begun\n")
    });
    let again = node.path("again");
    let to = File::create(&again).expect("a file");
    let second = start(&node, &["attach", "-a", NAME, id], Stdio::piped(), to.into());
    let mut second = Running(second);
    ended(&mut first.0, 255);
    fs::write(&go, "").expect("a file");
    ended(&mut second.0, 5);
    assert_eq!(fs::read_to_string(&again).expect("a file"), "done\n");

    // One that nobody was attached to says how it ended to whoever comes later.
    let started = node.cortex(&["run", "-d", "-a", NAME, "echo alone; exit 3"]);
    let id = id_in(&started);
    wait_for("its end", STATE_DEADLINE, || {
        let listed = node.cortex(&["ps", "-a", NAME]);
        if listed.contains("exit status 3") { Ok(()) } else { Err(listed) }
    });
    let late = node.run(&["attach", "-a", NAME, id]);
    assert_eq!((late.status.code(), late.stdout.as_str()), (Some(3), "alone\n"), "{late:?}");
    wait_until("it to be forgotten", || !node.cortex(&["ps", "-a", NAME]).contains(id));
    node.run(&["attach", "-a", NAME, id]).refused().saying(&["no command", "cortex ps"]);

    let started = node.cortex(&["run", "-d", "-a", NAME, "exec sleep 1000"]);
    let id = id_in(&started);
    node.cortex(&["apps", "create", "other", "--port", &free_port().to_string()]);
    node.run(&["attach", "-a", "other", id]).refused().saying(&["no command"]);
    node.cortex(&["attach", "--stop", "-a", NAME, id]);
    platform_says(&node, "killed by signal 15");
}

#[test]
fn commands_are_limited_in_number() {
    let node = Node::start();
    create(&node);
    push(&node, "");
    let mut ids = Vec::new();
    for _ in 0..10 {
        ids.push(node.cortex(&["run", "-d", "-a", NAME, "exec sleep 1000"]));
    }
    let refused = node.run(&["run", "-a", NAME, "true"]).refused();
    refused.saying(&["10 commands of tool run", "attach ID --stop"]);
    node.cortex(&["attach", "--stop", "-a", NAME, ids[0].trim()]);
    wait_until("a place to be free", || node.run(&["run", "-a", NAME, "true"]).status.success());
}

#[test]
fn a_terminal_outlives_cuts_and_is_as_before_in_the_end() {
    let mut node = Node::start();
    create(&node);
    push(&node, "");
    let mut person = Person::sits_at(&node, &["sh"]);
    person.asks("echo before $((40 + 2))\n", "before 42");
    node.kill_nine();
    // What is typed meanwhile arrives.
    person.types("echo meanwhile $((40 + 3))\n");
    node.up();
    person.sees("meanwhile 43");
    person.asks("tty\n", "/dev/pts/");
    // By hand it is left like a connection of ssh, and the command is hung up on.
    let begun = node.path("begun");
    person.types(&format!("touch {}\n", begun.display()));
    await_file(&begun);
    person.types("\r~.");
    assert_eq!(person.leaves().code(), Some(255), "{}", person.seen);
    assert!(person.modes().contains(LocalModes::ICANON | LocalModes::ECHO), "it is as before");
    platform_says(&node, "its client went away");

    // So it is for somebody who is killed.
    let mut person = Person::sits_at(&node, &["sh"]);
    person.asks("echo again $((40 + 4))\n", "again 44");
    assert!(!person.modes().contains(LocalModes::ICANON), "it is raw meanwhile");
    let client = person.client();
    wait_until("the client to end", || {
        kill(client, Signal::TERM);
        person.has_left()
    });
    assert!(person.modes().contains(LocalModes::ICANON | LocalModes::ECHO), "it is as before");

    // A detached one with a terminal goes on when it is left.
    let id = node.cortex(&["run", "-d", "--tty", "-a", NAME, "sh"]);
    let mut person = Person::at(attach_command(&node, id.trim()));
    person.asks("echo third $((40 + 5)); A=kept\n", "third 45");
    person.types("\r~.");
    assert_eq!(person.leaves().code(), Some(0), "{}", person.seen);
    let mut person = Person::at(attach_command(&node, id.trim()));
    person.asks("echo it is $A\n", "it is kept");
    person.types("exit 6\n");
    assert_eq!(person.leaves().code(), Some(6), "{}", person.seen);
}

fn attach_command(node: &Node, id: &str) -> Command {
    let mut command = Command::new(binary());
    command.arg("--data-dir").arg(node.data()).args(["attach", "-a", NAME, id]);
    command
}

#[test]
fn what_speaks_another_version_is_told_so() {
    let node = Node::start();
    create(&node);
    push(&node, "");
    let socket = node.data().join("sockets/api");
    let mut curl = Command::new("curl");
    curl.arg("-s").arg("--unix-socket").arg(socket).args([
        "-X",
        "POST",
        "-H",
        "Connection: upgrade",
    ]);
    curl.args(["-H", "Upgrade: cortex-stream/1", &format!("http://cortex/v1/apps/{NAME}/run")]);
    let said = run(curl, "curl").succeeded().stdout;
    assert!(said.contains("upgrade_required") && said.contains("cortex-stream/2"), "{said}");
}
