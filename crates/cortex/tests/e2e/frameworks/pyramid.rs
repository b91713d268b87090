//! Pyramid from PyPI: the example with its migration. `thesis` hosts the project that `pcreate`
//! makes beside three others, and `widening` takes it through the tour.

use std::path::{Path, PathBuf};

use super::walled_node;
use crate::project::{copy_of_example, tool};

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
fn the_example_answers_and_keeps_what_is_signed() {
    let node = walled_node();
    let project = node.path("pyramid");
    copy_of_example("pyramid", &project);
    let site = node.push(&project, "pyramid");
    site.get("/").assert_ok("Guests:");
    assert_eq!(site.post_form("/sign", &[], "name=Ada").status, 201);
    node.push(&project, "pyramid").get("/").assert_ok("- Ada");
}
