//! Spring Boot in one archive, from Maven Central, which goes the way that Vert.x goes in the plain
//! run.

use crate::node::Node;
use crate::project::{edit, of_files};

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

#[test]
fn spring_boot_answers_and_says_what_does_not_compile() {
    let node = Node::start();
    let project = node.path("renamed-spring");
    let demo = "src/main/java/com/example/demo/DemoApplication.java";
    of_files(&project, &[("pom.xml", SPRING), (demo, DEMO)]);
    let spring = node.push(&project, "spring");
    spring.get("/").assert_ok("Hello from Spring");
    edit(&project.join(demo), "@RestController", "@RestKontroller");
    node.try_push(&project, "spring").refused().saying(&["DemoApplication.java", "RestKontroller"]);
    spring.get("/").assert_ok("Hello from Spring");
}
