//! What the servers for Java share: Maven builds them, with its own cache of packages.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::{Prepared, words};
use crate::process::{find, output_of};

pub fn lacks() -> Option<String> {
    let missing = ["javac", "mvn"].into_iter().any(|program| find(program).is_none());
    missing.then(|| {
        "Java or Maven is not installed; on Debian: apt-get install default-jdk-headless maven"
            .into()
    })
}

/// A server in one file, in the package `bench`.
pub struct Project {
    /// The version of the framework, which the project file leaves open.
    pub version: &'static str,
    pub pom: &'static str,
    pub class: &'static str,
    pub program: &'static str,
}

impl Project {
    /// Writes the project into a directory and builds it, and brings the packages that it needs to
    /// `target/dependency`.
    pub fn prepare(&self, directory: PathBuf) -> anyhow::Result<Prepared> {
        let Project { version, pom, class, program } = self;
        let sources = directory.join("src/main/java/bench");
        fs::create_dir_all(&sources)?;
        fs::write(directory.join("pom.xml"), pom.replace("@VERSION@", version))?;
        fs::write(sources.join(format!("{class}.java")), program)?;
        let mut command = Command::new("mvn");
        command.args(["-B", "-q", "package", "dependency:copy-dependencies"]);
        output_of(command.current_dir(&directory))?;
        Ok(Prepared {
            version: (*version).into(),
            directory,
            command: words(&format!("java -cp target/classes:target/dependency/* bench.{class}")),
            environment: Vec::new(),
        })
    }
}
