//! Express from npm: `npm init`, the package, and the handful of lines that its guide begins with.

use std::path::Path;

use super::{node, walled_node};
use crate::journey::Journey;
use crate::project::{copy_of_example, edit, of_files, tool};

/// The "Hello world example" of Express's own guide, with the port that hosts give.
const INDEX_JS: &str = r#"const express = require('express')
const app = express()
const port = process.env.PORT || 3000

app.get('/', (req, res) => {
  res.send('Hello World!')
})

app.listen(port, () => {
  console.log(`Example app listening on port ${port}`)
})
"#;

fn generate(project: &Path) {
    std::fs::create_dir(project).unwrap();
    tool(project, "npm", &["init", "--yes"]);
    tool(project, "npm", &["install", "--no-audit", "--no-fund", "express"]);
    // The project becomes as `git clone` would give it: what npm fetched is not part of the source.
    std::fs::remove_dir_all(project.join("node_modules")).unwrap();
    of_files(project, &[("index.js", INDEX_JS)]);
}

#[test]
fn a_generated_project_goes_through_the_journey() {
    let mut node = node();
    let generated = node.path("generated");
    generate(&generated);
    let project = node.path("greeter");
    std::fs::rename(&generated, &project).unwrap();
    Journey {
        name: "greeter",
        project: &project,
        path: "/",
        first: "Hello World!",
        second: "Hello again!",
        edit: &|project| edit(&project.join("index.js"), "Hello World!", "Hello again!"),
        spoil: &|project| edit(&project.join("index.js"), "'express'", "'expresso-of-nobody'"),
        complaint: "expresso-of-nobody",
        in_hand_max: 4,
    }
    .run(&mut node, &mut |_| {});
}

#[test]
fn the_example_answers() {
    let node = walled_node();
    let project = node.path("express");
    copy_of_example("express", &project);
    node.push(&project, "express").get("/").assert_ok("Hello from Express, web.");
}
