//! A test that runs itself again in a process of its own, to be killed or limited.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const DIRECTORY: &str = "CORTEX_TEST_STORE_CHILD";

/// Returns the directory to work in; `None` except in the child.
pub fn directory() -> Option<PathBuf> {
    std::env::var_os(DIRECTORY).map(PathBuf::from)
}

/// Starts the child. `test` is the path of the calling test; the child's shell runs `shell` first
/// and then becomes the test.
pub fn start(test: &str, directory: &Path, shell: &str) -> Child {
    let executable = std::env::current_exe().unwrap();
    let listed = Command::new(&executable).args(["--list", "--exact", test]).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.starts_with(test), "there is no test {test}");
    Command::new("/bin/sh")
        .args(["-c", &format!("{shell} exec \"$0\" --exact \"$1\" --nocapture")])
        .arg(executable)
        .arg(test)
        .env(DIRECTORY, directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}
