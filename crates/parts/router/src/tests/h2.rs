//! Clients that speak HTTP/2 to the router, in front of instances that speak HTTP/1.1.

mod hostile;
mod instances;
mod limits;

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{self, ResponseFuture, SendRequest};
use h2::ext::Protocol;
use h2::{RecvStream, SendStream};
use hyper::{HeaderMap, Method, Request, Response};
use model::BuildId;
use model::InstanceState::Ready;
use model::release::StaticMount;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::rustls;

use super::tls::{certificate, client as tls_client, connect as tls_connect};
use super::world::{Backend, Client, DEADLINE, World, app, ok, release_id, wait};
use tls::Tls;

/// Bytes, more than any window.
const LARGE: usize = 3 * 1024 * 1024;

async fn handshake(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Calls {
    let (send, connection) = client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(async move { connection.await.map_err(|e| e.to_string()) });
    Calls { send, connection }
}

struct Calls {
    send: SendRequest<Bytes>,
    connection: tokio::task::JoinHandle<Result<(), String>>,
}

impl Calls {
    async fn to(world: &World) -> Calls {
        handshake(TcpStream::connect(world.router.public().unwrap()).await.unwrap()).await
    }

    fn begin(&mut self, request: Request<()>, ended: bool) -> (ResponseFuture, SendStream<Bytes>) {
        self.send.send_request(request, ended).unwrap()
    }

    async fn get(&mut self, path: &str) -> Whole {
        let (answer, _) = self.begin(asking("GET", path), true);
        whole(answer).await
    }
}

fn asking(method: &str, path: &str) -> Request<()> {
    let uri = format!("http://shop.localhost{path}");
    Request::builder().method(method).uri(uri).body(()).unwrap()
}

#[derive(Debug)]
struct Whole {
    status: u16,
    headers: HeaderMap,
    body: Vec<u8>,
    trailers: Option<HeaderMap>,
}

impl Whole {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

async fn in_time<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, work).await.expect("in time")
}

async fn piece(body: &mut RecvStream) -> Option<Result<Bytes, h2::Error>> {
    let data = in_time(body.data()).await;
    if let Some(Ok(data)) = &data {
        body.flow_control().release_capacity(data.len()).unwrap();
    }
    data
}

async fn whole(answer: ResponseFuture) -> Whole {
    let (parts, mut body) = in_time(answer).await.unwrap().into_parts();
    let mut bytes = Vec::new();
    while let Some(data) = piece(&mut body).await {
        bytes.extend_from_slice(&data.unwrap());
    }
    let trailers = in_time(body.trailers()).await.unwrap();
    Whole { status: parts.status.as_u16(), headers: parts.headers, body: bytes, trailers }
}

/// Sends all bytes, as far as the windows let it.
async fn send(stream: &mut SendStream<Bytes>, mut bytes: Bytes) {
    while !bytes.is_empty() {
        stream.reserve_capacity(bytes.len());
        let room = in_time(poll_fn(|cx| stream.poll_capacity(cx))).await.unwrap().unwrap();
        let now = bytes.split_to(room.min(bytes.len()));
        stream.send_data(now, bytes.is_empty()).unwrap();
    }
}

async fn in_front_of(backend: &Backend) -> World {
    let world = World::new();
    world.application(|_| (), Vec::new());
    world.claim(1, None, &[(1, Ready, backend.port)]);
    world.routed().await;
    world
}

