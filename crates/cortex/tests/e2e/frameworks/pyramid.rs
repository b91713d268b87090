//! Pyramid from PyPI: the project that `pcreate` makes, under another directory's name, and the
//! example with its migration.

use std::path::{Path, PathBuf};

use super::{node, walled_node};
use crate::project::{copy_of_example, tool};
use crate::tour::Tour;

/// The generated page, which says something that is easy to change.
pub const PAGE: &str = "generated/templates/mytemplate.jinja2";

/// Generates a project with the last version that brings its generator along; what is pushed takes
/// the newest one. The generator wants a setuptools that still has pkg_resources.
pub fn generate(directory: &Path) -> PathBuf {
    let venv = directory.join("pyramid-generator");
    tool(directory, "/usr/bin/python3", &["-m", "venv", venv.to_str().unwrap()]);
    let pip = venv.join("bin/pip");
    let packages = ["install", "--quiet", "pyramid<2", "setuptools==80.9.0"];
    tool(directory, pip.to_str().unwrap(), &packages);
    let pcreate = venv.join("bin/pcreate");
    tool(directory, pcreate.to_str().unwrap(), &["-s", "starter", "generated"]);
    let project = directory.join("renamed-temple");
    std::fs::rename(directory.join("generated"), &project).unwrap();
    project
}

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

#[test]
fn the_example_answers_and_keeps_what_is_signed() {
    let node = walled_node();
    let project = node.path("pyramid");
    copy_of_example("pyramid", &project);
    let site = node.push(&project, "pyramid");
    site.get("/").assert_ok("Guests:");
    assert_eq!(site.post_form("/sign", &[], "name=Ada").status, 201);
    node.push(&project, "pyramid").get("/").assert_ok("- Ada");
}
