//! Rust: `cargo new` and a server of the standard library, so that nothing has to be fetched.

use super::walled_node;
use crate::project::{of_files, tool};
use crate::tour::Tour;

const MAIN: &str = r#"use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

fn answer(stream: TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while reader.read_line(&mut line)? > 0 {
        if line == "\r\n" {
            let text = "Hello from Rust";
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", text.len());
            reader.get_mut().write_all((head + text).as_bytes())?;
        }
        line.clear();
    }
    Ok(())
}

fn main() {
    let variable = |name| std::env::var(name).unwrap();
    let listener = TcpListener::bind(format!("{}:{}", variable("HOST"), variable("PORT"))).unwrap();
    for stream in listener.incoming().flatten() {
        std::thread::spawn(move || answer(stream));
    }
}
"#;

#[test]
fn a_generated_package_is_toured() {
    let node = walled_node();
    tool(node.directory.path(), "cargo", &["new", "--quiet", "--vcs", "none", "generated"]);
    let project = node.path("renamed-crab");
    std::fs::rename(node.path("generated"), &project).unwrap();
    of_files(&project, &[("src/main.rs", MAIN)]);
    Tour {
        name: "crab",
        project: &project,
        found: "Rust app detected (Cargo.toml names a Rust package)",
        first: "Hello from Rust",
        second: "Hello again",
        file: "src/main.rs",
        scale: 3,
    }
    .run(&node);
}
