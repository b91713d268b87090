//! What the servers for Java share: Maven builds them, with its own cache of packages.

use std::path::Path;
use std::process::Command;

use crate::process::{find, output_of};

pub fn lacks() -> Option<String> {
    let missing = ["javac", "mvn"].into_iter().any(|program| find(program).is_none());
    missing.then(|| {
        "Java or Maven is not installed; on Debian: apt-get install default-jdk-headless maven"
            .into()
    })
}

/// Builds a project, and brings the packages that it needs to `target/dependency`.
pub fn build(directory: &Path) -> anyhow::Result<()> {
    let mut command = Command::new("mvn");
    command.args(["-B", "-q", "package", "dependency:copy-dependencies"]);
    output_of(command.current_dir(directory)).map(drop)
}

/// The start of a program on what was built.
pub const RUN: &str = "java -cp target/classes:target/dependency/*";
