//! `cortex bench`: runs the measurements, which are a separate program so that no node carries
//! clients of other databases.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use clap::Args;

const PROGRAM: &str = "cortex-bench";

#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct Bench {
    /// What to measure, and its options; `cortex bench --help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

impl Bench {
    /// Executes that program in place of this one; returns only if it cannot.
    pub fn run(self) -> anyhow::Result<()> {
        let own = std::env::current_exe().ok();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let program = find(own.as_deref(), &path).with_context(|| {
            format!(
                "{PROGRAM} is neither beside this program nor in PATH: build it in a clone with \
                 `cargo build --release -p bench`, or take it from the archive that cortex came in"
            )
        })?;
        let error = Command::new(&program).args(self.arguments).exec();
        Err(error).with_context(|| format!("{} cannot be started", program.display()))
    }
}

/// Finds the program. One beside this program goes first: both come from one build.
fn find(own: Option<&Path>, path: &std::ffi::OsStr) -> Option<PathBuf> {
    let beside = own.and_then(Path::parent).map(Path::to_path_buf);
    let mut places = beside.into_iter().chain(std::env::split_paths(path));
    places.find_map(|place| Some(place.join(PROGRAM)).filter(|program| program.is_file()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_beside_this_one_goes_before_those_in_path() {
        let (own, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = std::env::join_paths([own.path().join("none"), other.path().into()]).unwrap();
        let cortex = own.path().join("cortex");
        assert_eq!(find(Some(&cortex), &path), None);
        std::fs::write(other.path().join(PROGRAM), "").unwrap();
        assert_eq!(find(Some(&cortex), &path), Some(other.path().join(PROGRAM)));
        std::fs::write(own.path().join(PROGRAM), "").unwrap();
        assert_eq!(find(Some(&cortex), &path), Some(own.path().join(PROGRAM)));
    }
}
