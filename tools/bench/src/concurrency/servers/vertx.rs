//! Vert.x with its own clients, on one event loop.

use super::java::{self, Project};
use super::{Prepared, Server};
use crate::concurrency::site::Site;

const PROJECT: Project = Project {
    version: "4.5.14",
    pom: include_str!("java/vertx.xml"),
    class: "Events",
    program: include_str!("java/Events.java"),
};

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
        PROJECT.prepare(site.place(self.name())?)
    }
}
