//! The probe that checks whether an instance is there: a connection, or one GET. Used by the agent
//! while an instance starts and by the checker afterwards; knows neither.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The maximum number of bytes that are read: only the head of the answer matters.
const HEAD_BYTES_MAX: usize = 16 * 1024;
const HEADERS_MAX: usize = 64;

/// The preface of RFC 9113, section 3.4, with an empty frame of settings.
const H2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const H2_FRAME_HEAD_BYTES: usize = 9;
const H2_FRAME_TYPE_AT: usize = 3;
const H2_SETTINGS: u8 = 4;

#[derive(Debug, Error)]
pub enum ProbeError {
    #[error("connection refused")]
    Refused,
    #[error("no answer within {} ms", .0.as_millis())]
    TimedOut(Duration),
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("what answers does not speak HTTP")]
    NotHttp,
}

/// Whether something accepts connections there.
pub async fn tcp(address: SocketAddr, timeout: Duration) -> Result<(), ProbeError> {
    within(timeout, connect(address)).await.map(drop)
}

/// Returns the status of a GET with these headers, which were validated.
pub async fn http_get(
    address: SocketAddr,
    host: &str,
    path: &str,
    headers: &BTreeMap<String, String>,
    timeout: Duration,
) -> Result<u16, ProbeError> {
    within(timeout, async {
        let mut stream = connect(address).await?;
        let mut request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
        let usual = [("User-Agent", "cortex-checker"), ("Accept", "*/*")];
        let said = |name: &str| headers.keys().any(|one| one.eq_ignore_ascii_case(name));
        let usual = usual.into_iter().filter(|(name, _)| !said(name));
        let given = headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in usual.chain(given) {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str("\r\n");
        stream.write_all(request.as_bytes()).await?;
        read_status(&mut stream).await
    })
    .await
}

/// Checks that what listens there speaks HTTP/2 in clear text, as gRPC does: it sends its settings
/// first.
pub async fn h2(address: SocketAddr, timeout: Duration) -> Result<(), ProbeError> {
    within(timeout, async {
        let mut stream = connect(address).await?;
        stream.write_all(H2_PREFACE).await?;
        let mut head = [0; H2_FRAME_HEAD_BYTES];
        let read = stream.read_exact(&mut head).await;
        let settings = read.is_ok() && head[H2_FRAME_TYPE_AT] == H2_SETTINGS;
        if settings { Ok(()) } else { Err(ProbeError::NotHttp) }
    })
    .await
}

async fn within<T>(
    timeout: Duration,
    work: impl Future<Output = Result<T, ProbeError>>,
) -> Result<T, ProbeError> {
    tokio::time::timeout(timeout, work).await.unwrap_or(Err(ProbeError::TimedOut(timeout)))
}

async fn connect(address: SocketAddr) -> Result<TcpStream, ProbeError> {
    TcpStream::connect(address).await.map_err(|error| match error.kind() {
        ErrorKind::ConnectionRefused => ProbeError::Refused,
        _ => ProbeError::Io(error),
    })
}

async fn read_status(stream: &mut TcpStream) -> Result<u16, ProbeError> {
    let mut head = Vec::with_capacity(1024);
    loop {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut headers);
        // A head with more headers than that still has a status.
        let parsed = response.parse(&head);
        let status = response.code.filter(|status| *status >= 200);
        match (parsed, status) {
            (Ok(httparse::Status::Complete(length)), None) => drop(head.drain(..length)),
            (Ok(_) | Err(httparse::Error::TooManyHeaders), Some(status)) => return Ok(status),
            (Ok(httparse::Status::Partial), None) => {
                let room = HEAD_BYTES_MAX.saturating_sub(head.len());
                let read = stream.take(room as u64).read_buf(&mut head).await?;
                if read == 0 {
                    return Err(ProbeError::NotHttp);
                }
            }
            (Err(_), _) => return Err(ProbeError::NotHttp),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    const TIMEOUT: Duration = Duration::from_millis(300);

    async fn answering(bytes: &'static [u8]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        crate::task::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 1024];
                let _ = stream.read(&mut request).await;
                let _ = stream.write_all(bytes).await;
                // The stream is kept open: the probe must not wait for the end.
                crate::task::spawn(async move { stream.read(&mut [0; 1]).await });
            }
        });
        address
    }

    async fn check(answer: &'static [u8]) -> Result<u16, ProbeError> {
        let address = answering(answer).await;
        http_get(address, "shop.localhost", "/up", &BTreeMap::new(), TIMEOUT).await
    }

    #[tokio::test]
    async fn the_status_is_read_from_the_head() {
        assert_eq!(check(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap(), 204);
        assert_eq!(check(b"HTTP/1.0 500 Oh\r\nA: b\r\n\r\nbody").await.unwrap(), 500);
        let continued = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n";
        assert_eq!(check(continued).await.unwrap(), 200);
    }

    #[tokio::test]
    async fn headers_of_ones_own_are_sent_in_place_of_the_usual() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let headers = [("x-forwarded-proto", "https"), ("user-agent", "probe")];
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let asked = http_get(address, "shop.example", "/up", &headers, TIMEOUT);
        let seen = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 1024];
            let length = stream.read(&mut request).await.unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            String::from_utf8_lossy(&request[..length]).into_owned()
        };
        let (status, request) = tokio::join!(asked, seen);
        assert_eq!(status.unwrap(), 200);
        let expected = "GET /up HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\nAccept: */*\r\n\
                        user-agent: probe\r\nx-forwarded-proto: https\r\n\r\n";
        assert_eq!(request, expected);
    }

    #[tokio::test]
    async fn http2_says_its_settings_first() {
        let speaks = answering(b"\0\0\x06\x04\0\0\0\0\0\0\x03\0\0\0\x64").await;
        h2(speaks, TIMEOUT).await.unwrap();
        let other = answering(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        assert!(matches!(h2(other, TIMEOUT).await, Err(ProbeError::NotHttp)));
    }

    #[tokio::test]
    async fn what_is_no_answer_is_told_apart() {
        assert!(matches!(check(b"SSH-2.0-x\r\n").await, Err(ProbeError::NotHttp)));
        assert!(matches!(check(b"").await, Err(ProbeError::TimedOut(_))));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tcp(address, TIMEOUT).await.unwrap();
        drop(listener);
        assert!(matches!(tcp(address, TIMEOUT).await, Err(ProbeError::Refused)));
    }
}
