//! `cortex install`: what it writes, that it takes exactly that back, and that what it wrote brings
//! a node back with all it ran after everything was killed. `crontab` and `systemctl` are scripts
//! of the test, so that nothing of the machine's own is touched.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::machine::{free_port, processes_below};
use crate::node::{Node, Outcome, binary, run};
use crate::project::copy_of_example;
use crate::wait::{STATE_DEADLINE, wait_for};

/// A `crontab` that keeps one table in a file, as the real one does for each user.
const CRONTAB: &str = r#"#!/bin/sh
file=$(dirname "$0")/../crontab
case $1 in
  -l) cat "$file" 2>/dev/null || { echo "no crontab for me" >&2; exit 1; } ;;
  -) cat > "$file" ;;
  *) exit 2 ;;
esac
"#;
/// A `systemctl` that records its arguments.
const SYSTEMCTL: &str = r#"#!/bin/sh
echo "$@" >> "$(dirname "$0")/../systemctl"
"#;

/// The machine as `cortex install` sees it.
struct Host {
    directory: PathBuf,
}

impl Host {
    fn with(directory: &Path, tools: &[(&str, &str)]) -> Host {
        let bin = directory.join("tools");
        fs::create_dir_all(&bin).expect("a directory");
        for (name, script) in tools {
            fs::write(bin.join(name), script).expect("a script");
            let executable = fs::Permissions::from_mode(0o755);
            fs::set_permissions(bin.join(name), executable).expect("its mode");
        }
        // No tool of the machine's own is found except those that the scripts themselves need.
        for name in ["sh", "cat", "dirname", "env", "python3"] {
            let real = which(name);
            std::os::unix::fs::symlink(real, bin.join(name)).expect("a link");
        }
        Host { directory: directory.to_path_buf() }
    }

    fn install(&self, data: &Path, arguments: &[&str]) -> Outcome {
        let mut command = Command::new(binary());
        command.env_clear().env("HOME", self.directory.join("home"));
        command.env("PATH", self.directory.join("tools"));
        command.args(["install", "--data-dir"]).arg(data).args(arguments);
        run(command, &format!("cortex install {}", arguments.join(" ")))
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.directory.join(name)).unwrap_or_default()
    }

    fn units(&self) -> Vec<PathBuf> {
        let units = self.directory.join("home/.config/systemd/user");
        let entries = fs::read_dir(units).map(|entries| entries.flatten().collect::<Vec<_>>());
        entries.unwrap_or_default().iter().map(|entry| entry.path()).collect()
    }
}

fn which(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").expect("a PATH");
    let found = std::env::split_paths(&path).map(|directory| directory.join(name));
    found.into_iter().find(|path| path.is_file()).unwrap_or_else(|| panic!("no {name}"))
}

fn json(outcome: Outcome) -> Value {
    let outcome = outcome.succeeded();
    serde_json::from_str(&outcome.stdout).unwrap_or_else(|e| panic!("{e}: {outcome:#?}"))
}

