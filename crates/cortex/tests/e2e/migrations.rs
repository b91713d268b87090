//! Two nodes and one migration: whichever node dies and whoever pushes meanwhile, the release step
//! of one release never runs twice at once.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use crate::fixtures::cluster::{await_acquaintance, cluster, id_of};
use crate::machine::{Identity, free_port, identity, lives};
use crate::node::{Node, Outcome, binary, run};
use crate::project::of_files;
use crate::wait::{STATE_DEADLINE, wait_for, wait_until};

pub const NAME: &str = "shop";
const SERVER: &str = "import http.server, os
http.server.HTTPServer((os.environ['HOST'], int(os.environ['PORT'])),
    http.server.SimpleHTTPRequestHandler).serve_forever()
";

/// A release step that adds its beginning and its end to a file outside of all releases; it ends
/// when it is allowed to, with the status that it is told.
pub struct Migration {
    seen: PathBuf,
    may_end: PathBuf,
}

#[derive(Debug, Default)]
struct Runs {
    begun: usize,
    ended: usize,
    at_once_max: usize,
}

impl Migration {
    pub fn new(directory: &Path) -> Migration {
        Migration { seen: directory.join("seen"), may_end: directory.join("may-end") }
    }

    pub fn project(&self, target: &Path, count: usize) {
        let (seen, may_end) = (self.seen.display(), self.may_end.display());
        let step = format!(
            "echo begin $CORTEX_RELEASE_ID $CORTEX_NODE $$ >> '{seen}'\n\
             while [ ! -e '{may_end}' ]; do sleep 0.05; done\n\
             echo end $CORTEX_RELEASE_ID $CORTEX_NODE $$ >> '{seen}'\n\
             exit $(cat '{may_end}')\n"
        );
        let procfile = "release: exec sh step.sh\nweb: exec python3 server.py\n";
        let settings = format!("[processes.web]\ncount = {count}\n");
        let texts = [procfile, SERVER, &step, &settings];
        let names = ["Procfile", "server.py", "step.sh", "cortex.toml"];
        let files: Vec<(&str, &str)> = names.into_iter().zip(texts).collect();
        of_files(target, &files);
    }

    pub fn lines(&self) -> Vec<[String; 4]> {
        let text = std::fs::read_to_string(&self.seen).unwrap_or_default();
        let words = |line: &str| {
            let words: Vec<String> = line.split(' ').map(String::from).collect();
            words.try_into().unwrap_or_else(|words| panic!("{words:?}"))
        };
        text.lines().map(words).collect()
    }

    /// Returns the runs of each release.
    fn runs(&self) -> BTreeMap<String, Runs> {
        let mut all: BTreeMap<String, Runs> = BTreeMap::new();
        for [what, release, ..] in self.lines() {
            let runs = all.entry(release).or_default();
            match what.as_str() {
                "begin" => runs.begun += 1,
                _ => runs.ended += 1,
            }
            runs.at_once_max = runs.at_once_max.max(runs.begun - runs.ended);
        }
        all
    }

    pub fn ends(&self) {
        self.ends_with(0);
    }

    pub fn ends_with(&self, code: u8) {
        let whole = self.may_end.with_extension("new");
        std::fs::write(&whole, code.to_string()).expect("a file of the test's own");
        std::fs::rename(whole, &self.may_end).expect("the same");
    }

    /// Makes the steps that begin from now on wait until they may end.
    pub fn holds(&self) {
        std::fs::remove_file(&self.may_end).expect("a file of the test's own");
    }
}

pub fn push(node: &Node, project: &Path) -> JoinHandle<Outcome> {
    let (data, project) = (node.data(), project.to_path_buf());
    std::thread::spawn(move || {
        let mut command = std::process::Command::new(binary());
        command.arg("--data-dir").arg(data).args(["push", "-a", NAME]).arg(project);
        run(command, "push")
    })
}

fn pair() -> (Node, Node) {
    let [one, two] = cluster([&[], &[]]);
    one.cortex(&["apps", "create", NAME, "--port", &free_port().to_string()]);
    wait_for("the other one to know it", STATE_DEADLINE, || {
        let apps = two.cortex(&["apps"]);
        if apps.contains(NAME) { Ok(()) } else { Err(apps) }
    });
    (one, two)
}

pub fn values(node: &Node) -> BTreeSet<OsString> {
    let files = std::fs::read_dir(node.data().join("values")).expect("a node's large values");
    files.map(|file| file.expect("an entry").file_name()).collect()
}

#[test]
fn of_two_pushes_at_once_each_is_migrated_once_and_one_serves() {
    let (one, two) = pair();
    let migration = Migration::new(one.directory.path());
    let project = one.path(NAME);
    migration.project(&project, 1);
    let pushes = [push(&one, &project), push(&two, &project)];
    wait_until("a step to begin", || !migration.lines().is_empty());
    migration.ends();
    let pushed = pushes.map(|push| push.join().expect("it ends"));
    assert!(pushed.iter().any(|push| push.status.success()), "{pushed:#?}");
    // Both are told which release serves.
    let serving = wait_for("one release to serve", STATE_DEADLINE, || {
        let (a, b) = (one.ready(NAME, "web"), two.ready(NAME, "web"));
        let rows: Vec<_> = a.iter().chain(&b).map(|row| row.release.clone()).collect();
        match &rows[..] {
            [here, there] if here == there => Ok(here.clone()),
            _ => Err(format!("{rows:?}")),
        }
    });
    let runs = migration.runs();
    for (release, runs) in &runs {
        assert_eq!(
            (runs.begun, runs.ended, runs.at_once_max),
            (1, 1, 1),
            "{release}: {:?}",
            migration.lines()
        );
    }
    // It is called by its number alone where no other one has that.
    let is_it = |id: &String| *id == serving || id.starts_with(&format!("{serving}."));
    assert!(runs.keys().any(is_it), "{serving} serves, of {runs:?}");
}

/// Asserts that a step lives on under its shim when its node process dies alone, and is not run
/// beside itself.
#[test]
fn a_migration_whose_node_dies_is_run_again_and_never_twice_at_once() {
    let (mut one, two) = pair();
    let migration = Migration::new(two.directory.path());
    let project = one.path(NAME);
    migration.project(&project, 1);
    let pushed = push(&one, &project);
    let step: Identity = wait_for("the step to run", STATE_DEADLINE, || {
        let lines = migration.lines();
        let [[_, _, node, pid]] = &lines[..] else { return Err(format!("{lines:?}")) };
        assert_eq!(*node, id_of(&one));
        identity(pid.parse().expect("a pid")).ok_or_else(|| "it has ended".into())
    });
    // No other node can go on with a release that only one has.
    wait_until("the release's files to be on both", || values(&two).is_superset(&values(&one)));
    one.kill_nine();
    assert!(lives(step), "it is under a shim");
    pushed.join().expect("it ends").refused();
    let again = wait_for("the other one to go on", STATE_DEADLINE, || {
        let lines = migration.lines();
        if lines.len() > 1 { Ok(lines) } else { Err(format!("{lines:?}")) }
    });
    assert!(!lives(step), "two of them run at once: {again:?}");
    assert_eq!((&again[1][0], &again[1][2]), (&"begin".to_string(), &id_of(&two)), "{again:?}");
    assert_eq!(again[0][1], again[1][1], "the same release");
    migration.ends();
    two.await_ready(NAME, "web", 1);
    one.up();
    await_acquaintance(&[&one, &two]);
    one.await_ready(NAME, "web", 1);
    let lines = migration.lines();
    assert_eq!(lines.len(), 3, "what has ended is not begun again: {lines:?}");
}
