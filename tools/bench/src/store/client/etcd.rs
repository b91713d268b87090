//! etcd's gRPC over HTTP/2, with the three messages encoded by hand: no protocol compiler is
//! needed, and nothing stands between the load and the frames.

use std::net::SocketAddr;
use std::rc::Rc;

use anyhow::{Context, bail, ensure};
use bytes::{Buf, Bytes, BytesMut};
use h2::client::SendRequest;
use hyper::Request;
use tokio::task::JoinHandle;

use super::{Action, Connection, connect, key};

/// The most bytes of an answer; no answer of this measurement comes near, and a server that sends
/// more is broken.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

pub struct Etcd {
    requests: SendRequest<Bytes>,
    /// The task of the connection, which ends with its last user.
    _driver: Rc<Driver>,
}

struct Driver(JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Connection for Etcd {
    const SHARES: bool = true;

    async fn open(address: SocketAddr, _kept: bool) -> anyhow::Result<Etcd> {
        let (requests, connection) = h2::client::handshake(connect(address)?).await?;
        let driver = tokio::task::spawn_local(async move {
            // The requests on it fail too, and report it.
            connection.await.ok();
        });
        Ok(Etcd { requests, _driver: Rc::new(Driver(driver)) })
    }

    fn shared(&self) -> Option<Etcd> {
        Some(Etcd { requests: self.requests.clone(), _driver: self._driver.clone() })
    }

    async fn perform(&mut self, action: Action, turn: u64) -> anyhow::Result<()> {
        let (key, value) = (key(turn), turn.to_string());
        let mut message = Vec::new();
        field(&mut message, 1, key.as_bytes());
        let method = match action {
            Action::Set => {
                field(&mut message, 2, value.as_bytes());
                "Put"
            }
            Action::Lookup => "Range",
            Action::Delete => "DeleteRange",
        };
        let answer = self.call(method, &message).await?;
        let good = match action {
            Action::Set => true,
            // Field 2 holds the pairs found; field 5 of a pair is its value.
            Action::Lookup => {
                find(&answer, 2).and_then(|found| match found {
                    Field::Bytes(pair) => find(pair, 5),
                    Field::Number(_) => None,
                }) == Some(Field::Bytes(value.as_bytes()))
            }
            Action::Delete => find(&answer, 2) == Some(Field::Number(1)),
        };
        ensure!(good, "{action:?} of {key} was answered with {answer:?}");
        Ok(())
    }

    async fn close(self) {}
}

impl Etcd {
    async fn call(&mut self, method: &str, message: &[u8]) -> anyhow::Result<Bytes> {
        let request = Request::post(format!("http://localhost/etcdserverpb.KV/{method}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())?;
        futures_util::future::poll_fn(|context| self.requests.poll_ready(context)).await?;
        let (answer, mut stream) = self.requests.send_request(request, false)?;
        let mut frame = Vec::with_capacity(5 + message.len());
        frame.push(0);
        frame.extend_from_slice(&(message.len() as u32).to_be_bytes());
        frame.extend_from_slice(message);
        stream.send_data(frame.into(), true)?;

        let answer = answer.await?;
        let status = answer.headers().get("grpc-status").cloned();
        let mut body = answer.into_body();
        let mut bytes = BytesMut::new();
        while let Some(chunk) = body.data().await {
            let chunk = chunk?;
            body.flow_control().release_capacity(chunk.len())?;
            ensure!(bytes.len() + chunk.len() < ANSWER_BYTES_MAX, "the answer does not end");
            bytes.extend_from_slice(&chunk);
        }
        let trailers = body.trailers().await?.unwrap_or_default();
        let status = status.or_else(|| trailers.get("grpc-status").cloned());
        if status.as_ref().is_none_or(|status| status != "0") {
            bail!("etcd says: {status:?} {:?}", trailers.get("grpc-message"));
        }
        ensure!(bytes.len() >= 5, "an answer without a message");
        bytes.advance(5);
        Ok(bytes.freeze())
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn field(out: &mut Vec<u8>, number: u8, bytes: &[u8]) {
    out.push(number << 3 | 2);
    let mut length = bytes.len();
    while length > 0x7f {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(bytes);
}

/// Returns the first field of that number in a message of protocol buffers.
fn find(mut message: &[u8], number: u64) -> Option<Field<'_>> {
    while !message.is_empty() {
        let tag = varint(&mut message)?;
        let found = match tag & 7 {
            0 => Field::Number(varint(&mut message)?),
            kind @ (1 | 2 | 5) => {
                let length = match kind {
                    1 => 8,
                    2 => usize::try_from(varint(&mut message)?).ok()?,
                    _ => 4,
                };
                let (bytes, rest) = message.split_at_checked(length)?;
                message = rest;
                Field::Bytes(bytes)
            }
            _ => return None,
        };
        if tag >> 3 == number {
            return Some(found);
        }
    }
    None
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Returns the version in the output of `etcd --version`.
pub fn version(output: &str) -> anyhow::Result<String> {
    let line = output.lines().find_map(|line| line.strip_prefix("etcd Version:"));
    Ok(line.context("etcd --version tells no version")?.trim().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_written_and_found() {
        let mut pair = Vec::new();
        field(&mut pair, 1, b"test::1");
        field(&mut pair, 5, &[7; 300]);
        let mut message = vec![1 << 3, 0xac, 0x02, 3 << 3 | 1, 1, 2, 3, 4, 5, 6, 7, 8];
        field(&mut message, 2, &pair);
        assert_eq!(find(&message, 1), Some(Field::Number(300)));
        assert_eq!(find(&message, 2), Some(Field::Bytes(&pair)));
        assert_eq!(find(&pair, 5), Some(Field::Bytes(&[7; 300])));
        assert_eq!(find(&message, 4), None);
        for cut in 0..message.len() {
            // No panic, wherever it is cut.
            find(&message[..cut], 2);
        }
        assert_eq!(find(&[0xff; 20], 1), None);
    }
}