/// Takes everything away that a reboot would: all processes, and what is in the runtime directory.
fn lose_everything(node: &mut Node) {
    let sockets = fs::read_link(node.data().join("sockets")).expect("where the sockets are");
    node.kill_nine();
    wait_for("all processes to be killed", STATE_DEADLINE, || {
        let left = processes_below(&node.data());
        for (pid, _) in &left {
            let pid = rustix::process::Pid::from_raw(*pid as i32).expect("a pid is not 0");
            rustix::process::kill_process(pid, Signal::KILL).ok();
        }
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
    fs::remove_dir_all(sockets).expect("they can be removed");
}

#[test]
fn a_crontab_line_brings_everything_back_after_a_reboot() {
    let mut node = Node::start_with(&["--threads", "2"]);
    let project = node.path("hello");
    copy_of_example("hello", &project);
    let site = node.push(&project, "hello");
    node.await_ready("hello", "web", 4);
    let host = Host::with(&node.path("host"), &[("crontab", CRONTAB)]);
    fs::write(node.path("host/crontab"), "MAILTO=me\n5 * * * * true\n").expect("a crontab");

    let links = node.path("links");
    let links = links.to_str().expect("text");
    let shown = host.install(&node.data(), &["--print"]).succeeded().stdout;
    assert!(shown.starts_with("@reboot "), "{shown}");
    assert!(!host.text("crontab").contains("@reboot"), "--print writes nothing");
    let said = json(host.install(&node.data(), &["--links", links, "--json"]));
    assert_eq!((&said["how"], &said["written"]), (&"crontab".into(), &true.into()));
    let once = host.text("crontab");
    host.install(&node.data(), &["--links", links]).succeeded();
    assert_eq!(host.text("crontab"), once, "a second time changes nothing");
    assert_eq!(once.lines().count(), 3, "{once}");
    let version = |name: &str| {
        let path = node.path("links").join(name);
        let mut command = Command::new(path);
        command.arg("--version");
        run(command, name).succeeded().stdout
    };
    assert!(version("cortex").starts_with("cortex "));
    assert!(version("vera").starts_with("vera "));

    lose_everything(&mut node);
    // The line is run as cron does it: in its own environment, with the command given to sh.
    let command = once.lines().find_map(|line| line.strip_prefix("@reboot ")).expect("our line");
    let mut cron = Command::new("/bin/sh");
    cron.env_clear().env("HOME", node.path("host/home")).env("PATH", "/usr/bin:/bin");
    cron.arg("-c").arg(command.replace("\\%", "%")).current_dir("/");
    run(cron, command).succeeded();
    node.await_ready("hello", "web", 4);
    site.get("/").assert_ok("Hello from");
    node.cortex(&["down"]);

    host.install(&node.data(), &["--uninstall", "--links", links]).succeeded();
    assert_eq!(host.text("crontab"), "MAILTO=me\n5 * * * * true\n");
    assert_eq!(fs::read_dir(links).expect("it stays").count(), 0);
    host.install(&node.data(), &["--uninstall"]).succeeded().saying(&["nothing was installed"]);
}

#[test]
fn a_unit_starts_the_node_as_it_was_started() {
    let mut node = Node::start_with(&["--threads", "1"]);
    let project = node.path("hello");
    copy_of_example("hello", &project);
    let site = node.push(&project, "hello");
    node.await_ready("hello", "web", 4);
    let tools = [("systemctl", SYSTEMCTL), ("crontab", CRONTAB)];
    let host = Host::with(&node.path("host"), &tools);
    let said = json(host.install(&node.data(), &["--json"]));
    assert_eq!(said["how"], "systemd");
    let units = host.units();
    assert_eq!(units.len(), 1, "{units:?}");
    let unit = fs::read_to_string(&units[0]).expect("it was written");
    assert_eq!(said["text"].as_str(), Some(unit.as_str()));
    let name = units[0].file_name().and_then(|name| name.to_str()).expect("text").to_owned();
    let told = host.text("systemctl");
    assert!(told.ends_with(&format!("--user daemon-reload\n--user enable {name}\n")), "{told}");
    assert!(host.text("crontab").is_empty());

    lose_everything(&mut node);
    let quoted = |key: &str| {
        let line = unit.lines().find_map(|line| line.strip_prefix(key)).expect("a line of it");
        line.trim_matches('"').to_owned()
    };
    let command = quoted("ExecStart=");
    let mut words = command.split("\" \"");
    let mut manager = Command::new(words.next().expect("a program"));
    manager.env_clear().env("HOME", node.path("host/home")).args(words).current_dir("/");
    let path = quoted("Environment=");
    manager.env("PATH", path.strip_prefix("PATH=").expect("a PATH"));
    node.up_by(manager);
    node.await_ready("hello", "web", 4);
    site.get("/").assert_ok("Hello from");
    node.down();

    host.install(&node.data(), &["--uninstall"]).succeeded();
    assert!(host.units().is_empty());
    let told = host.text("systemctl");
    assert!(told.ends_with(&format!("--user disable {name}\n--user daemon-reload\n")), "{told}");
}

#[test]
fn what_cannot_be_installed_is_refused() {
    let directory = tempfile::TempDir::with_prefix("cortex-e2e-").expect("a directory");
    let data = directory.path().join("data");
    let bare = Host::with(&directory.path().join("bare"), &[]);
    bare.install(&data, &[]).refused().saying(&["neither", "--print"]);
    let host = Host::with(&directory.path().join("host"), &[("crontab", CRONTAB)]);
    let address = format!("--http=127.0.0.1:{}", free_port());
    host.install(&data, &["--", "--htp=x"]).refused().saying(&["--htp"]);
    host.install(&data, &["--", "--detach"]).refused().saying(&["--detach"]);
    let links = directory.path().join("links");
    fs::create_dir_all(&links).expect("a directory");
    fs::write(links.join("vera"), "somebody's").expect("a file");
    let links = links.to_str().expect("text");
    let asked = ["--links", links, "--", address.as_str()];
    host.install(&data, &asked).refused().saying(&["vera", "remove it"]);
    // The node never ran, and has the options that were asked for.
    host.install(&data, &["--", &address]).succeeded();
    assert!(host.text("crontab").contains(&address), "{}", host.text("crontab"));
    let failing = "#!/bin/sh\necho 'you are not allowed to use this program' >&2\nexit 1\n";
    let denied = Host::with(&directory.path().join("denied"), &[("crontab", failing)]);
    denied.install(&data, &[]).refused().saying(&["not allowed"]);
    assert!(processes_below(&data).is_empty(), "installing starts nothing");
}
