//! Clients that asked once and keep their connections open, which may cost those who are busy.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, ensure};

use super::SMALL_BYTES;
use super::workload::Workload;
use crate::process::on_loopback;

/// The time limit for an answer, even of a loaded machine; reached only when something is wrong.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
/// The size of the buffer for an answer: its body and its head, which is shorter with all
/// contenders.
const ANSWER_BYTES_MAX: usize = SMALL_BYTES + 4096;

/// Idle connections, open until they are dropped.
pub struct Idle {
    _connections: Vec<TcpStream>,
}

impl Idle {
    /// Opens the idle connections of a workload, in clear.
    pub fn open(workload: &Workload, port: u16) -> anyhow::Result<Idle> {
        let one = |_| ask(workload, port).context("a connection that is to be idle");
        Ok(Idle { _connections: (0..workload.idle).map(one).collect::<anyhow::Result<_>>()? })
    }
}

fn ask(workload: &Workload, port: u16) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(on_loopback(port))?;
    stream.set_read_timeout(Some(ANSWER_TIME_MAX))?;
    // The request is written in one piece: the kernel holds a second one back until the first is
    // acknowledged.
    let request = format!("GET {} HTTP/1.1\r\nHost: {}\r\n\r\n", workload.path, workload.host);
    stream.write_all(request.as_bytes())?;
    let mut answer = vec![0; ANSWER_BYTES_MAX];
    let mut count = 0;
    while whole(&answer[..count]).is_none() {
        let more = stream.read(&mut answer[count..])?;
        ensure!(more > 0, "it was closed before its answer was whole");
        count += more;
    }
    ensure!(answer.starts_with(b"HTTP/1.1 200"), "its answer was not 200");
    Ok(stream)
}

/// Returns `Some` once head and content are there.
fn whole(answer: &[u8]) -> Option<()> {
    let head = answer.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    (answer.len() >= head + SMALL_BYTES).then_some(())
}
