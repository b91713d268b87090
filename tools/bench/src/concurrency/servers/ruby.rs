//! What the servers for Ruby share: the one Rack application, and the gems of the operating system.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::process::{find, output_of};

const APPLICATION: &str = include_str!("work.ru");

/// Returns what is missing of Ruby and these gems, each with its package of Debian.
pub fn lacks(gems: &[(&str, &str)]) -> Option<String> {
    if find("ruby").is_none() {
        return Some("Ruby is not installed; on Debian: apt-get install ruby".into());
    }
    let all = gems.iter().chain(&[("pg", "ruby-pg")]);
    let missing = all.filter(|(gem, _)| version(gem).is_err()).map(|(_, package)| *package);
    let missing: Vec<&str> = missing.collect();
    let packages = missing.join(" ");
    (!missing.is_empty()).then(|| format!("on Debian: apt-get install {packages}"))
}

/// Returns the version of a gem.
pub fn version(gem: &str) -> anyhow::Result<String> {
    let script = "puts Gem::Specification.find_by_name(ARGV[0]).version";
    let said = output_of(Command::new("ruby").args(["-e", script, gem]))?;
    Ok(said.trim().into())
}

pub fn write_application(directory: &Path) -> anyhow::Result<()> {
    Ok(fs::write(directory.join("config.ru"), APPLICATION)?)
}
