//! Flask and FastAPI, as the first page of each one's documentation has them.

use super::{node, walled_node};
use crate::project::of_files;
use crate::tour::Tour;

const FLASK: &str = r#"from flask import Flask

app = Flask(__name__)

@app.route("/")
def hello_world():
    return "<p>Hello from Flask</p>"
"#;

const FASTAPI: &str = r#"from fastapi import FastAPI

app = FastAPI()


@app.get("/")
def read_root():
    return {"says": "Hello from FastAPI"}
"#;

#[test]
fn a_first_application_of_flask_is_toured() {
    let node = walled_node();
    let project = node.path("renamed-flask");
    of_files(&project, &[("hello.py", FLASK), ("requirements.txt", "flask\n")]);
    Tour {
        name: "flask",
        project: &project,
        found: "hello.py makes the Flask application 'app'",
        first: "Hello from Flask",
        second: "Hello again",
        file: "hello.py",
        scale: 3,
    }
    .run(&node);
}

#[test]
fn a_first_application_of_fastapi_is_toured() {
    let node = node();
    let project = node.path("renamed-fastapi");
    of_files(&project, &[("main.py", FASTAPI), ("requirements.txt", "fastapi\n")]);
    Tour {
        name: "fastapi",
        project: &project,
        found: "main.py makes the ASGI application 'app'",
        first: "Hello from FastAPI",
        second: "Hello again",
        file: "main.py",
        scale: 3,
    }
    .run(&node);
}
