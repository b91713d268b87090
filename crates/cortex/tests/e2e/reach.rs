//! People on computers of their own: an account whose home has nothing but what `cortex login` put
//! there works on a cluster by the node port alone.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::fixtures::cluster::{await_loads, cluster, id_of};
use crate::machine::free_port;
use crate::netns::lab::Host;
use crate::node::{Node, Outcome, Running, command_within, run};
use crate::project::of_files;
use crate::wait::{STATE_DEADLINE, wait_for};

pub const NAME: &str = "blog";
/// An application that counts aloud.
const COUNTER: &str = "import itertools, time
for n in itertools.count():
    print('line', n, flush=True)
    time.sleep(0.05)
";
const SERVER: &str = "web: python3 -m http.server $PORT --bind $HOST\n";
const PROCFILE: &str = "web: python3 -m http.server $PORT --bind $HOST\ncount: python3 count.py\n";

/// A computer elsewhere, with an account that has a home.
pub struct Laptop {
    home: TempDir,
    /// The words with which its command line begins; only set if it is on a network of its own.
    enter: Vec<String>,
    /// What it trusts besides; the path of certificates in PEM form.
    trusts: Option<String>,
}

impl Laptop {
    pub fn new() -> Laptop {
        let home = tempfile::tempdir().expect("a directory");
        Laptop { home, enter: Vec::new(), trusts: None }
    }

    /// Returns one on which command lines begin with these words, and which trusts this authority.
    pub fn within(enter: Vec<String>, authority: String) -> Laptop {
        Laptop { enter, trusts: Some(authority), ..Laptop::new() }
    }

    pub fn on(host: &Host) -> Laptop {
        Laptop { enter: host.enter(), ..Laptop::new() }
    }

    /// Returns the words with which a command line on it begins.
    pub fn enter(&self) -> &[String] {
        &self.enter
    }

    pub fn home(&self) -> &Path {
        self.home.path()
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command_within(&self.enter);
        command.env_clear().env("PATH", std::env::var_os("PATH").expect("a path"));
        command.env("HOME", self.home()).env("XDG_RUNTIME_DIR", self.home());
        command.envs(self.trusts.iter().map(|authority| ("SSL_CERT_FILE", authority)));
        command.args(arguments).current_dir(self.home());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Outcome {
        run(self.command(arguments), &format!("cortex {}", arguments.join(" ")))
    }

    #[track_caller]
    pub fn cortex(&self, arguments: &[&str]) -> String {
        self.run(arguments).succeeded().stdout
    }

    fn contexts(&self) -> PathBuf {
        self.home().join(".config/cortex/contexts.json")
    }

    /// Logs in with a line that was printed to be pasted.
    pub fn log_in(&self, line: &str) -> Outcome {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[0], "cortex", "{line}");
        self.run(&words[1..])
    }

    pub fn project(&self) -> PathBuf {
        let project = self.home().join(NAME);
        let files =
            [("Procfile", PROCFILE), ("count.py", COUNTER), ("index.html", "hello from a laptop")];
        of_files(&project, &files);
        project
    }
}

pub fn invite(node: &Node, arguments: &[&str]) -> String {
    node.cortex(&[&["users", "invite"], arguments].concat())
}

/// Follows a command's output in a file.
pub fn follow(laptop: &Laptop, arguments: &[&str], to: &Path) -> Running {
    let file = fs::File::create(to).expect("a file");
    let mut command = laptop.command(arguments);
    let errors = fs::File::create(to.with_extension("err")).expect("a file");
    command.stdin(Stdio::null()).stdout(file).stderr(errors);
    let child: Child = command.spawn().expect("it starts");
    Running(child)
}

#[track_caller]
pub fn check_whole(log: &Path, seen: &[u64]) {
    let in_order = seen.windows(2).all(|pair| pair[1] == pair[0] + 1);
    assert!(in_order, "{seen:?}\n{}", said(log));
}

/// Returns the numbers that were printed, of lines that are whole.
fn numbers(path: &Path) -> Vec<u64> {
    let text = fs::read_to_string(path).expect("it is there");
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let number = |line: &str| line.rsplit_once("line ")?.1.parse().ok();
    whole.lines().filter_map(number).collect()
}

pub fn await_number(path: &Path, least: u64) -> Vec<u64> {
    wait_for(&format!("line {least}"), STATE_DEADLINE, || {
        let numbers = numbers(path);
        match numbers.last() {
            Some(last) if *last >= least => Ok(numbers),
            last => Err(format!("{last:?}")),
        }
    })
}

