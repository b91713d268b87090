//! Tests that pack directories and real repositories, and read the archives back.

mod work_trees;

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use super::{Source, Vcs};

/// The mode and content of each file by path.
type Files = BTreeMap<String, (u32, String)>;

fn bytes(directory: &Path, vcs: Vcs, revision: Option<&str>) -> anyhow::Result<Vec<u8>> {
    let mut archive = Vec::new();
    Source::find(directory, vcs, revision)?.write(&mut archive, u64::MAX)?;
    Ok(archive)
}

fn files(directory: &Path, vcs: Vcs, revision: Option<&str>) -> Files {
    let archive = bytes(directory, vcs, revision).unwrap();
    let mut files = Files::new();
    for entry in tar::Archive::new(&archive[..]).entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().to_string_lossy().into_owned();
        let mut text = String::new();
        match entry.header().entry_type() {
            kind if kind.is_file() => drop(entry.read_to_string(&mut text).unwrap()),
            kind if kind.is_symlink() => {
                text = format!("-> {}", entry.link_name().unwrap().unwrap().display());
            }
            _ => continue,
        }
        files.insert(path, (entry.header().mode().unwrap() & 0o111, text));
    }
    files
}

fn names(files: &Files) -> Vec<&str> {
    files.keys().map(String::as_str).collect()
}

fn error(directory: &Path, vcs: Vcs, revision: Option<&str>) -> String {
    format!("{:#}", bytes(directory, vcs, revision).unwrap_err())
}

