//! Instances that speak HTTP/2 themselves, for clients of either version.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use h2::server;
use hyper::{HeaderMap, Request, Response};
use model::InstanceState::Ready;
use model::application::InstanceProtocol;
use tokio::net::TcpListener;

use super::super::world::World;
use super::{Calls, asking, in_time, piece, send, whole};

/// An instance that says back what it gets, piece by piece, with trailers.
struct Instance {
    port: u16,
    connections: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.task.abort();
    }
}

type Stream = (Request<h2::RecvStream>, server::SendResponse<Bytes>);

async fn echo((request, mut answer): Stream) {
    let path = request.uri().path().to_owned();
    let headers = request.headers();
    assert_eq!(headers["te"], "trailers");
    assert!(headers.contains_key("x-forwarded-for"), "{headers:?}");
    assert!(!headers.contains_key("transfer-encoding") && !headers.contains_key("host"));
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "7".parse().unwrap());
    if path == "/trailers-only" {
        let mut only = Response::new(());
        only.headers_mut().extend(trailers);
        return drop(answer.send_response(only, true));
    }
    let mut body = request.into_body();
    let mut sending = answer.send_response(Response::new(()), false).unwrap();
    while let Some(Ok(data)) = piece(&mut body).await {
        if data == "cut" {
            return sending.send_reset(h2::Reason::INTERNAL_ERROR);
        }
        let mut data = data;
        while !data.is_empty() {
            sending.reserve_capacity(data.len());
            let room = std::future::poll_fn(|cx| sending.poll_capacity(cx)).await;
            let Some(Ok(room)) = room else { return };
            sending.send_data(data.split_to(room.min(data.len())), false).unwrap();
        }
    }
    if let Ok(Some(asked)) = body.trailers().await {
        trailers.extend(asked);
    }
    sending.send_trailers(trailers).ok();
}

impl Instance {
    async fn start() -> Instance {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = connections.clone();
        let task = tokio::spawn(async move {
            let mut tasks = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                tasks.spawn(async move {
                    let Ok(mut connection) = server::handshake(stream).await else { return };
                    while let Some(Ok(stream)) = connection.accept().await {
                        tokio::spawn(echo(stream));
                    }
                });
            }
        });
        Instance { port, connections, task }
    }
}

async fn in_front_of(instance: &Instance) -> World {
    let world = World::with_threads(1);
    world.set(|settings| settings.protocol = InstanceProtocol::H2c);
    world.claim(1, None, &[(1, Ready, instance.port)]);
    world.routed().await;
    world
}

#[tokio::test]
async fn streams_go_through_with_their_trailers_on_one_connection() {
    let instance = Instance::start().await;
    let world = in_front_of(&instance).await;
    let mut calls = Calls::to(&world).await;
    let mut answers = tokio::task::JoinSet::new();
    for number in 0..50 {
        let (answer, mut body) = calls.begin(asking("POST", "/echo"), false);
        let bytes: Bytes = vec![number; 100_000].into();
        answers.spawn(async move {
            let (answer, ()) = tokio::join!(whole(answer), send(&mut body, bytes.clone()));
            assert!(answer.body == bytes, "{} bytes", answer.body.len());
            assert_eq!(answer.trailers.unwrap()["grpc-status"], "7");
        });
    }
    while let Some(answer) = answers.join_next().await {
        answer.unwrap();
    }
    assert_eq!(instance.connections.load(Ordering::SeqCst), 1);
    let only = whole(calls.begin(asking("POST", "/trailers-only"), true).0).await;
    assert_eq!((only.status, &only.headers["grpc-status"]), (200, &"7".parse().unwrap()));
    assert_eq!((only.body.len(), only.trailers), (0, None));
    let (answer, mut body) = calls.begin(asking("POST", "/echo"), false);
    body.send_data("begun".into(), false).unwrap();
    let mut answer = in_time(answer).await.unwrap().into_body();
    assert_eq!(in_time(answer.data()).await.unwrap().unwrap(), "begun");
    body.send_data("cut".into(), false).unwrap();
    let cut = in_time(answer.data()).await.unwrap().unwrap_err();
    assert!(cut.is_reset(), "{cut}");
}

