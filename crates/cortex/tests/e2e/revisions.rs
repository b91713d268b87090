//! Pushes from Git, Mercurial and Bazaar, at any revision.

use std::path::Path;

use crate::node::{Node, alone_with_chosen_ports};
use crate::project::{of_files, tool};

struct Control {
    program: &'static str,
    begin: &'static [&'static [&'static str]],
    commit: &'static [&'static [&'static str]],
    /// The name that it gives its first revision.
    first: &'static str,
}

const GIT: Control = Control {
    program: "git",
    begin: &[
        &["init", "--quiet"],
        &["config", "user.name", "Tester"],
        &["config", "user.email", "tester@localhost"],
    ],
    commit: &[&["add", "."], &["commit", "--quiet", "-m", "a change"]],
    first: "HEAD~1",
};
const MERCURIAL: Control = Control {
    program: "hg",
    begin: &[&["init"]],
    commit: &[&["addremove", "--quiet"], &["commit", "-u", "Tester", "-m", "a change"]],
    first: "0",
};
const BAZAAR: Control = Control {
    program: "brz",
    begin: &[&["init", "--quiet"], &["whoami", "--branch", "Tester <tester@localhost>"]],
    commit: &[&["add", "--quiet"], &["commit", "--quiet", "-m", "a change"]],
    first: "1",
};

impl Control {
    fn all(&self, project: &Path, commands: &[&[&str]]) {
        for arguments in commands {
            tool(project, self.program, arguments);
        }
    }
}

fn pushes_any_revision(control: &Control, vcs: &str) {
    let _alone = alone_with_chosen_ports();
    let node = Node::start();
    let project = node.path("site");
    of_files(&project, &[("index.html", "<p>first edition</p>"), ("old.txt", "old")]);
    control.all(&project, control.begin);
    control.all(&project, control.commit);
    of_files(&project, &[("index.html", "<p>second edition</p>")]);
    std::fs::remove_file(project.join("old.txt")).unwrap();
    control.all(&project, control.commit);
    // These changes are not committed, and not pushed.
    of_files(&project, &[("index.html", "<p>third edition</p>"), ("stray.txt", "stray")]);
    let path = project.to_str().unwrap();

    let newest = node.run(&["push", path, "-a", "site"]).succeeded();
    let site = newest.site();
    site.get("/").assert_ok("second edition");
    assert_eq!(site.get("/stray.txt").status, 404, "only what is committed is pushed");
    assert_eq!(site.get("/old.txt").status, 404);
    newest.saying(&["not committed"]);

    node.cortex(&["push", path, "-a", "site", "--vcs", vcs, "--rev", control.first]);
    site.get("/").assert_ok("first edition");
    site.get("/old.txt").assert_ok("old");

    node.run(&["push", path, "-a", "site", "--rev", "no-such-thing"])
        .refused()
        .saying(&["no-such-thing"]);
    site.get("/").assert_ok("first edition");

    node.cortex(&["push", path, "-a", "site", "--vcs", "dir"]);
    site.get("/").assert_ok("third edition");
    site.get("/stray.txt").assert_ok("stray");
    for hidden in ["/.git/HEAD", "/.hg/requires", "/.bzr/README"] {
        assert_eq!(site.get(hidden).status, 404, "{hidden} is no part of the source");
    }
}

#[test]
fn revisions_of_git_are_pushed() {
    pushes_any_revision(&GIT, "git");
}

#[test]
fn revisions_of_mercurial_are_pushed() {
    pushes_any_revision(&MERCURIAL, "hg");
}

#[test]
fn revisions_of_bazaar_are_pushed() {
    pushes_any_revision(&BAZAAR, "bzr");
}

#[test]
fn a_directory_under_no_control_has_no_revisions() {
    let node = Node::start();
    let project = node.path("site");
    of_files(&project, &[("index.html", "<p>hi</p>")]);
    let path = project.to_str().unwrap();
    node.run(&["push", path, "-a", "site", "--rev", "HEAD"]).refused().saying(&["rev"]);
    node.run(&["push", path, "-a", "site", "--vcs", "git"]).refused().saying(&["git"]);
}

/// Asserts that what `.gitignore` names is left out when a plain directory is pushed.
#[test]
fn ignored_files_are_left_out() {
    let node = Node::start();
    let project = node.path("site");
    of_files(
        &project,
        &[("index.html", "<p>hi</p>"), (".gitignore", "*.log\n"), ("debug.log", "secret")],
    );
    let site = node.push(&project, "site");
    site.get("/").assert_ok("hi");
    assert_eq!(site.get("/debug.log").status, 404);
}
