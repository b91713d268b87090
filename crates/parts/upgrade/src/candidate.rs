//! The check that a file is a binary of Cortex that could run this node: it says so itself, before
//! it is let near anything. Blocking.

use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::formats::Formats;
use os::binaries;

/// The maximum wait for an answer: the self-check opens a store of its own, which takes a while on
/// a slow disk.
const ANSWER_MAX: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);
/// The maximum number of bytes that are read from it; more than it has to say.
const SAID_BYTES_MAX: u64 = 64 << 10;
/// The maximum length of its output in an error, in characters.
const LINE_CHARS_MAX: usize = 200;

/// Checks a binary; the error says what is wrong with it.
pub fn check(path: &Path) -> Result<Formats, String> {
    let version = ask(path, &["--version"])?;
    let name = version.split_whitespace().next().unwrap_or_default();
    if name != "cortex" {
        let first = first_line(&version);
        return Err(format!("it is no binary of Cortex: --version says '{first}'"));
    }
    let said = ask(path, &["self-check"])?;
    let formats: Formats = serde_json::from_str(&said)
        .map_err(|error| format!("what its self-check says is not understood: {error}"))?;
    formats.suits(&Formats::own())?;
    Ok(formats)
}

fn ask(path: &Path, arguments: &[&str]) -> Result<String, String> {
    let shown = arguments.join(" ");
    let mut command = Command::new(path);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = binaries::spawn(&mut command)
        .map_err(|error| format!("it is no program that this machine runs: {error}"))?;
    let deadline = Instant::now() + ANSWER_MAX;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => std::thread::sleep(POLL),
            Ok(None) => {
                child.kill().ok();
                child.wait().ok();
                let seconds = ANSWER_MAX.as_secs();
                return Err(format!("`{shown}` does not end within {seconds} s"));
            }
            Err(error) => return Err(format!("`{shown}` cannot be run: {error}")),
        }
    };
    if !status.success() {
        let why = first_line(&child.stderr.map(heard).unwrap_or_default());
        return Err(format!(
            "it is no binary of Cortex, or it does not work here: `{shown}` ended with {status} \
             {why}"
        ));
    }
    Ok(child.stdout.map(heard).unwrap_or_default())
}

/// Reads what was printed. Something else may still hold the other end: only what is there counts.
fn heard(output: impl Read + AsFd) -> String {
    let mut said = Vec::new();
    rustix::io::ioctl_fionbio(&output, true).ok();
    output.take(SAID_BYTES_MAX).read_to_end(&mut said).ok();
    String::from_utf8_lossy(&said).into_owned()
}

fn first_line(said: &str) -> String {
    let line = said.lines().next().unwrap_or_default();
    line.chars().filter(|c| !c.is_control()).take(LINE_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    fn check(script: &str, needle: &str) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("candidate");
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        let why = super::check(&path).unwrap_err();
        assert!(why.contains(needle), "{why}");
    }

    #[test]
    fn what_is_no_cortex_is_refused() {
        check("no program at all", "no program that this machine runs");
        check("#!/bin/sh\nexit 3\n", "no binary of Cortex");
        check("#!/bin/sh\necho 'bash 5.2'\n", "--version says 'bash 5.2'");
        check("#!/bin/sh\necho 'cortex 9'\n", "self-check says is not understood");
        let newer = r#"{"version":"9","handover":{"lowest":1,"highest":1},
            "wire":{"lowest":70,"highest":71},"log":{"lowest":1,"highest":LOG},
            "shim":{"lowest":1,"highest":1},"secrets":1}"#;
        let newer = newer.replace("LOG", &store_core::record::FORMAT.to_string());
        let script =
            format!("#!/bin/sh\n[ \"$1\" = --version ] && exec echo 'cortex 9'\necho '{newer}'\n");
        check(&script, "versions 70 to 71 of the nodes' protocol");
    }
}