#[tokio::test]
async fn a_stream_is_a_request_like_any_other() {
    let backend = Backend::answering(ok).await;
    let world = in_front_of(&backend).await;
    let mut calls = Calls::to(&world).await;
    let mut request = asking("GET", "/a?b=c");
    request.headers_mut().append("cookie", "a=1".parse().unwrap());
    request.headers_mut().append("cookie", "b=2".parse().unwrap());
    let (answer, _) = calls.begin(request, true);
    let answer = whole(answer).await;
    assert_eq!(answer.status, 200);
    let text = answer.text();
    assert!(text.starts_with("GET /a?b=c HTTP/1.1\r\nHost: shop.localhost\r\n"), "{text}");
    assert!(text.contains("\r\nCookie: a=1; b=2\r\n"), "{text}");
    assert!(text.contains("X-Forwarded-Proto: http\r\n"), "{text}");
    // Bodies come by length and without one; and nothing is left of the connection's headers.
    for length in [None, Some("5")] {
        let mut request = asking("POST", "/");
        if let Some(length) = length {
            request.headers_mut().insert("content-length", length.parse().unwrap());
        }
        let (answer, mut body) = calls.begin(request, false);
        body.send_data(Bytes::from_static(b"hello"), true).unwrap();
        let answer = whole(answer).await;
        assert!(answer.text().contains("hello"), "{answer:?}");
        assert!(!answer.headers.contains_key("connection"));
        assert_eq!(answer.text().contains("Transfer-Encoding: chunked"), length.is_none());
    }
    assert_eq!(backend.connections.load(Ordering::SeqCst), 1, "it is used again");
    assert_eq!(calls.get("/again").await.status, 200);
    let head = whole(calls.begin(asking("HEAD", "/"), true).0).await;
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert!(head.headers["content-length"] != "0");
    let mut unknown = asking("GET", "/");
    *unknown.uri_mut() = "http://nobody.localhost/".parse().unwrap();
    assert_eq!(whole(calls.begin(unknown, true).0).await.status, 404);
    let mut other = asking("GET", "/");
    other.headers_mut().insert("host", "other.localhost".parse().unwrap());
    let refused = in_time(calls.begin(other, true).0).await.unwrap_err();
    assert_eq!(refused.reason(), Some(h2::Reason::PROTOCOL_ERROR));
}

#[tokio::test]
async fn bodies_and_trailers_pass_in_pieces() {
    let backend = Backend::start(|mut client: Client| async move {
        while let Some(request) = client.request().await {
            let body = request.split_once("\r\n\r\n").unwrap().1;
            let end = if request.starts_with("PUT") { "X-Sum: 7\r\nTE: x\r\n" } else { "" };
            let answer = format!(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                 {:x}\r\n{body}\r\n3\r\nend\r\n0\r\n{end}\r\n",
                body.len()
            );
            client.0.write_all(answer.as_bytes()).await.unwrap();
        }
    })
    .await;
    let world = in_front_of(&backend).await;
    let mut calls = Calls::to(&world).await;
    let large: Bytes = (0..LARGE).map(|at| b'a' + (at % 23) as u8).collect::<Vec<_>>().into();
    let mut request = asking("PUT", "/");
    request.headers_mut().insert("content-length", LARGE.into());
    let (answer, mut body) = calls.begin(request, false);
    let sending = async { send(&mut body, large.clone()).await };
    let (answer, ()) = tokio::join!(whole(answer), sending);
    assert_eq!((answer.status, answer.body.len()), (200, LARGE + 3));
    assert!(answer.body[..LARGE] == large[..]);
    let trailers = answer.trailers.unwrap();
    assert_eq!((trailers.len(), &trailers["x-sum"]), (1, &"7".parse().unwrap()));
    // Trailers of a request come to the instance behind its last chunk.
    let (answer, mut body) = calls.begin(asking("POST", "/"), false);
    body.send_data(Bytes::from_static(b"x"), false).unwrap();
    let answer_text = async { whole(answer).await.text() };
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", "9".parse().unwrap());
    trailers.insert("x-forwarded-for", "10.0.0.1".parse().unwrap());
    body.send_trailers(trailers).unwrap();
    assert_eq!(answer_text.await, "1\r\nx\r\n0\r\nx-sum: 9\r\n\r\nend");
}