#[test]
fn somebody_elsewhere_works_with_what_is_theirs_until_their_token_ends() {
    let [mut one, two] = cluster([&[], &[]]);
    await_loads(&[&one, &two]);
    for name in [NAME, "other"] {
        one.cortex(&["apps", "create", name, "--port", &free_port().to_string()]);
    }
    let laptop = Laptop::new();
    let line = invite(&one, &["ana", "--role", "developer", "-a", NAME]);
    let greeted = laptop.log_in(&line).succeeded();
    greeted.saying(&["Logged in to 127.0.0.1 as ana", "Commands go there"]);
    let mode = fs::metadata(laptop.contexts()).expect("it is kept").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // It is good once, also for somebody who took it down.
    Laptop::new().log_in(&line).refused().saying(&["was used", "users invite"]);

    let shown: Value = serde_json::from_str(&laptop.cortex(&["whoami", "--json"])).expect("JSON");
    assert_eq!((&shown["user"], &shown["machine"]), (&"ana".into(), &false.into()));
    assert_eq!(shown["nodes"].as_array().map(Vec::len), Some(2), "{shown}");

    let project = laptop.project();
    let pushed = laptop.run(&["push", project.to_str().expect("UTF-8"), "-a", NAME]).succeeded();
    assert!(pushed.stdout.starts_with("http://"), "{pushed:?}");
    // Of what the platform has nothing is sent again.
    fs::write(project.join("new.txt"), "new").expect("it can be written");
    let pushed = laptop.run(&["push", project.to_str().expect("UTF-8"), "-a", NAME]).succeeded();
    pushed.saying(&["1.0 kB of", "are new to the platform"]);
    laptop.cortex(&["scale", "-a", NAME, "web=1", "count=1"]);
    one.await_ready(NAME, "count", 1);
    let ran = laptop.run(&["run", "-a", NAME, "--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!(ran.status.code(), Some(7), "{ran:?}");
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("out\n", "err\n"));

    // She sees nothing of an application that runs beside hers.
    let other = one.path("other");
    of_files(&other, &[("Procfile", SERVER), ("index.html", "of somebody else")]);
    one.cortex(&["config", "set", "SECRET=of-somebody-else", "-a", "other"]);
    one.push_as_it_is(&other, "other").succeeded();
    let script = "cat /proc/*/environ | tr '\\0' '\\n'";
    let seen = laptop.cortex(&["run", "-a", NAME, "--", "sh", "-c", script]);
    assert!(seen.contains("CORTEX_") && !seen.contains("of-somebody-else"), "{seen}");

    // What is not hers is not there, and what is the platform's is refused.
    laptop.run(&["config", "set", "A=b", "-a", "other"]).refused().saying(&["no application"]);
    assert!(!laptop.cortex(&["apps"]).contains("other"));
    laptop.run(&["users"]).refused().saying(&["does not have the right", "owner"]);
    laptop.run(&["store", "ls", "app"]).refused().saying(&["owner of the machine"]);

    // The node that she speaks to dies: her log goes on with the other one, no line twice or lost.
    let log = laptop.home().join("log");
    let keeper = one.rows(NAME).into_iter().find(|row| row.process == "count");
    let runs_on_one = keeper.is_some_and(|row| row.node == id_of(&one));
    let following = follow(&laptop, &["logs", "-f", "-n", "5", "-p", "count", "-a", NAME], &log);
    await_number(&log, 20);
    if runs_on_one {
        // Its shim keeps the instance for its lease; the node comes back before that ends.
        one.kill_nine();
        one.up();
    } else {
        one.kill_nine();
    }
    let before = *numbers(&log).last().expect("there were some");
    let seen = await_number(&log, before + 40);
    check_whole(&log, &seen);
    if !runs_on_one {
        one.up();
    }
    laptop.cortex(&["ps", "-a", NAME]);

    // A revoked token is dead on all nodes, and what it began ends.
    two.cortex(&["tokens", "revoke", "ana", &token_name(&two)]);
    let mut following = following;
    wait_for("the log to end", STATE_DEADLINE, || match following.0.try_wait() {
        Ok(Some(status)) if !status.success() => Ok(()),
        other => Err(format!("{other:?}, {}", said(&log))),
    });
    assert!(said(&log).contains("was revoked"), "{}", said(&log));
    laptop.run(&["ps", "-a", NAME]).refused().saying(&["was revoked"]);

    let audit = two.cortex(&["audit", "-n", "200"]);
    for change in
        ["/v1/login", "/v1/apps/blog/releases", "/v1/apps/blog/scale", "/v1/apps/blog/run"]
    {
        let is_hers = |line: &str| line.contains("ana") && line.contains(change);
        assert!(audit.lines().any(is_hers), "{change} in\n{audit}");
    }
}

pub fn said(log: &Path) -> String {
    fs::read_to_string(log.with_extension("err")).unwrap_or_default()
}

/// Returns the name of ana's token that is good.
pub fn token_name(node: &Node) -> String {
    let rows: Vec<Value> = serde_json::from_str(&node.cortex(&["tokens", "--json"])).expect("JSON");
    let good = rows.iter().find(|row| row["user"] == "ana" && row["state"] == "valid");
    good.and_then(|row| row["name"].as_str()).expect("a token").to_string()
}

#[test]
fn nothing_is_sent_to_a_node_with_another_key_and_what_is_wrong_is_said() {
    let node = Node::start_with(&["--listen", &format!("127.0.0.1:{}", free_port())]);
    let laptop = Laptop::new();
    laptop.run(&["apps"]).refused().saying(&["no node is running", "cortex login"]);
    let line = invite(&node, &["ana", "--role", "owner"]);
    let word = line.trim().strip_prefix("cortex login ").expect("a line to paste");
    let (before, after) = word.split_once('#').expect("a fingerprint");
    let (pin, code) = after.split_once('.').expect("a code");

    let other = format!("{}{}", if pin.starts_with('0') { "1" } else { "0" }, &pin[1..]);
    let refused = laptop.run(&["login", &format!("{before}#{other}.{code}")]).refused();
    refused.saying(&["it shows the key", pin, &other, "nothing was sent"]);
    for (cut, said) in [
        (before, "not the whole line"),
        (&word[..word.len() - 1], "its length is wrong"),
        (&word.replace('#', "#\n"), "as one word"),
    ] {
        laptop.run(&["login", cut]).refused().saying(&[said, "again"]);
    }
    let nowhere = format!("127.0.0.1:{}#{pin}.{code}", free_port());
    laptop.run(&["login", &nowhere]).refused().saying(&["can be reached", "refused"]);
    laptop.run(&["login", word, "--name", "local"]).refused().saying(&["choose another"]);
    // Nothing of this used it up.
    laptop.run(&["login", word, "--name", "shop"]).succeeded();
    assert!(laptop.cortex(&["contexts"]).contains("shop"));
    assert_eq!(laptop.cortex(&["apps"]), "");
    // It is about this machine, whatever is in use.
    laptop.run(&["down"]).succeeded().saying(&["No node is running"]);
    laptop.run(&["--context", "nosuch", "apps"]).refused().saying(&["nosuch", "shop"]);

    // A program needs no context.
    let shown: Value = serde_json::from_str(&laptop.cortex(&["whoami", "--json"])).expect("JSON");
    let reach = &shown["nodes"][0];
    let url = format!(
        "https://{}#{}",
        reach["addresses"][0].as_str().expect("one"),
        reach["fingerprint"].as_str().expect("one")
    );
    let made = laptop.cortex(&["tokens", "create", "ci", "--role", "viewer"]);
    let program = Laptop::new();
    let mut command = program.command(&["whoami"]);
    command.env("CORTEX_URL", &url).env("CORTEX_TOKEN", made.trim());
    let shown = run(command, "cortex whoami").succeeded().stdout;
    assert!(shown.contains("ana") && shown.contains("limited to viewer"), "{shown}");
    let mut command = program.command(&["whoami"]);
    command.env("CORTEX_URL", &url);
    run(command, "cortex whoami").refused().saying(&["CORTEX_TOKEN", "both"]);

    // A data directory that is named is on this machine, whatever else is set.
    let mut command = program.command(&["--data-dir", "nowhere", "apps"]);
    command.env("CORTEX_URL", &url).env("CORTEX_CONTEXT", "x").env("CORTEX_TOKEN", made.trim());
    run(command, "cortex apps").refused().saying(&["no node is running"]);

    // Whoever guesses has to wait.
    let mut slowed = None;
    for _ in 0..40 {
        let mut command = program.command(&["whoami"]);
        let guess = access_core::TokenText::from_random(&[7; 64]).expect("a token");
        command.env("CORTEX_URL", &url).env("CORTEX_TOKEN", guess.as_str());
        let refused = run(command, "cortex whoami").refused();
        if refused.stderr.contains("too many") {
            slowed = Some(refused);
            break;
        }
    }
    slowed.expect("an end of the guesses").saying(&["try again in"]);
    // On the machine itself nobody waits.
    node.cortex(&["status"]);

    laptop.run(&["logout"]).refused().saying(&["--forget"]);
    laptop.run(&["logout", "--forget"]).succeeded();
    assert!(!laptop.cortex(&["contexts"]).contains("shop"));
}
