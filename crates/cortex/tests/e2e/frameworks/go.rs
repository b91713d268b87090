//! Go: `go mod init` and a program of the standard library, as the tutorials have it.

use super::walled_node;
use crate::project::{of_files, tool};
use crate::tour::Tour;

const MAIN: &str = r#"package main

import (
	"fmt"
	"log"
	"net/http"
	"os"
)

func main() {
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "Hello from Go")
	})
	log.Fatal(http.ListenAndServe(os.Getenv("HOST")+":"+os.Getenv("PORT"), nil))
}
"#;

#[test]
fn a_generated_module_is_toured() {
    let node = walled_node();
    let project = node.path("renamed-gopher");
    of_files(&project, &[("main.go", MAIN)]);
    tool(&project, "go", &["mod", "init", "example.com/hello"]);
    Tour {
        name: "gopher",
        project: &project,
        found: "Go app detected (go.mod names a Go module)",
        first: "Hello from Go",
        second: "Hello again",
        file: "main.go",
        scale: 3,
    }
    .run(&node);
}
