//! Java by Maven: Vert.x on a class path in the project of Maven's own generator, and Spring Boot
//! in one archive, both from Maven Central. `widening` has Pekko.

use std::path::Path;

use super::walled_node;
use crate::node::Node;
use crate::project::{edit, of_files, tool};
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

/// The project file as start.spring.io writes it.
const SPRING: &str = "<project xmlns=\"http://maven.apache.org/POM/4.0.0\">
  <modelVersion>4.0.0</modelVersion>
  <parent>
    <groupId>org.springframework.boot</groupId>
    <artifactId>spring-boot-starter-parent</artifactId>
    <version>3.5.16</version>
    <relativePath/>
  </parent>
  <groupId>com.example</groupId>
  <artifactId>demo</artifactId>
  <version>0.0.1-SNAPSHOT</version>
  <properties><java.version>17</java.version></properties>
  <dependencies><dependency>
    <groupId>org.springframework.boot</groupId>
    <artifactId>spring-boot-starter-web</artifactId>
  </dependency></dependencies>
  <build><plugins><plugin>
    <groupId>org.springframework.boot</groupId>
    <artifactId>spring-boot-maven-plugin</artifactId>
  </plugin></plugins></build>
</project>
";

const DEMO: &str = r#"package com.example.demo;

import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.web.bind.annotation.*;

@SpringBootApplication
@RestController
public class DemoApplication {
    public static void main(String[] args) { SpringApplication.run(DemoApplication.class, args); }
    @GetMapping("/") String hello() { return "Hello from Spring"; }
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
fn vertx_is_toured_and_spring_boot_answers() {
    let node = walled_node();
    let project = node.path("renamed-vertx");
    generate(&node, &project);
    let vertx = Tour {
        name: "vertx",
        project: &project,
        found: "Java app detected (pom.xml lists Vert.x)",
        first: "Hello from Vert.x",
        second: "Hello again",
        file: "src/main/java/com/example/App.java",
        scale: 1,
    }
    .run(&node);
    let project = node.path("renamed-spring");
    let demo = "src/main/java/com/example/demo/DemoApplication.java";
    of_files(&project, &[("pom.xml", SPRING), (demo, DEMO)]);
    node.push(&project, "spring").get("/").assert_ok("Hello from Spring");
    edit(&project.join(demo), "@RestController", "@RestKontroller");
    node.try_push(&project, "spring").refused().saying(&["DemoApplication.java", "RestKontroller"]);
    vertx.get("/").assert_ok("Hello from Vert.x");
}
