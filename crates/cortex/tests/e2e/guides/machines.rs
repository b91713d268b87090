//! The machines of a guide: hosts of a network of their own, and on each a shell in a home in
//! which there is nothing yet.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::frameworks::PACKAGES;
use crate::machine::processes_below;
use crate::netns::lab::NETWORK;
use crate::node::{binary, kill_nine};
use crate::wait::holds_within;

/// What guides call their reader and her home, and the network of the machines: addresses that are
/// set aside for documents (RFC 5737).
const HOME: &str = "/home/ana";
const USER: &str = "ana";
const SHOWN_NETWORK: &str = "192.0.2";
/// The time limit for one command: a push may build for long on a busy machine.
const COMMAND_DEADLINE: Duration = Duration::from_secs(600);
/// The time limit for what a guide started to be gone after `cortex down`.
const END_DEADLINE: Duration = Duration::from_secs(10);

/// A shell of somebody on a machine.
pub struct Machine {
    shell: Child,
    home: TempDir,
    commands: u32,
}

/// What came of a command.
pub struct Printed {
    pub succeeded: bool,
    pub text: String,
}

impl Machine {
    /// Starts a shell on a host, by a command line that begins with these words, with variables
    /// of its own. The host has a name, and a way to others by which it knows its address.
    pub fn start(name: &str, enter: &[String], variables: &[(&str, String)]) -> Machine {
        let home = TempDir::with_prefix("cortex-guide-").expect("a temporary directory");
        let script = format!(
            "hostname {name}; ip route replace default dev eth0; exec bash --noprofile --norc"
        );
        let mut shell = Command::new(&enter[0]);
        shell.args(&enter[1..]).args(["unshare", "--uts", "sh", "-ec", &script]);
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if name.starts_with("CORTEX_") || name.starts_with("XDG_") {
                shell.env_remove(name);
            }
        }
        let own = home.path().join(".run");
        fs::create_dir(&own).expect("a directory");
        share_packages(home.path());
        let mut path = vec![binary().parent().expect("it lies somewhere").to_path_buf()];
        path.extend(std::env::split_paths(&std::env::var_os("PATH").expect("a PATH")));
        shell.env("PATH", std::env::join_paths(path).expect("a PATH"));
        shell.env("HOME", home.path()).env("XDG_RUNTIME_DIR", own.join("user"));
        shell.envs(variables.iter().map(|(name, value)| (name, value)));
        fs::create_dir(own.join("user")).expect("a directory");
        private(&own.join("user"));
        shell.current_dir(home.path()).stdin(Stdio::piped());
        let log = File::create(own.join("shell")).expect("a file");
        shell.stdout(log.try_clone().expect("the same file")).stderr(log);
        let shell = shell.spawn().expect("bash starts");
        Machine { shell, home, commands: 0 }
    }

    pub fn home(&self) -> &Path {
        self.home.path()
    }

    fn own(&self, name: &str) -> PathBuf {
        self.home.path().join(".run").join(name)
    }

    /// Runs a command in the shell, to its end.
    pub fn run(&mut self, command: &str) -> Printed {
        self.commands += 1;
        let [script, out, status, ended] =
            ["script", "out", "status", "ended"].map(|name| self.own(name));
        fs::remove_file(&ended).ok();
        fs::write(&script, self.real(command)).expect("a file");
        let shown = |path: &Path| path.display().to_string();
        let [script, status, ended_at] = [&script, &status, &ended].map(|path| shown(path));
        let line = format!(
            ". {script} </dev/null >{} 2>&1; echo $? >{status}; mv {status} {ended_at}\n",
            shown(&out)
        );
        self.shell.stdin.as_mut().expect("it is piped").write_all(line.as_bytes()).expect("a pipe");
        let in_time = holds_within(COMMAND_DEADLINE, || ended.exists());
        let text = String::from_utf8_lossy(&fs::read(&out).unwrap_or_default()).into_owned();
        assert!(in_time, "`{command}` did not end; it printed:\n{text}");
        let code = fs::read_to_string(&ended).expect("it is there");
        Printed { succeeded: code.trim() == "0", text: self.shown(&text) }
    }

    /// Writes a file into the directory in which the shell is.
    pub fn write(&mut self, path: &str, text: &str) {
        let directory = self.run("pwd").text;
        let path = PathBuf::from(self.real(directory.trim())).join(path);
        fs::create_dir_all(path.parent().expect("it lies somewhere")).expect("a directory");
        fs::write(&path, self.real(text)).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }

    fn real(&self, text: &str) -> String {
        let home = self.home.path().display().to_string();
        text.replace(HOME, &home).replace(&format!("{SHOWN_NETWORK}."), &format!("{NETWORK}."))
    }

    fn shown(&self, text: &str) -> String {
        let home = self.home.path().display().to_string();
        // In a namespace of one's own one is root, and that stands in tables.
        let text = text.replace("  root  ", &format!("  {USER}  "));
        text.replace(&home, HOME).replace(&format!("{NETWORK}."), &format!("{SHOWN_NETWORK}."))
    }

    pub fn log(&self) -> String {
        let log = self.home.path().join(".local/share/cortex/node.log");
        String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned()
    }
}

/// Lets the node in a home find what other nodes of this run have fetched.
fn share_packages(home: &Path) {
    let Some(packages) = std::env::var_os(PACKAGES).map(PathBuf::from) else { return };
    let data = home.join(".local/share/cortex");
    fs::create_dir_all(&packages).expect("a directory of the run's own");
    fs::create_dir_all(&data).expect("a directory");
    private(&data);
    symlink(&packages, data.join("cache")).expect("there is none yet");
}

fn private(directory: &Path) {
    let mode = fs::Permissions::from_mode(0o700);
    fs::set_permissions(directory, mode).expect("a directory of the test's own");
}

impl Drop for Machine {
    fn drop(&mut self) {
        // A guide ends by stopping what it started; one that failed has not come to that.
        if std::thread::panicking() {
            let down = AssertUnwindSafe(|| self.run("cortex down").succeeded);
            catch_unwind(down).ok();
        }
        drop(self.shell.stdin.take());
        self.shell.kill().ok();
        self.shell.wait().ok();
        let ended = holds_within(END_DEADLINE, || processes_below(self.home.path()).is_empty());
        let left = processes_below(self.home.path());
        left.iter().for_each(|(pid, _)| kill_nine(*pid));
        if std::thread::panicking() {
            eprintln!("--- the node's log:\n{}---", self.log());
        } else {
            assert!(ended, "the guide leaves processes behind: {left:?}");
        }
    }
}
