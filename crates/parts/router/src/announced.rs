//! The header in which a proxy before this one announces a client, taken off the front of its
//! connection: neither TLS nor HTTP sees it. It knows no request; the router's threads and
//! `cortex proxy` use it.

use std::io::{Error, ErrorKind, Result};
use std::time::Duration;

use router_core::proxy_protocol::{Addresses, BadHeader, HEADER_BYTES_MAX, parse};
use rustix::net::{RecvFlags, recv};
use tokio::io::{Interest, Ready};
use tokio::net::TcpStream;

use super::time_limit::within;

/// The time for the header: the specification asks for at least three seconds, a lost packet's
/// time.
const HEADER_TIME_MAX: Duration = Duration::from_secs(5);
/// Bytes looked at first, enough for a header without extensions; a larger one is looked at again.
const BYTES_FIRST: usize = 256;

/// The reason why nobody was announced.
#[derive(Debug)]
pub enum Unannounced {
    /// The other side left without a word.
    Left,
    Bad(Error),
}

/// Reads the header and not a byte more; `None` if the connection is the other proxy's own.
pub async fn read(stream: &TcpStream) -> std::result::Result<Option<Addresses>, Unannounced> {
    let mut seen = 0;
    let header = within(HEADER_TIME_MAX, take(stream, &mut seen)).await;
    header.map_err(|error| match (seen, error.kind()) {
        (0, ErrorKind::UnexpectedEof) => Unannounced::Left,
        _ => Unannounced::Bad(error),
    })
}

async fn take(stream: &TcpStream, seen: &mut usize) -> Result<Option<Addresses>> {
    let mut bytes = vec![0; BYTES_FIRST];
    loop {
        let ready = stream.ready(Interest::READABLE).await?;
        let looked = stream.try_io(Interest::READABLE, || look(stream, &mut bytes, seen, ready));
        let header = match looked {
            Ok(Some(header)) => header,
            // There is more of it.
            Ok(None) => {
                bytes.resize(HEADER_BYTES_MAX, 0);
                continue;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        let mut left = header.length;
        while left > 0 {
            match stream.try_read(&mut bytes[..left])? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => left -= count,
            }
        }
        return Ok(header.addresses);
    }
}

/// Looks for a header. If not all of it is there, the runtime forgets that there was something, so
/// that more is waited for.
fn look(
    stream: &TcpStream,
    bytes: &mut [u8],
    seen: &mut usize,
    ready: Ready,
) -> Result<Option<router_core::proxy_protocol::Header>> {
    let (_, count) = recv(stream, &mut *bytes, RecvFlags::PEEK)?;
    *seen = count;
    match parse(&bytes[..count]).map_err(invalid)? {
        Some(header) => Ok(Some(header)),
        None if count == bytes.len() && count < HEADER_BYTES_MAX => Ok(None),
        None if count == 0 || ready.is_read_closed() => Err(ErrorKind::UnexpectedEof.into()),
        None => Err(ErrorKind::WouldBlock.into()),
    }
}

fn invalid(error: BadHeader) -> Error {
    Error::new(ErrorKind::InvalidData, error)
}
