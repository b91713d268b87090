//! `git push cortex main`, with the Git of this machine, as users of Heroku do.

use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::fixtures::cluster::first;
use crate::machine::free_port;
use crate::node::{Node, Outcome, binary, run};
use crate::outside::Site;
use crate::project::of_files;

const NAME: &str = "blog";
const SERVER: &str = "web: python3 -m http.server $PORT --bind $HOST\n";

/// A repository of somebody who has logged in, in a home of their own.
struct WorkTree {
    home: TempDir,
    work: PathBuf,
}

impl WorkTree {
    fn logged_in(node: &Node) -> WorkTree {
        let home = tempfile::tempdir().expect("a directory");
        let work = home.path().join(NAME);
        let tree = WorkTree { home, work };
        of_files(&tree.work, &[("Procfile", SERVER), ("index.html", "one")]);
        let line = node.cortex(&["users", "invite", "ana", "--role", "developer"]);
        let words: Vec<&str> = line.split_whitespace().skip(1).collect();
        let mut command = Command::new(binary());
        command.args(words);
        tree.run(command, "cortex login").succeeded();
        for arguments in [
            &["init", "-q", "-b", "main"][..],
            &["config", "user.email", "ana@example.org"],
            &["config", "user.name", "ana"],
        ] {
            tree.git(arguments).succeeded();
        }
        tree.commit("first");
        tree
    }

    fn run(&self, mut command: Command, shown: &str) -> Outcome {
        let home = self.home.path();
        let path = std::env::var("PATH").expect("a path");
        command.env_clear().env("PATH", format!("{}/.local/bin:{path}", home.display()));
        command.env("HOME", home).env("XDG_RUNTIME_DIR", home).env("LANG", "C.UTF-8");
        command.current_dir(&self.work);
        run(command, shown)
    }

    fn git(&self, arguments: &[&str]) -> Outcome {
        let mut command = Command::new("git");
        command.args(arguments);
        self.run(command, &format!("git {}", arguments.join(" ")))
    }

    fn cortex(&self, arguments: &[&str]) -> Outcome {
        let mut command = Command::new(binary());
        command.args(arguments);
        self.run(command, &format!("cortex {}", arguments.join(" ")))
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.work.join(file), text).expect("a file");
    }

    fn commit(&self, message: &str) {
        self.git(&["add", "-A"]).succeeded();
        self.git(&["commit", "-q", "-m", message]).succeeded();
    }

    fn head(&self) -> String {
        self.git(&["rev-parse", "HEAD"]).succeeded().stdout.trim().to_string()
    }
}

#[test]
fn a_branch_is_pushed_as_to_heroku() {
    let node = first(&[]);
    node.cortex(&["apps", "create", NAME, "--port", &free_port().to_string()]);
    let tree = WorkTree::logged_in(&node);
    tree.cortex(&["git", "remote", "-a", NAME]).succeeded().saying(&["git push cortex main"]);
    assert!(tree.git(&["remote", "-v"]).stdout.contains("cortex://127.0.0.1/blog"));

    let tried = tree.git(&["push", "--dry-run", "cortex", "main"]).succeeded();
    assert!(tried.stderr.contains("[new branch]"), "{tried:?}");
    assert_eq!(node.cortex(&["releases", "-a", NAME]), "", "nothing was done");

    let pushed = tree.git(&["push", "cortex", "main"]).succeeded();
    for line in
        ["remote: -----> Pushing blog", "remote: =====> Application deployed:", "main -> main"]
    {
        assert!(pushed.stderr.contains(line), "{line} in {pushed:?}");
    }
    let releases = node.cortex(&["releases", "-a", NAME, "--json"]);
    assert!(releases.contains(&tree.head()), "{releases}");
    let again = tree.git(&["push", "cortex", "main"]).succeeded();
    assert!(again.stderr.contains("Everything up-to-date"), "{again:?}");

    // What is not committed is not pushed, and nobody is warned of it.
    tree.write("index.html", "two");
    tree.commit("second");
    tree.write("index.html", "not committed");
    let second = tree.git(&["push", "cortex", "HEAD:main"]).succeeded();
    assert!(!second.stderr.contains("Warning"), "{second:?}");
    check_served(&node, "two");
    tree.git(&["checkout", "-q", "index.html"]).succeeded();

    // A release that fails is a push that was rejected, and the old one serves on.
    tree.write("Procfile", "web: python3 -c 'exit(3)'\n");
    tree.commit("broken");
    let rejected = tree.git(&["push", "cortex", "main"]).refused();
    rejected.saying(&["! [remote rejected] main -> main (release v3 failed", "remote:  !"]);
    check_served(&node, "two");
    tree.write("Procfile", SERVER);
    tree.write("index.html", "three");
    tree.commit("mended");
    tree.git(&["push", "cortex", "main"]).succeeded();
    check_served(&node, "three");

    // History that was rewritten is pushed with a plus alone.
    tree.git(&["reset", "-q", "--hard", "HEAD~2"]).succeeded();
    tree.git(&["push", "cortex", "main"]).refused().saying(&["non-fast-forward"]);
    check_served(&node, "three");
    tree.git(&["push", "cortex", "+main"]).succeeded();
    check_served(&node, "two");

    for (refspec, said) in [
        ("HEAD:topic", "only the branch main"),
        (":main", "not deleted"),
        ("HEAD:refs/tags/v1", "only the branch main"),
    ] {
        tree.git(&["push", "cortex", refspec]).refused().saying(&[said]);
    }
    node.cortex(&["users", "remove", "ana"]);
    tree.write("index.html", "four");
    tree.commit("too late");
    tree.git(&["push", "cortex", "main"]).refused().saying(&["was revoked"]);
}

#[track_caller]
fn check_served(node: &Node, expected: &str) {
    let site = Site::parse(node.cortex(&["open", "-a", NAME]).trim());
    site.get("/index.html").assert_ok(expected);
}
