//! The Redis protocol: requests are written directly, and answers are parsed as far as these three
//! actions need.

use std::net::SocketAddr;

use anyhow::{bail, ensure};
use tokio::net::TcpStream;

use super::{Action, Connection, connect, key, receive, send};

/// The most bytes of an answer; no answer of this measurement comes near, and a server that sends
/// more is broken.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

pub struct Resp {
    stream: TcpStream,
    request: Vec<u8>,
    answers: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RespValue {
    Simple(String),
    Number(i64),
    Bulk(Vec<u8>),
    Null,
    Error(String),
}

impl Resp {
    pub fn new(address: SocketAddr) -> anyhow::Result<Resp> {
        let stream = connect(address)?;
        Ok(Resp { stream, request: Vec::new(), answers: Vec::with_capacity(256) })
    }

    /// Sends a command without reading the answer.
    pub async fn tell(&mut self, words: &[&[u8]]) -> anyhow::Result<()> {
        self.request.clear();
        encode(words, &mut self.request);
        Ok(send(&self.stream, &self.request).await?)
    }

    pub async fn answer(&mut self) -> anyhow::Result<RespValue> {
        loop {
            if let Some((answer, length)) = parse(&self.answers)? {
                self.answers.drain(..length);
                return Ok(answer);
            }
            ensure!(self.answers.len() < ANSWER_BYTES_MAX, "the answer does not end");
            receive(&self.stream, &mut self.answers).await?;
        }
    }

    /// Sends an action without waiting for its result.
    pub async fn tell_action(&mut self, action: Action, turn: u64) -> anyhow::Result<()> {
        let (key, value) = (key(turn), turn.to_string());
        match action {
            Action::Set => self.tell(&[b"SET", key.as_bytes(), value.as_bytes()]).await,
            Action::Lookup => self.tell(&[b"GET", key.as_bytes()]).await,
            Action::Delete => self.tell(&[b"DEL", key.as_bytes()]).await,
        }
    }
}

impl Connection for Resp {
    async fn open(address: SocketAddr, _kept: bool) -> anyhow::Result<Resp> {
        Resp::new(address)
    }

    async fn perform(&mut self, action: Action, turn: u64) -> anyhow::Result<()> {
        self.tell_action(action, turn).await?;
        let answer = self.answer().await?;
        let good = match (action, &answer) {
            (Action::Set, RespValue::Simple(text)) => text == "OK",
            (Action::Lookup, RespValue::Bulk(value)) => *value == turn.to_string().as_bytes(),
            (Action::Delete, RespValue::Number(count)) => *count == 1,
            _ => false,
        };
        ensure!(good, "{action:?} of {} was answered with {answer:?}", key(turn));
        Ok(())
    }

    async fn close(self) {}
}

pub fn encode(words: &[&[u8]], out: &mut Vec<u8>) {
    let number = |out: &mut Vec<u8>, sign: u8, n: usize| {
        out.push(sign);
        out.extend_from_slice(n.to_string().as_bytes());
        out.extend_from_slice(b"\r\n");
    };
    number(out, b'*', words.len());
    for word in words {
        number(out, b'$', word.len());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// Returns the first answer and its length, once all of it is there.
fn parse(bytes: &[u8]) -> anyhow::Result<Option<(RespValue, usize)>> {
    let Some(line_end) = bytes.windows(2).position(|pair| pair == b"\r\n") else { return Ok(None) };
    let (Some(sign), Ok(line)) =
        (bytes.first(), std::str::from_utf8(&bytes[1.min(line_end)..line_end]))
    else {
        bail!("an answer that is not of the Redis protocol");
    };
    let after = line_end + 2;
    let answer = match sign {
        b'+' => RespValue::Simple(line.into()),
        b'-' => RespValue::Error(line.into()),
        b':' => RespValue::Number(line.parse()?),
        b'_' => RespValue::Null,
        b'$' if line == "-1" => RespValue::Null,
        b'$' => {
            let length: usize = line.parse()?;
            ensure!(length <= ANSWER_BYTES_MAX, "an answer of {length} bytes");
            let end = after + length;
            if bytes.len() < end + 2 {
                return Ok(None);
            }
            return Ok(Some((RespValue::Bulk(bytes[after..end].into()), end + 2)));
        }
        other => bail!("an answer that begins with {:?}", char::from(*other)),
    };
    Ok(Some((answer, after)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_written_and_answers_read() {
        let mut request = Vec::new();
        encode(&[b"SET", b"test::1", b"1"], &mut request);
        assert_eq!(request, b"*3\r\n$3\r\nSET\r\n$7\r\ntest::1\r\n$1\r\n1\r\n");

        let all: [(&[u8], RespValue); 6] = [
            (b"+OK\r\n", RespValue::Simple("OK".into())),
            (b"-ERR no\r\n", RespValue::Error("ERR no".into())),
            (b":1\r\n", RespValue::Number(1)),
            (b"$-1\r\n", RespValue::Null),
            (b"_\r\n", RespValue::Null),
            (b"$2\r\n\r\n\r\n", RespValue::Bulk(b"\r\n".into())),
        ];
        for (bytes, answer) in all {
            assert_eq!(parse(bytes).unwrap(), Some((answer, bytes.len())));
            for cut in 0..bytes.len() {
                // A line inside a value must not be taken for a complete answer.
                assert_eq!(parse(&bytes[..cut]).unwrap(), None, "{bytes:?} cut at {cut}");
            }
        }
        assert!(parse(b"HTTP/1.1 200 OK\r\n").is_err());
        assert!(parse(b"$99999999\r\n").is_err());
        assert!(parse(b"\r\n").is_err());
    }
}
