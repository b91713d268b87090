//! Vert.x with its own clients, on one event loop.

use std::fs;

use super::{Prepared, Server, java, words};
use crate::concurrency::site::Site;

const VERSION: &str = "4.5.14";
const PROJECT: &str = include_str!("java/vertx.xml");
const PROGRAM: &str = include_str!("java/Events.java");

pub struct Vertx;

impl Server for Vertx {
    fn name(&self) -> &'static str {
        "vertx"
    }

    fn model(&self) -> &'static str {
        "events"
    }

    fn lacks(&self) -> Option<String> {
        java::lacks()
    }

    fn prepare(&self, site: &Site<'_>) -> anyhow::Result<Prepared> {
        let directory = site.place(self.name())?;
        let sources = directory.join("src/main/java/bench");
        fs::create_dir_all(&sources)?;
        fs::write(directory.join("pom.xml"), PROJECT.replace("@VERSION@", VERSION))?;
        fs::write(sources.join("Events.java"), PROGRAM)?;
        java::build(&directory)?;
        Ok(Prepared {
            version: VERSION.into(),
            directory,
            command: words(&format!("{} bench.Events", java::RUN)),
            environment: Vec::new(),
        })
    }
}