/// Each side waits for the other: neither's end comes before the other's next word.
#[tokio::test]
async fn a_conversation_goes_both_ways_at_once() {
    let instance = Instance::start().await;
    let world = in_front_of(&instance).await;
    let mut calls = Calls::to(&world).await;
    let (answer, mut sending) = calls.begin(asking("POST", "/echo"), false);
    sending.send_data("one".into(), false).unwrap();
    let mut body = in_time(answer).await.unwrap().into_body();
    assert_eq!(piece(&mut body).await.unwrap().unwrap(), "one");
    for word in ["two", "three", "four"] {
        sending.send_data(word.into(), false).unwrap();
        assert_eq!(piece(&mut body).await.unwrap().unwrap(), word);
    }
    sending.send_data(Bytes::new(), true).unwrap();
    while let Some(last) = piece(&mut body).await {
        assert!(last.unwrap().is_empty());
    }
    assert_eq!(in_time(body.trailers()).await.unwrap().unwrap()["grpc-status"], "7");
}

#[tokio::test]
async fn trailers_of_requests_get_there() {
    let instance = Instance::start().await;
    let world = in_front_of(&instance).await;
    let mut calls = Calls::to(&world).await;
    let mut asked = HeaderMap::new();
    asked.insert("x-sum", "9".parse().unwrap());
    asked.insert("x-forwarded-for", "10.0.0.1".parse().unwrap());
    // This happens before the answer has begun, and after.
    for begun in [false, true] {
        let (answer, mut sending) = calls.begin(asking("POST", "/echo"), false);
        sending.send_data("one".into(), false).unwrap();
        if !begun {
            sending.send_trailers(asked.clone()).unwrap();
        }
        let mut body = in_time(answer).await.unwrap().into_body();
        assert_eq!(piece(&mut body).await.unwrap().unwrap(), "one");
        if begun {
            sending.send_trailers(asked.clone()).unwrap();
        }
        while let Some(last) = piece(&mut body).await {
            assert!(last.unwrap().is_empty());
        }
        let trailers = in_time(body.trailers()).await.unwrap().unwrap();
        assert_eq!((&trailers["x-sum"], trailers.len()), (&"9".parse().unwrap(), 2));
    }
}

#[tokio::test]
async fn clients_of_the_older_version_get_there_too() {
    let instance = Instance::start().await;
    let world = in_front_of(&instance).await;
    let mut client = world.connect().await;
    client
        .send("POST /echo HTTP/1.1\r\nHost: shop.localhost\r\nContent-Length: 5\r\n\r\nhello")
        .await;
    let mut text = Vec::new();
    let all = async {
        use tokio::io::AsyncReadExt;
        while !text.ends_with(b"grpc-status: 7\r\n\r\n") {
            text.push(client.0.read_u8().await.unwrap());
        }
    };
    in_time(all).await;
    let text = String::from_utf8(text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    assert!(text.contains("\r\n5\r\nhello\r\n0\r\ngrpc-status: 7\r\n\r\n"), "{text}");
    client.send("GET /echo HTTP/1.1\r\nHost: shop.localhost\r\n\r\n").await;
    assert_eq!(in_time(client.try_reply(true)).await.unwrap().status, 200);
    assert_eq!(instance.connections.load(Ordering::SeqCst), 1);
    drop(instance);
    // An instance that is gone is not waited for: another one is asked.
    let other = Instance::start().await;
    world.claim(2, None, &[(1, Ready, other.port)]);
    let mut calls = Calls::to(&world).await;
    assert_eq!(whole(calls.begin(asking("GET", "/echo"), true).0).await.status, 200);
}