#[tokio::test]
async fn many_streams_share_a_connection_inside_tls() {
    let directory = tempfile::tempdir().unwrap();
    let files = certificate(directory.path(), "shop", &["shop.localhost"]);
    let world = World::secured(Tls::load(vec![files.clone()]).unwrap());
    let backend = Backend::answering(ok).await;
    world.application(
        |_| (),
        vec![StaticMount { prefix: "/f/".into(), directory: "public".into(), fallback: None }],
    );
    world.claim(1, None, &[(1, Ready, backend.port)]);
    let public = world.layout.build(&app(), &BuildId::Of(release_id())).join("public");
    std::fs::create_dir_all(&public).unwrap();
    std::fs::write(public.join("large.bin"), vec![7; LARGE]).unwrap();
    world.routed().await;
    let config = tls_client(&files, rustls::ALL_VERSIONS, &[b"h2", b"http/1.1"]);
    let stream = tls_connect(&world, &config, "shop.localhost").await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let mut calls = handshake(stream).await;
    let mut answers = tokio::task::JoinSet::new();
    for number in 0..60 {
        let path = if number % 3 == 0 { "/f/large.bin" } else { "/x" };
        answers.spawn(whole(calls.begin(asking("GET", path), true).0));
    }
    while let Some(answer) = answers.join_next().await {
        let answer = answer.unwrap();
        assert_eq!(answer.status, 200);
        let is_file = answer.body.len() == LARGE && answer.body.iter().all(|byte| *byte == 7);
        assert!(is_file || answer.text().contains("X-Forwarded-Proto: https\r\n"));
    }
}

#[tokio::test]
async fn an_answer_that_is_cut_off_is_reset() {
    let backend = Backend::start(|mut client: Client| async move {
        client.request().await;
        client.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf").await;
    })
    .await;
    let world = in_front_of(&backend).await;
    let mut calls = Calls::to(&world).await;
    // The reset may overtake what came before it.
    let error = match in_time(calls.begin(asking("GET", "/"), true).0).await {
        Ok(answer) => {
            // A body that was reset says so whenever it is asked.
            let mut body = answer.into_body();
            loop {
                match piece(&mut body).await {
                    Some(Ok(_)) => {}
                    Some(Err(error)) => break Some(error),
                    None => break None,
                }
            }
        }
        Err(error) => Some(error),
    };
    assert_eq!(error.unwrap().reason(), Some(h2::Reason::INTERNAL_ERROR));
    // An answer that ends with its connection ends the stream alone.
    let backend = Backend::start(|mut client: Client| async move {
        client.request().await;
        client.send("HTTP/1.1 200 OK\r\n\r\nall of it").await;
    })
    .await;
    let world = in_front_of(&backend).await;
    let mut calls = Calls::to(&world).await;
    let answer = calls.get("/").await;
    assert_eq!((answer.status, answer.text().as_str()), (200, "all of it"));
}

/// Each event comes at once, and a client that leaves frees the instance; over either version.
#[tokio::test]
async fn events_come_at_once_and_leaving_ends_them() {
    let left = Arc::new(AtomicUsize::new(0));
    let (events, mut wanted) = tokio::sync::mpsc::channel::<tokio::sync::mpsc::Sender<()>>(4);
    let count = left.clone();
    let backend = Backend::start(move |mut client: Client| {
        let (events, count) = (events.clone(), count.clone());
        async move {
            client.request().await;
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
                        Transfer-Encoding: chunked\r\n\r\n";
            client.send(head).await;
            let (sender, mut next) = tokio::sync::mpsc::channel(1);
            events.send(sender).await.unwrap();
            loop {
                tokio::select! {
                    Some(()) = next.recv() => client.send("9\r\ndata: x\n\n\r\n").await,
                    // The router lets go of it.
                    _ = client.0.read_u8() => break,
                }
            }
            count.fetch_add(1, Ordering::SeqCst);
        }
    })
    .await;
    let world = in_front_of(&backend).await;
    let mut calls = Calls::to(&world).await;
    let (answer, stream) = calls.begin(asking("GET", "/"), true);
    let next = in_time(wanted.recv()).await.unwrap();
    let mut body = in_time(answer).await.unwrap().into_body();
    for _ in 0..3 {
        next.send(()).await.unwrap();
        assert_eq!(piece(&mut body).await.unwrap().unwrap(), "data: x\n\n");
    }
    drop((stream, body));
    wait(|| left.load(Ordering::SeqCst) == 1).await;
    let mut plain = world.connect().await;
    plain.send("GET / HTTP/1.1\r\nHost: shop.localhost\r\n\r\n").await;
    let next = in_time(wanted.recv()).await.unwrap();
    let mut seen = Vec::new();
    for count in 1..4 {
        next.send(()).await.unwrap();
        let all = async {
            while String::from_utf8_lossy(&seen).matches("data: x\n\n").count() < count {
                seen.push(plain.0.read_u8().await.unwrap());
            }
        };
        in_time(all).await;
    }
    drop(plain);
    // For a moment it might be a client that ended its half alone: then the next events find out.
    wait(|| {
        next.try_send(()).ok();
        left.load(Ordering::SeqCst) == 2
    })
    .await;
}

