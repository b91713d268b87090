//! PostgreSQL's own protocol, version 3: one round trip for each action. A connection for one
//! action sends a plain query; one that is kept prepares its statements once.

use std::net::SocketAddr;

use anyhow::{Context, bail, ensure};
use tokio::net::TcpStream;

use super::{Action, Connection, TURN, connect, key, receive, send};

pub const USER: &str = "postgres";
pub const TABLE: &str = "CREATE TABLE kv (key text PRIMARY KEY, value text NOT NULL)";
const PROTOCOL: i32 = 196_608;
/// The most bytes of a message; no answer of this measurement comes near, and a server that sends
/// more is broken.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;

pub struct Postgres {
    stream: TcpStream,
    kept: bool,
    request: Vec<u8>,
    answers: Vec<u8>,
}

/// The result of a round trip, up to the server's "ready".
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    /// The first column of the last row.
    value: Option<Vec<u8>>,
    /// The command tag, such as `INSERT 0 1`.
    tag: String,
}

impl Postgres {
    /// Executes any statement without parameters.
    pub async fn execute(&mut self, statement: &str) -> anyhow::Result<()> {
        self.request.clear();
        message(&mut self.request, b'Q', &[statement.as_bytes(), b"\0"]);
        self.round_trip().await.map(drop)
    }

    async fn round_trip(&mut self) -> anyhow::Result<Outcome> {
        send(&self.stream, &self.request).await?;
        let mut outcome = Outcome::default();
        loop {
            while let Some((kind, length)) = whole(&self.answers)? {
                let done = outcome.take(kind, &self.answers[5..length])?;
                self.answers.drain(..length);
                if done {
                    return Ok(outcome);
                }
            }
            receive(&self.stream, &mut self.answers).await?;
        }
    }

    async fn prepare(&mut self) -> anyhow::Result<()> {
        self.request.clear();
        for action in TURN {
            let (name, statement) = prepared(action);
            let parts: [&[u8]; 4] = [name, statement.as_bytes(), b"\0", &0i16.to_be_bytes()];
            message(&mut self.request, b'P', &parts);
        }
        message(&mut self.request, b'S', &[]);
        self.round_trip().await.map(drop)
    }
}

impl Connection for Postgres {
    async fn open(address: SocketAddr, kept: bool) -> anyhow::Result<Postgres> {
        let stream = connect(address)?;
        let mut request = Vec::new();
        let parameters = format!("user\0{USER}\0database\0{USER}\0\0");
        request.extend_from_slice(&((parameters.len() + 8) as i32).to_be_bytes());
        request.extend_from_slice(&PROTOCOL.to_be_bytes());
        request.extend_from_slice(parameters.as_bytes());
        let mut opened = Postgres { stream, kept, request, answers: Vec::with_capacity(512) };
        opened.round_trip().await?;
        if kept {
            opened.prepare().await?;
        }
        Ok(opened)
    }

    async fn perform(&mut self, action: Action, turn: u64) -> anyhow::Result<()> {
        let (key, value) = (key(turn), turn.to_string());
        self.request.clear();
        if self.kept {
            let parameters: &[&str] = match action {
                Action::Set => &[&key, &value],
                Action::Lookup | Action::Delete => &[&key],
            };
            execute_prepared(&mut self.request, action, parameters);
        } else {
            let text = match action {
                Action::Set => format!(
                    "INSERT INTO kv VALUES ('{key}', '{value}') \
                     ON CONFLICT (key) DO UPDATE SET value = excluded.value"
                ),
                Action::Lookup => format!("SELECT value FROM kv WHERE key = '{key}'"),
                Action::Delete => format!("DELETE FROM kv WHERE key = '{key}'"),
            };
            message(&mut self.request, b'Q', &[text.as_bytes(), b"\0"]);
        }
        let outcome = self.round_trip().await?;
        let good = match action {
            Action::Set => outcome.tag == "INSERT 0 1",
            Action::Lookup => outcome.value.as_deref() == Some(value.as_bytes()),
            Action::Delete => outcome.tag == "DELETE 1",
        };
        ensure!(good, "{action:?} of {key} ended with {outcome:?}");
        Ok(())
    }

    async fn close(self) {
        let mut bye = Vec::new();
        message(&mut bye, b'X', &[]);
        // The connection is being closed anyway.
        send(&self.stream, &bye).await.ok();
    }
}

