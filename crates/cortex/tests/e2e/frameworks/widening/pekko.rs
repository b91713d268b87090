//! Pekko on a class path by Maven, which goes the way that Vert.x goes in the plain run.

use crate::node::Node;
use crate::project::of_files;
use crate::tour::Tour;

const PEKKO: &str = "<project xmlns=\"http://maven.apache.org/POM/4.0.0\">
  <modelVersion>4.0.0</modelVersion>
  <groupId>com.example</groupId>
  <artifactId>hello</artifactId>
  <version>1.0</version>
  <properties>
    <maven.compiler.source>17</maven.compiler.source>
    <maven.compiler.target>17</maven.compiler.target>
    <project.build.sourceEncoding>UTF-8</project.build.sourceEncoding>
    <pekko>1.2.1</pekko>
  </properties>
  <dependencies><dependency>
    <groupId>org.apache.pekko</groupId>
    <artifactId>pekko-actor-typed_2.13</artifactId>
    <version>${pekko}</version>
  </dependency><dependency>
    <groupId>org.apache.pekko</groupId>
    <artifactId>pekko-stream_2.13</artifactId>
    <version>${pekko}</version>
  </dependency><dependency>
    <groupId>org.apache.pekko</groupId>
    <artifactId>pekko-http_2.13</artifactId>
    <version>1.3.0</version>
  </dependency></dependencies>
</project>
";

const SERVER: &str = r#"package com.example;

import static org.apache.pekko.http.javadsl.server.Directives.complete;

import org.apache.pekko.actor.typed.ActorSystem;
import org.apache.pekko.actor.typed.javadsl.Behaviors;
import org.apache.pekko.http.javadsl.Http;

public class HelloServer {
    public static void main(String[] args) {
        ActorSystem<Void> system = ActorSystem.create(Behaviors.empty(), "hello");
        int port = Integer.parseInt(System.getenv("PORT"));
        Http.get(system)
            .newServerAt(System.getenv("HOST"), port)
            .bind(complete("Hello from Pekko"));
    }
}
"#;

#[test]
fn pekko_is_toured() {
    let node = Node::start();
    let project = node.path("renamed-pekko");
    let server = "src/main/java/com/example/HelloServer.java";
    of_files(&project, &[("pom.xml", PEKKO), (server, SERVER)]);
    Tour {
        name: "pekko",
        project: &project,
        found: "Java app detected (pom.xml lists Pekko)",
        first: "Hello from Pekko",
        second: "Hello again",
        file: server,
        scale: 1,
    }
    .run(&node);
}
