//! Java by Maven: Vert.x on a class path in the project of Maven's own generator, from Maven
//! Central. `widening` has Spring Boot and Pekko.

use std::path::Path;

use super::walled_node;
use crate::node::Node;
use crate::project::{of_files, tool};
use crate::tour::Tour;

const QUICKSTART: &[&str] = &[
    "archetype:generate",
    "-DarchetypeGroupId=org.apache.maven.archetypes",
    "-DarchetypeArtifactId=maven-archetype-quickstart",
    "-DarchetypeVersion=1.5",
    "-DgroupId=com.example",
    "-DartifactId=generated",
    "-DjavaCompilerVersion=17",
];

const VERTX: &str = "<dependencies>
    <dependency>
      <groupId>io.vertx</groupId><artifactId>vertx-core</artifactId><version>4.5.14</version>
    </dependency>";

const APP: &str = r#"package com.example;

import io.vertx.core.Vertx;

public class App {
    public static void main(String[] arguments) {
        int port = Integer.parseInt(System.getenv("PORT"));
        Vertx.vertx().createHttpServer()
            .requestHandler(request -> request.response().end("Hello from Vert.x"))
            .listen(port, System.getenv("HOST"))
            .onFailure(error -> System.exit(1));
    }
}
"#;

/// Generates a project with the cache that the builds share, so that nothing is fetched twice.
fn generate(node: &Node, project: &Path) {
    let repository = node.data().join("cache/xdg/maven/repository");
    let repository = format!("-Dmaven.repo.local={}", repository.display());
    let mut arguments = vec!["-B", "-q", repository.as_str()];
    arguments.extend(QUICKSTART);
    tool(node.directory.path(), "mvn", &arguments);
    std::fs::rename(node.path("generated"), project).unwrap();
    let pom = std::fs::read_to_string(project.join("pom.xml")).unwrap();
    // The first list is of managed versions, the second the project's own.
    let (before, after) = pom.rsplit_once("<dependencies>").expect("a list of dependencies");
    std::fs::write(project.join("pom.xml"), [before, VERTX, after].concat()).unwrap();
    of_files(project, &[("src/main/java/com/example/App.java", APP)]);
}

#[test]
fn a_generated_project_with_vertx_is_toured() {
    let node = walled_node();
    let project = node.path("renamed-vertx");
    generate(&node, &project);
    Tour {
        name: "vertx",
        project: &project,
        found: "Java app detected (pom.xml lists Vert.x)",
        first: "Hello from Vert.x",
        second: "Hello again",
        file: "src/main/java/com/example/App.java",
        scale: 1,
    }
    .run(&node);
}