fn write(directory: &Path, path: &str, text: &str) {
    let path = directory.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn run(directory: &Path, line: &[&str]) -> String {
    let output = Command::new(line[0])
        .args(&line[1..])
        .current_dir(directory)
        .env("HGPLAIN", "1")
        .env("HGUSER", "Ada <ada@example.com>")
        .env("BRZ_EMAIL", "Ada <ada@example.com>")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .output()
        .unwrap_or_else(|error| panic!("{line:?}: {error}"));
    assert!(output.status.success(), "{line:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_string()
}

#[test]
fn a_directory_is_packed_without_what_is_ignored() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    write(root, "app.py", "x");
    write(root, "start.sh", "#!/bin/sh");
    fs::set_permissions(root.join("start.sh"), fs::Permissions::from_mode(0o700)).unwrap();
    write(root, ".hidden", "seen");
    write(root, ".gitignore", "*.pyc\n/secret\n");
    write(root, ".slugignore", "docs\n");
    write(root, ".cortexignore", "big.bin\n");
    for ignored in ["a.pyc", "secret", "docs/x", "big.bin", ".git/config", ".hg/x", ".bzr/x"] {
        write(root, ignored, "no");
    }
    write(root, "env/pyvenv.cfg", "home = /usr/bin");
    write(root, "env/bin/python", "no");
    write(root, &format!("{}/deep.txt", "long".repeat(60)), "deep");
    write(root, "odd name \u{e4}\n*.txt", "odd");
    symlink("app.py", root.join("link")).unwrap();
    let files = files(root, Vcs::Dir, None);
    let long = format!("{}/deep.txt", "long".repeat(60));
    let expected = [
        ".cortexignore",
        ".gitignore",
        ".hidden",
        ".slugignore",
        "app.py",
        "link",
        long.as_str(),
        "odd name \u{e4}\n*.txt",
        "start.sh",
    ];
    assert_eq!(names(&files), expected);
    assert_eq!(files["app.py"], (0, "x".into()));
    assert_eq!(files["start.sh"].0, 0o111);
    assert_eq!(files["link"].1, "-> app.py");
}

const PATHS: [&str; 28] = [
    "a.log",
    "b.txt",
    "sub/a.log",
    "sub/deep/a.log",
    "sub/deep/b.txt",
    "build/x",
    "sub/build/y",
    "build.txt",
    "#hash",
    "!bang",
    "end ",
    "end",
    "a-b",
    "a]b",
    "a[b",
    "ab",
    "abc",
    "a*c",
    "ac",
    "x/y/z",
    "x/z",
    "x/q/r/z",
    "back\\slash",
    "foo",
    "dir/foo/bar",
    "dir/foobar",
    "ä.log",
    "sub/.k",
];
const PATTERNS: [&str; 66] = [
    "*.log",
    "/a.log",
    "sub/a.log",
    "sub/",
    "build",
    "build/",
    "/build",
    "sub/*.log",
    "sub/**",
    "**/a.log",
    "**/deep/",
    "sub/**/a.log",
    "x/**/z",
    "**/z",
    "x/*/z",
    "/x/",
    "\\#hash",
    "#hash",
    "\\!bang",
    "!bang",
    "end ",
    "end\\ ",
    "a?b",
    "a[-]b",
    "a[]]b",
    "a[[]b",
    "a[!-]b",
    "a[^-]b",
    "a[a-z]c",
    "a[z-a]c",
    "ab[",
    "a\\*c",
    "a*c",
    "a**c",
    "*",
    "/*",
    "**",
    "/**",
    "foo",
    "foo/",
    "foo/*",
    "dir/foo",
    "dir/foo*",
    "b*",
    "?",
    "*/",
    "/",
    "",
    "  ",
    "back\\\\slash",
    "back\\",
    "[a-b]*",
    "*\n!*.log",
    "*\n!*/\n!*.log",
    "sub/*\n!sub/deep/",
    "/*\n!/x",
    "*.log\n!/a.log",
    "!a.log\n*.log",
    "\u{feff}*.log",
    "*.log\r",
    "ä*",
    "sub/.*",
    "x/**/q/**/z",
    "**/**/z",
    "x/**",
    "**/foo/**",
];

/// Checks that Git itself agrees on what is ignored, also in a directory that it does not know.
#[test]
fn what_is_ignored_is_what_git_ignores() {
    let (directory, plain) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let root = directory.path();
    run(root, &["git", "init", "-q"]);
    for path in PATHS {
        write(root, path, "text");
        write(plain.path(), path, "text");
    }
    for pattern in PATTERNS {
        write(root, ".gitignore", pattern);
        write(plain.path(), ".gitignore", pattern);
        let listed = run(root, &["git", "ls-files", "-o", "-z", "--exclude-standard"]);
        let mut expected: Vec<&str> = listed.split('\0').filter(|name| !name.is_empty()).collect();
        expected.sort_unstable();
        assert_eq!(names(&files(root, Vcs::Dir, None)), expected, "{pattern:?}");
        assert_eq!(names(&files(plain.path(), Vcs::Dir, None)), expected, "{pattern:?}");
    }
    // The nearer file wins, and ours win over Git's.
    write(root, ".gitignore", "*.log\n");
    write(root, "sub/.gitignore", "!a.log\n");
    write(root, ".cortexignore", "!/b.txt\n/sub/deep\n");
    write(root, "sub/.slugignore", "build\n");
    let packed = files(root, Vcs::Dir, None);
    let has = |name: &str| packed.contains_key(name);
    assert!(!has("a.log") && has("sub/a.log") && has("b.txt"), "{:?}", names(&packed));
    assert!(!has("sub/deep/b.txt") && !has("sub/build/y") && has("build/x"), "{packed:?}");
}

#[test]
fn an_unchanged_directory_gives_the_same_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = (directory.path().join("a"), directory.path().join("b"));
    for (root, order) in [(&first, ["x", "sub/y", "z"]), (&second, ["z", "sub/y", "x"])] {
        order.iter().for_each(|path| write(root, path, path));
    }
    let old = fs::File::open(second.join("x")).unwrap();
    old.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    let packed = bytes(&first, Vcs::Auto, None).unwrap();
    assert_eq!(packed, bytes(&second, Vcs::Auto, None).unwrap());
    write(&second, "x", "changed");
    assert_ne!(packed, bytes(&second, Vcs::Auto, None).unwrap());
}

#[test]
fn links_that_lead_outside_are_named() {
    let directory = tempfile::tempdir().unwrap();
    for target in ["/etc/passwd", "../outside", "sub/../../outside"] {
        let root = directory.path().join("app");
        fs::create_dir_all(root.join("sub")).unwrap();
        symlink(target, root.join("leak")).unwrap();
        let error = error(&root, Vcs::Dir, None);
        assert!(error.contains("leak") && error.contains("outside"), "{target}: {error}");
        fs::remove_dir_all(root).unwrap();
    }
}

