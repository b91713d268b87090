//! The rules for documents: what they link to and name is there, and the commands of the README
//! exist.

use std::collections::BTreeSet;
use std::fs;

use super::{assert_none, files, root, words};

/// Returns the targets of `[text](target)`.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for piece in text.split("](").skip(1) {
        if let Some(target) = piece.split(')').next() {
            found.push(target.to_string());
        }
    }
    found
}

#[test]
fn documents_link_to_what_exists() {
    let root = root();
    let mut dead = Vec::new();
    for file in files().into_iter().filter(|file| file.path.ends_with(".md")) {
        let folder = root.join(&file.path).parent().expect("a file has a folder").to_path_buf();
        for link in links(&file.text) {
            let target = link.split('#').next().unwrap_or_default();
            let elsewhere = link.starts_with("http://") || link.starts_with("https://");
            if !elsewhere && !target.is_empty() && !folder.join(target).exists() {
                dead.push(format!("{} -> {link}", file.path));
            }
        }
    }
    assert_none("documents link to files that exist", dead);
}

/// Checks paths in backticks that look like files of this repository.
#[test]
fn documents_name_files_that_exist() {
    let root = root();
    let mut dead = Vec::new();
    for file in files().into_iter().filter(|file| file.path.ends_with(".md")) {
        for (n, code) in file.text.split('`').enumerate() {
            let path = n % 2 == 1 && !code.contains([' ', '\n', '*', '{', '<', '$']);
            let ours = ["crates/", "docs/", "examples/", "tests/"];
            if path && ours.iter().any(|start| code.starts_with(start)) && !root.join(code).exists()
            {
                dead.push(format!("{}: {code}", file.path));
            }
        }
    }
    assert_none("documents name files that exist", dead);
}

/// Checks that a test follows each guide, that the README leads to it, and that it is no longer
/// than what somebody reads while typing.
#[test]
fn a_test_follows_each_guide() {
    const GUIDE_LINES_MAX: usize = 160;
    let all = files();
    let text_of = |path: &str| {
        let file = all.iter().find(|file| file.path == path);
        file.map_or_else(|| panic!("{path} is there"), |file| file.text.as_str())
    };
    let (readme, tests) = (text_of("README.md"), text_of("crates/cortex/tests/e2e/guides.rs"));
    let guides: Vec<_> = all.iter().filter(|file| file.path.starts_with("docs/guides/")).collect();
    assert!(guides.len() >= 9, "there are guides");
    let mut faults = Vec::new();
    for guide in guides {
        let name = guide.path.trim_start_matches("docs/guides/").trim_end_matches(".md");
        let test = format!("#[test]\nfn {}() {{", name.replace('-', "_"));
        let body = tests.split(&test).nth(1).and_then(|rest| rest.split("\n}").next());
        if !body.is_some_and(|body| body.contains(&format!("\"{name}\""))) {
            faults.push(format!("{}: guides.rs has no test that follows it", guide.path));
        }
        if !readme.contains(&format!("]({})", guide.path)) {
            faults.push(format!("{}: the README does not lead to it", guide.path));
        }
        if guide.text.lines().count() > GUIDE_LINES_MAX {
            faults.push(format!("{}: more than {GUIDE_LINES_MAX} lines", guide.path));
        }
    }
    assert_none("a test follows each guide, and the README leads to it", faults);
}

#[test]
fn documents_are_there() {
    let root = root();
    let expected = [
        "README.md",
        "ARCHITECTURE.md",
        "STYLE.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "cortex.example.toml",
        "docs/names.md",
        "docs/glossary.md",
        "test",
        ".ci/run",
    ];
    let missing = expected.iter().filter(|path| !root.join(path).exists());
    assert_none("every clone has these", missing.map(|path| path.to_string()).collect());
}

/// Checks that the command line knows every `cortex COMMAND` of the README.
#[test]
fn the_readmes_commands_exist() {
    let readme = fs::read_to_string(root().join("README.md")).expect("there is a README");
    let help = std::process::Command::new(env!("CARGO_BIN_EXE_cortex")).arg("--help").output();
    let help = String::from_utf8(help.expect("the binary runs").stdout).expect("help is text");
    let known: BTreeSet<&str> = help
        .lines()
        .filter(|line| line.starts_with("  "))
        .flat_map(|line| words(line).next())
        .collect();
    let used = readme.lines().filter_map(|line| {
        let line = line.trim().trim_start_matches("$ ");
        let rest = line.strip_prefix("cortex ").or_else(|| line.split(" -- ").nth(1));
        rest.and_then(|rest| words(rest).next())
    });
    let used: BTreeSet<&str> = used.collect();
    assert!(used.contains("up") && used.len() > 10, "the README shows the tour: {used:?}");
    let unknown = used.iter().filter(|command| !known.contains(*command));
    assert_none("the README's commands exist", unknown.map(|c| c.to_string()).collect());
}
