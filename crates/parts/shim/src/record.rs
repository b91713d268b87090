//! The files that a shim leaves on disk for a node that comes later: `state.json` while the process
//! runs, `exit.json` once its whole tree is gone. Never the specification, as that holds secrets.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use agent_core::application::Exit;
use model::Timestamp;
use model::instance::ProcessIdentity;
use model::port::InstancePorts;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::spec::{Purpose, SessionSpec};

/// The names of the records in the run directory.
pub const STATE: &str = "state.json";
pub const EXIT: &str = "exit.json";
/// The file of a shim's own error messages; empty as a rule.
pub const COMPLAINTS: &str = "shim.err";
/// The maximum size of a record in bytes: they are small, and anything larger was not written by a
/// shim.
const RECORD_BYTES_MAX: u64 = 64 << 10;

/// The content of `state.json`: what is held.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Holding {
    pub v: u32,
    pub purpose: Purpose,
    pub process: ProcessIdentity,
    pub port: Option<u16>,
    #[serde(default, skip_serializing_if = "InstancePorts::is_empty")]
    pub ports: InstancePorts,
    pub started_at: Timestamp,
    pub shim: ProcessIdentity,
    /// The copy of the binary that the shim runs from.
    pub binary: PathBuf,
    /// The session, if somebody is connected to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionSpec>,
}

/// The content of `exit.json`: how it ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExitRecord {
    pub v: u32,
    pub holding: Holding,
    /// The way it ended, for people: "exit status 1".
    pub how: String,
    pub success: bool,
    /// The exit code as a shell counts it; `None` where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<u8>,
    /// The end of its output.
    pub last_words: String,
    /// Whether the shim stopped it on its own, as the node stayed away.
    #[serde(default)]
    pub lease_over: bool,
    /// The way in which it exceeded its cap; the shim stopped it on its own for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over_cap: Option<String>,
    /// Whether the first process ended on its own while others of its tree went on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub background: bool,
    pub ended_at: Timestamp,
}

impl ExitRecord {
    pub fn exit(&self) -> Exit {
        Exit {
            how: self.how.clone(),
            success: self.success,
            code: self.code,
            last_words: self.last_words.clone(),
            lease_over: self.lease_over,
            over_cap: self.over_cap.clone(),
            background: self.background,
        }
    }
}

/// Writes a record, readable by the owner alone; readers see the old content or the new one.
pub fn write(path: &Path, record: &impl Serialize) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let mut file =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    file.write_all(&serde_json::to_vec(record)?)?;
    fs::rename(&fresh, path)
}

/// Reads a record; `None` when it is missing, or torn: a power failure leaves empty files, and
/// nothing that a shim held is running then.
pub fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.len() <= RECORD_BYTES_MAX => {}
        Ok(_) => return Err(io::Error::other("too large to be written by a shim; remove it")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    }
    match serde_json::from_slice(&fs::read(path)?) {
        Ok(record) => Ok(Some(record)),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "shim.record_not_readable");
            Ok(None)
        }
    }
}

/// Removes the run directory, and the application's when that was the last one in it.
pub fn remove(run: &Path) -> io::Result<()> {
    match fs::remove_dir_all(run) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    if let Some(application) = run.parent() {
        // This fails while other processes of the application have theirs in it.
        let _ = fs::remove_dir(application);
    }
    Ok(())
}
