//! The project that Pyramid's `pcreate` makes, which the plain run hosts beside three others.

use crate::frameworks::node;
use crate::frameworks::pyramid::{PAGE, generate};
use crate::tour::Tour;

#[test]
fn a_generated_project_is_toured() {
    let node = node();
    let project = generate(node.directory.path());
    let site = Tour {
        name: "temple",
        project: &project,
        found: "Pyramid app detected (production.ini names the application by 'use = egg:')",
        first: "Welcome to",
        second: "Visit the temple of",
        file: PAGE,
        scale: 3,
    }
    .run(&node);
    site.get("/static/theme.css").assert_ok("body");
}
