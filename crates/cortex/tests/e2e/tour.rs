//! The short way through, for one framework among many: found on what its own generator made, under
//! another name and with no file of ours; it answers, is scaled, replaced under load and rolled
//! back. `journey` is the long way, for those that people use most.

use std::path::Path;

use crate::node::Node;
use crate::outside::{Callers, Site};

/// The number of answers that must arrive before and after each event under load.
const ANSWERS_BETWEEN: u64 = 20;

pub struct Tour<'a> {
    pub name: &'a str,
    pub project: &'a Path,
    /// What `push` must say of the framework and the file that decided.
    pub found: &'a str,
    pub first: &'a str,
    pub second: &'a str,
    /// The file that says `first`.
    pub file: &'a str,
    pub scale: usize,
}

impl Tour<'_> {
    pub fn run(&self, node: &Node) -> Site {
        let outcome = node.try_push(self.project, self.name).succeeded().saying(&[self.found]);
        let site = outcome.site();
        site.get("/").assert_ok(self.first);
        let callers = Callers::start_gently(&site, "/", &[self.first, self.second]);
        callers.answered_more(ANSWERS_BETWEEN);
        node.cortex(&["scale", &format!("web={}", self.scale), "-a", self.name]);
        node.await_ready(self.name, "web", self.scale);
        crate::project::edit(&self.project.join(self.file), self.first, self.second);
        assert_eq!(node.push(self.project, self.name), site, "a release moves nothing");
        callers.answered_more(ANSWERS_BETWEEN);
        site.get("/").assert_ok(self.second);
        let rows = node.await_ready(self.name, "web", self.scale);
        assert!(rows.iter().all(|row| row.release == "v2"), "{rows:#?}");
        node.cortex(&["rollback", "-a", self.name]);
        site.get("/").assert_ok(self.first);
        callers.answered_more(ANSWERS_BETWEEN);
        callers.finish_without_failure();
        site
    }
}