#[tokio::test]
async fn a_websocket_is_a_stream_of_bytes_both_ways() {
    let backend = Backend::start(|mut client: Client| async move {
        let request = client.request().await.unwrap();
        if request.starts_with("GET /no") {
            return client.send(&ok("no WebSocket")).await;
        }
        assert!(request.contains("\r\nUpgrade: websocket\r\n"), "{request}");
        assert!(request.contains("Connection: Upgrade\r\n"), "{request}");
        assert!(request.contains("Sec-WebSocket-Key: "), "{request}");
        client
            .send(
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
                   Connection: Upgrade\r\nSec-WebSocket-Accept: x\r\n\r\nhello",
            )
            .await;
        let mut bytes = [0; 4];
        while client.0.read_exact(&mut bytes).await.is_ok() {
            client.0.write_all(&bytes).await.unwrap();
        }
        client.0.write_all(b"bye").await.unwrap();
    })
    .await;
    let world = in_front_of(&backend).await;
    let mut calls = Calls::to(&world).await;
    // The settings that allow it come with the first answer at the latest.
    calls.get("/no").await;
    assert!(calls.send.is_extended_connect_protocol_enabled());
    let asking_for = |path| {
        let mut request = asking("GET", path);
        *request.method_mut() = Method::CONNECT;
        request.headers_mut().insert("sec-websocket-version", "13".parse().unwrap());
        request.extensions_mut().insert(Protocol::from_static("websocket"));
        request
    };
    let (answer, mut sending) = calls.begin(asking_for("/chat"), false);
    let answer: Response<RecvStream> = in_time(answer).await.unwrap();
    assert_eq!(answer.status(), 200);
    assert!(answer.headers().is_empty(), "{:?}", answer.headers());
    let mut body = answer.into_body();
    assert_eq!(piece(&mut body).await.unwrap().unwrap(), "hello");
    for text in ["ping", "pong"] {
        sending.send_data(text.into(), false).unwrap();
        assert_eq!(piece(&mut body).await.unwrap().unwrap(), text);
    }
    sending.send_data(Bytes::new(), true).unwrap();
    assert_eq!(piece(&mut body).await.unwrap().unwrap(), "bye");
    assert!(piece(&mut body).await.is_none_or(|last| last.unwrap().is_empty()));
    // An answer that opens no tunnel does not look as if it did.
    let answer = whole(calls.begin(asking_for("/no"), false).0).await;
    assert_eq!(answer.status, 502);
}

#[tokio::test]
async fn a_stop_loses_no_request() {
    let (begun, mut begins) = tokio::sync::mpsc::channel(1);
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let held = gate.clone();
    let backend = Backend::start(move |mut client: Client| {
        let (begun, gate) = (begun.clone(), held.clone());
        async move {
            client.request().await;
            begun.send(()).await.unwrap();
            gate.acquire().await.unwrap().forget();
            client.send(&ok("in the end")).await;
        }
    })
    .await;
    let world = in_front_of(&backend).await;
    let mut calls = Calls::to(&world).await;
    let (answer, _) = calls.begin(asking("GET", "/"), true);
    in_time(begins.recv()).await.unwrap();
    world.router.leave(DEADLINE, DEADLINE);
    let told = async {
        // The client may not begin another one once it has heard of it.
        while poll_fn(|cx| calls.send.poll_ready(cx)).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    in_time(told).await;
    gate.add_permits(1);
    assert_eq!(whole(answer).await.text(), "in the end");
    drop(calls.send);
    in_time(calls.connection).await.unwrap().unwrap();
    wait(|| world.router.has_left()).await;
}
