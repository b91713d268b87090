//! Heads of requests and answers in HTTP/2.

use hyper::{Method, Response};

use super::*;

#[test]
fn a_call_is_read_and_its_answer_written() {
    let text = b"POST /a HTTP/1.1\r\nHost: a.b:80\r\nX: y\r\nTransfer-Encoding: chunked\r\n\
        Connection: close\r\n\r\n";
    let read = call(text).unwrap().unwrap();
    assert_eq!((read.framing, read.length), (Framing::Chunked, text.len()));
    let request = read.request;
    assert_eq!(request.uri(), "http://a.b:80/a");
    assert_eq!(
        (request.headers().len(), &request.headers()[TE]),
        (2, &HeaderValue::from_static("trailers"))
    );
    let get = call(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap().unwrap();
    assert_eq!((get.request.method(), get.framing), (&Method::GET, Framing::Empty));
    let answer = Response::builder().status(200).header("a", "b").body(()).unwrap();
    let (parts, ()) = answer.into_parts();
    let (head, chunked) = called(&parts, false, false);
    assert!(chunked);
    assert_eq!(&head[..], b"HTTP/1.1 200 OK\r\na: b\r\nTransfer-Encoding: chunked\r\n\r\n");
    assert!(!called(&parts, true, true).1);
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    assert_eq!(&last_chunk(Some(trailers))[..], b"0\r\ngrpc-status: 0\r\n\r\n");
}
