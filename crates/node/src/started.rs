//! `DATA/started.json`: the options with which the node was started last, so that it can be started
//! with them again, after the machine's reboot and by an upgrade. Invitations are not among them:
//! they are redeemed once.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use os::layout::DataDirectory;

const VERSION: u32 = 1;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Started {
    v: u32,
    /// The arguments of `cortex up`.
    pub arguments: Vec<String>,
    /// The `PATH` in which applications find programs.
    pub search_path: String,
}

impl Started {
    pub fn new(arguments: Vec<String>, search_path: String) -> Started {
        Started { v: VERSION, arguments, search_path }
    }

    /// Reads the file; returns `None` if no node ever ran.
    pub fn load(layout: &DataDirectory) -> anyhow::Result<Option<Started>> {
        let path = layout.started();
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).with_context(|| {
                format!("{} is damaged: remove it, and start the node again", path.display())
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("{} cannot be read", path.display())),
        }
    }

    pub fn save(&self, layout: &DataDirectory) -> anyhow::Result<()> {
        let path = layout.started();
        let fresh = path.with_extension("fresh");
        let mut options = OpenOptions::new();
        options.create(true).write(true).truncate(true).mode(0o600);
        let written = options.open(&fresh).and_then(|mut file| {
            file.write_all(&serde_json::to_vec(self)?)?;
            file.sync_all()?;
            fs::rename(&fresh, &path)
        });
        written.with_context(|| format!("{} cannot be written", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_found_again() {
        let directory = tempfile::tempdir().unwrap();
        let layout = DataDirectory::new(directory.path().into(), directory.path());
        assert_eq!(Started::load(&layout).unwrap(), None);
        let started = Started::new(vec!["--http".into(), "[::1]:80".into()], "/bin".into());
        started.save(&layout).unwrap();
        assert_eq!(Started::load(&layout).unwrap(), Some(started));
        fs::write(layout.started(), "half {").unwrap();
        assert!(Started::load(&layout).unwrap_err().to_string().contains("is damaged"));
    }
}
