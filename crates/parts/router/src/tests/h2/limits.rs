//! An application's own limits, for clients that speak HTTP/2.

use std::time::Duration;

use bytes::Bytes;
use model::InstanceState::Ready;
use model::request::RequestLimits;

use super::super::world::{Backend, DEADLINE, World, ok};
use super::{Calls, asking, in_time, whole};

async fn limited(backend: &Backend, requests: RequestLimits) -> World {
    let world = World::new();
    world.limited(requests);
    world.claim(1, None, &[(1, Ready, backend.port)]);
    world.routed().await;
    world
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_whether_its_length_is_said_or_not() {
    let backend = Backend::answering(ok).await;
    let limits = RequestLimits { body_bytes_max: Some(1000), ..Default::default() };
    let world = limited(&backend, limits).await;
    let mut calls = Calls::to(&world).await;
    for (bytes, length, status) in [
        (1000, None, 200),
        (1000, Some(1000), 200),
        (1001, None, 413),
        (1001, Some(1001), 413),
        (0, Some(5000), 413),
    ] {
        let mut request = asking("POST", "/");
        if let Some(length) = length {
            request.headers_mut().insert("content-length", length.into());
        }
        let (answer, mut body) = calls.begin(request, false);
        if bytes > 0 {
            body.send_data(Bytes::from(vec![b'x'; bytes]), true).unwrap();
        }
        let answer = in_time(answer).await.unwrap();
        assert_eq!(answer.status(), status, "{bytes} {length:?}");
        let reason = answer.headers().get("x-cortex-error").map(|value| value.as_bytes());
        assert_eq!(reason, (status == 413).then_some(&b"body-too-large"[..]));
    }
    // The others of the connection are not disturbed.
    assert_eq!(calls.get("/").await.status, 200);
    assert_eq!(whole(calls.begin(asking("GET", "/"), true).0).await.status, 200);
}

#[tokio::test]
async fn without_a_request_the_connection_ends_when_the_application_says() {
    let backend = Backend::answering(ok).await;
    let limits = RequestLimits { idle_ms: Some(300), ..Default::default() };
    let world = limited(&backend, limits).await;
    let mut calls = Calls::to(&world).await;
    assert_eq!(calls.get("/").await.status, 200);
    // As long as the client keeps its handle, only the router can end it.
    let ended = tokio::time::timeout(DEADLINE, &mut calls.connection).await;
    ended.expect("the connection ends").unwrap().unwrap();
}

#[tokio::test]
async fn a_body_that_trickles_is_not_waited_for_to_its_end() {
    const PIECES: u64 = 1000;
    let backend = Backend::answering(ok).await;
    let limits = RequestLimits { body_ms: Some(300), ..Default::default() };
    let world = limited(&backend, limits).await;
    let mut calls = Calls::to(&world).await;
    for length in [None, Some(PIECES)] {
        let mut request = asking("POST", "/");
        if let Some(length) = length {
            request.headers_mut().insert("content-length", length.into());
        }
        let (mut answer, mut body) = calls.begin(request, false);
        // Every piece comes in its time.
        let mut pieces = 0;
        let answer = loop {
            let pause = Duration::from_millis(30);
            match tokio::time::timeout(pause, &mut answer).await {
                Ok(answer) => break answer.unwrap(),
                Err(_) if pieces == PIECES => panic!("all of it was taken"),
                Err(_) => pieces += 1,
            }
            // This fails once the answer is on its way.
            body.send_data(Bytes::from_static(b"x"), false).ok();
        };
        assert_eq!(answer.status(), 408, "{length:?}");
    }
    assert_eq!(calls.get("/").await.status, 200);
}
