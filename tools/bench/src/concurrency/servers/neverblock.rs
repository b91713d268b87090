//! The gem neverblock of this repository, or where it is installed, that one.

use std::path::PathBuf;

use anyhow::Context;

use super::{Prepared, Server, ruby, words};
use crate::concurrency::site::Site;

/// The gem's place in the repository.
const PLACE: &str = "runtimes/ruby";
const PROGRAM: &str = "exe/neverblock";

pub struct NeverBlock;

/// Returns the gem's directory: in the working directory or one above it, or where the gem is
/// installed.
fn directory() -> Option<PathBuf> {
    let here = std::env::current_dir().ok()?;
    let of_repository = here.ancestors().map(|above| above.join(PLACE));
    let mut found = of_repository.filter(|place| place.join(PROGRAM).is_file());
    found.next().or_else(|| {
        let script = "puts Gem::Specification.find_by_name('neverblock').gem_dir";
        let mut command = std::process::Command::new("ruby");
        let said = crate::process::output_of(command.args(["-e", script])).ok()?;
        Some(PathBuf::from(said.trim()))
    })
}

impl Server for NeverBlock {
    fn name(&self) -> &'static str {
        "neverblock"
    }

    fn model(&self) -> &'static str {
        "fibers"
    }

    fn lacks(&self) -> Option<String> {
        let packages = [("nio4r", "ruby-nio4r"), ("puma", "puma"), ("rack", "ruby-rack")];
        ruby::lacks(&packages).or_else(|| {
            directory().is_none().then(|| {
                format!("the gem is not installed: run this in the repository, which has {PLACE}")
            })
        })
    }

    fn prepare(&self, site: &Site<'_>) -> anyhow::Result<Prepared> {
        let gem = directory().context("the gem neverblock")?;
        let gem = gem.to_str().context("a name in UTF-8")?;
        let directory = site.place(self.name())?;
        ruby::write_application(&directory)?;
        let mut command = vec!["ruby".to_owned(), "-I".into(), format!("{gem}/lib")];
        command.push(format!("{gem}/{PROGRAM}"));
        command.extend(words("-b tcp://127.0.0.1:@PORT@ -w 1 -e production config.ru"));
        let script = format!("require '{gem}/lib/neverblock/version'; puts NeverBlock::VERSION");
        let mut ruby = std::process::Command::new("ruby");
        let version = crate::process::output_of(ruby.args(["-e", &script]))?.trim().to_owned();
        Ok(Prepared { version, directory, command, environment: Vec::new() })
    }
}