#[test]
fn a_pipe_is_no_source_and_a_missing_directory_an_error() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "app.py", "x");
    run(directory.path(), &["mkfifo", "pipe"]);
    assert_eq!(names(&files(directory.path(), Vcs::Auto, None)), ["app.py"]);
    let missing = error(&directory.path().join("none"), Vcs::Auto, None);
    assert!(missing.contains("none cannot be pushed"), "{missing}");
    let file = error(&directory.path().join("app.py"), Vcs::Auto, None);
    assert!(file.contains("is not a directory"), "{file}");
    let revision = error(directory.path(), Vcs::Auto, Some("v1"));
    assert!(revision.contains("--rev"), "{revision}");
}

/// Checks the message of a failing read; root reads everything, so nothing fails there.
#[test]
fn an_unreadable_file_is_named() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "app.py", "x");
    let secret = directory.path().join("closed");
    fs::create_dir(&secret).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o000)).unwrap();
    let packed = bytes(directory.path(), Vcs::Dir, None);
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o700)).unwrap();
    match rustix::process::getuid().is_root() {
        true => assert!(packed.is_ok()),
        false => assert!(format!("{:#}", packed.unwrap_err()).contains("closed")),
    }
}

/// Checks a repository with two revisions, `app.py` "one" and "two", and an uncommitted "three".
fn check_revisions(root: &Path, vcs: Vcs, first: &str) {
    let current = files(root, Vcs::Auto, None);
    assert_eq!(names(&current), ["app.py", "start.sh"]);
    assert_eq!(current["app.py"].1, "two");
    assert_eq!(current["start.sh"].0, 0o111);
    assert_eq!(files(root, vcs, Some(first))["app.py"].1, "one");
    assert_eq!(files(root, Vcs::Dir, None)["app.py"].1, "three");
    let same = bytes(root, vcs, None).unwrap();
    assert_eq!(same, bytes(root, vcs, None).unwrap());
    let source = Source::find(root, vcs, None).unwrap();
    let said = source.uncommitted.as_deref().unwrap_or_default();
    assert!(said.contains("not committed"), "{source:?}");
    assert!(source.revision.is_some_and(|id| !id.is_empty()));
    for bad in ["no-such-revision", "--output=/tmp/x", ""] {
        assert!(error(root, vcs, Some(bad)).contains("revision"), "{bad}");
    }
}

fn first_version(root: &Path) {
    write(root, "app.py", "one");
    write(root, "start.sh", "#!/bin/sh");
    fs::set_permissions(root.join("start.sh"), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn git_revisions_are_packed() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let git = |arguments: &[&str]| {
        let identity = ["git", "-c", "user.name=Ada", "-c", "user.email=ada@example.com"];
        run(root, &[&identity, arguments].concat())
    };
    git(&["init", "-q"]);
    let empty = error(root, Vcs::Auto, None);
    assert!(empty.contains("no revision"), "{empty}");
    first_version(root);
    git(&["add", "."]);
    git(&["commit", "-qm", "one"]);
    let first = git(&["rev-parse", "HEAD"]);
    write(root, "app.py", "two");
    git(&["commit", "-qam", "two"]);
    write(root, "app.py", "three");
    check_revisions(root, Vcs::Git, &first);
    assert_eq!(files(root, Vcs::Auto, Some("HEAD~1"))["app.py"].1, "one");
}

#[test]
fn mercurial_revisions_are_packed() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    run(root, &["hg", "init"]);
    first_version(root);
    run(root, &["hg", "add"]);
    run(root, &["hg", "commit", "-m", "one"]);
    write(root, "app.py", "two");
    run(root, &["hg", "commit", "-m", "two"]);
    write(root, "app.py", "three");
    check_revisions(root, Vcs::Hg, "0");
}

#[test]
fn bazaar_revisions_are_packed() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    run(root, &["brz", "init", "-q"]);
    first_version(root);
    run(root, &["brz", "add", "-q"]);
    run(root, &["brz", "commit", "-qm", "one"]);
    write(root, "app.py", "two");
    run(root, &["brz", "commit", "-qm", "two"]);
    write(root, "app.py", "three");
    check_revisions(root, Vcs::Bzr, "1");
}
