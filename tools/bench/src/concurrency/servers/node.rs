//! Node.js alone, without packages.

use std::fs;
use std::process::Command;

use super::{Prepared, Server, words};
use crate::concurrency::site::Site;
use crate::process::output_of;

const PROGRAM: &str = include_str!("server.mjs");

pub struct Node;

impl Server for Node {
    fn name(&self) -> &'static str {
        "node"
    }

    fn model(&self) -> &'static str {
        "events"
    }

    fn lacks(&self) -> Option<String> {
        let is_there = output_of(Command::new("node").arg("--version")).is_ok();
        (!is_there).then(|| "Node.js is not installed; on Debian: apt-get install nodejs".into())
    }

    fn prepare(&self, site: &Site<'_>) -> anyhow::Result<Prepared> {
        let directory = site.place(self.name())?;
        fs::write(directory.join("server.mjs"), PROGRAM)?;
        let version = output_of(Command::new("node").arg("--version"))?;
        Ok(Prepared {
            version: version.trim().trim_start_matches('v').into(),
            directory,
            command: words("node server.mjs"),
            environment: Vec::new(),
        })
    }
}