/// Returns the name of a prepared statement, ended by a zero, and the statement.
fn prepared(action: Action) -> (&'static [u8], &'static str) {
    match action {
        Action::Set => (
            b"set\0",
            "INSERT INTO kv VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        ),
        Action::Lookup => (b"lookup\0", "SELECT value FROM kv WHERE key = $1"),
        Action::Delete => (b"delete\0", "DELETE FROM kv WHERE key = $1"),
    }
}

fn execute_prepared(out: &mut Vec<u8>, action: Action, parameters: &[&str]) {
    // The unnamed portal, with parameters and results as text.
    let mut bind = vec![0];
    bind.extend_from_slice(prepared(action).0);
    bind.extend_from_slice(&0i16.to_be_bytes());
    bind.extend_from_slice(&(parameters.len() as i16).to_be_bytes());
    for parameter in parameters {
        bind.extend_from_slice(&(parameter.len() as i32).to_be_bytes());
        bind.extend_from_slice(parameter.as_bytes());
    }
    bind.extend_from_slice(&0i16.to_be_bytes());
    message(out, b'B', &[&bind]);
    // Executes it to the end, then syncs.
    message(out, b'E', &[b"\0", &0i32.to_be_bytes()]);
    message(out, b'S', &[]);
}

fn message(out: &mut Vec<u8>, kind: u8, parts: &[&[u8]]) {
    let length: usize = 4 + parts.iter().map(|part| part.len()).sum::<usize>();
    out.push(kind);
    out.extend_from_slice(&(length as i32).to_be_bytes());
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

/// Returns the first message's kind and total length, once all of it is there.
fn whole(bytes: &[u8]) -> anyhow::Result<Option<(u8, usize)>> {
    let Some((head, _)) = bytes.split_first_chunk::<5>() else { return Ok(None) };
    let length = i32::from_be_bytes([head[1], head[2], head[3], head[4]]);
    let length = usize::try_from(length).context("a message of negative length")? + 1;
    ensure!((5..=MESSAGE_BYTES_MAX).contains(&length), "a message of {length} bytes");
    Ok((bytes.len() >= length).then_some((head[0], length)))
}

impl Outcome {
    /// Takes a message; returns true at the server's "ready for query".
    fn take(&mut self, kind: u8, body: &[u8]) -> anyhow::Result<bool> {
        match kind {
            b'Z' => return Ok(true),
            b'R' => ensure!(body == 0i32.to_be_bytes(), "a password is asked for"),
            b'D' => self.value = first_column(body),
            b'C' => {
                self.tag = String::from_utf8_lossy(body.strip_suffix(b"\0").unwrap_or(body)).into();
            }
            b'E' => bail!("PostgreSQL says: {}", told(body)),
            // Parameters, keys, notices, descriptions, parsed, bound.
            _ => {}
        }
        Ok(false)
    }
}

fn first_column(row: &[u8]) -> Option<Vec<u8>> {
    let length = i32::from_be_bytes(row.get(2..6)?.try_into().ok()?);
    Some(row.get(6..6 + usize::try_from(length).ok()?)?.into())
}

/// Returns the field `M` of an error, its message.
fn told(body: &[u8]) -> String {
    let field = body.split(|byte| *byte == 0).find_map(|field| field.strip_prefix(b"M"));
    String::from_utf8_lossy(field.unwrap_or(b"nothing")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_framed_and_read() {
        let mut out = Vec::new();
        message(&mut out, b'Q', &[b"x", b"\0"]);
        assert_eq!(out, b"Q\0\0\0\x06x\0");
        assert_eq!(whole(&out).unwrap(), Some((b'Q', 7)));
        for cut in 0..out.len() {
            assert_eq!(whole(&out[..cut]).unwrap(), None);
        }
        assert!(whole(b"Q\xff\xff\xff\xff").is_err());
        assert!(whole(b"Q\x7f\0\0\0").is_err());
    }

    #[test]
    fn an_outcome_has_the_value_the_tag_and_the_error() {
        let mut outcome = Outcome::default();
        assert!(!outcome.take(b'D', b"\0\x01\0\0\0\x027!").unwrap());
        assert!(!outcome.take(b'C', b"SELECT 1\0").unwrap());
        assert!(outcome.take(b'Z', b"I").unwrap());
        assert_eq!(outcome.value.as_deref(), Some(b"7!".as_slice()));
        assert_eq!(outcome.tag, "SELECT 1");
        let error = Outcome::default().take(b'E', b"SFATAL\0C53300\0Mtoo many clients\0\0");
        assert!(error.unwrap_err().to_string().contains("too many clients"));
        assert!(Outcome::default().take(b'R', &[0, 0, 0, 10]).is_err());
        assert_eq!(first_column(b"\0\x01\xff\xff\xff\xff"), None);
        assert_eq!(first_column(b"\0\x01\0\0\0\x09a"), None);
    }
}
