//! Requests that no handler sees, as they are refused on the wire.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::Fixture;
use crate::serve_keys;
use os::layout::DataDirectory;
use store::SharedStore;

/// Asks without a body; returns the head of the answer, and the problem in it.
async fn ask(socket: &Path, method: &str, path: &str) -> (String, Value) {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_ascii_lowercase(), serde_json::from_str(body).unwrap())
}

/// Asserts that the answer is a problem of this status and code, with this `Allow` if any.
async fn check(socket: &Path, asked: (&str, &str), expected: (u16, &str), allow: Option<&str>) {
    let (head, problem) = ask(socket, asked.0, asked.1).await;
    assert!(head.starts_with(&format!("http/1.1 {} ", expected.0)), "{asked:?}: {head}");
    assert!(head.contains("content-type: application/problem+json"), "{asked:?}: {head}");
    assert_eq!(problem["status"], expected.0, "{asked:?}");
    assert_eq!(problem["code"], expected.1, "{asked:?}");
    let allowed = head.lines().find_map(|line| line.strip_prefix("allow: "));
    assert_eq!(allowed, allow, "{asked:?}");
}

#[tokio::test]
async fn wrong_method_is_told_which_ones_there_are() {
    let api = Fixture::start().await;
    let socket = api.layout.api_socket();
    let wrong = (405, "wrong_method");
    check(&socket, ("PATCH", "/v1/status"), wrong, Some("get,head")).await;
    check(&socket, ("GET", "/v1/shutdown"), wrong, Some("post")).await;
    check(&socket, ("PUT", "/v1/apps"), wrong, Some("get,head,post")).await;
    check(&socket, ("POST", "/v1/store/value?key=a"), wrong, Some("get,head,put,delete")).await;
    check(&socket, ("PATCH", "/v1/nothing"), (404, "no_such_path"), None).await;
}

#[tokio::test]
async fn store_alone_refuses_like_a_node() {
    let api = Fixture::start().await;
    let directory = tempfile::tempdir().unwrap();
    let layout = DataDirectory::new(directory.path().join("data"), &directory.path().join("run"));
    os::directory::private_directory(layout.root()).unwrap();
    let (of, store): (DataDirectory, SharedStore) = (layout.clone(), Arc::clone(&api.store));
    let serving = tokio::spawn(async move { serve_keys(&of, store).await });
    let client = client::Client::new(&layout);
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(10);
    while client.get::<Value>("/v1/store/head").await.is_err() {
        assert!(tokio::time::Instant::now() < deadline, "the API does not answer");
        tokio::task::yield_now().await;
    }
    let socket = layout.api_socket();
    check(&socket, ("GET", "/v1/store/import"), (405, "wrong_method"), Some("post")).await;
    check(&socket, ("GET", "/v1/status"), (404, "no_such_path"), None).await;
    serving.abort();
}

#[tokio::test]
async fn what_no_handler_saw_is_refused_as_a_problem() {
    let api = Fixture::start().await;
    let error = api.client.download("/v1/store/value").await.unwrap_err();
    let error = error.downcast_ref::<client::ClientError>().expect("a problem of the API");
    assert!(error.to_string().contains("missing field `key`"), "{error}");
    assert!(error.hint().is_some());
}
