//! The handshake with a client, and the answer to one that speaks plain HTTP here.

use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::time::Duration;

use tls::book::ServedCertificate;
use tls::{ALPN_ACME, ALPN_HTTP_2, Tls};
use tokio_rustls::rustls::{Connection, ServerConfig, ServerConnection};

use crate::closing::close_gently;
use crate::far::sealed::Sealed;
use crate::pages;
use crate::plain::Plain;
use crate::pool::Pool;
use crate::stream::write_all;
use crate::time_limit::within;
use crate::wire::Wire;

/// The time for the handshake over the slowest line; a client that takes longer holds a place for
/// nothing.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);
/// The first byte of TLS: a record of the handshake.
const HANDSHAKE_RECORD: u8 = 0x16;

/// The certificate that a client was shown: it may ask for more names of it than one on its
/// connection.
#[derive(Debug)]
pub struct ShownCertificate {
    /// The name that the client asked for, in lower case.
    pub asked: Option<String>,
    pub certificate: Option<Arc<ServedCertificate>>,
}

/// A client after the handshake.
pub struct SecureClient {
    pub wire: Wire,
    /// Whether it chose HTTP/2.
    pub is_h2: bool,
    pub shown: ShownCertificate,
}

/// Returns the client's connection; `None` if it spoke plain HTTP and has been told so, or asked no
/// more than whose a name is.
pub async fn accept(
    stream: Plain,
    config: Arc<ServerConfig>,
    certificates: &Tls,
    pool: &Pool,
) -> Result<Option<SecureClient>> {
    let first = within(HANDSHAKE_TIME_MAX, first_byte(&stream)).await?;
    if first != HANDSHAKE_RECORD {
        if first.is_ascii_uppercase() {
            explain(stream, pool).await?;
        }
        return Ok(None);
    }
    let mut tls = ServerConnection::new(config).map_err(Error::other)?;
    within(HANDSHAKE_TIME_MAX, handshake(&stream, &mut tls)).await?;
    let is_h2 = match tls.alpn_protocol() {
        Some(ALPN_ACME) => return Ok(None),
        chosen => chosen == Some(ALPN_HTTP_2),
    };
    let asked = tls.server_name().map(str::to_ascii_lowercase);
    let certificate = certificates.certificate(asked.as_deref());
    let shown = ShownCertificate { asked, certificate };
    let sealed = Sealed::to_client(stream, Connection::Server(tls));
    Ok(Some(SecureClient { wire: Wire::Sealed(Box::new(sealed)), is_h2, shown }))
}

async fn first_byte(stream: &Plain) -> Result<u8> {
    loop {
        match stream.first() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => stream.readable().await?,
            first => return first?.ok_or_else(|| ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Shakes hands until both sides have finished, with all of it sent.
async fn handshake(mut stream: &Plain, tls: &mut ServerConnection) -> Result<()> {
    loop {
        while tls.wants_write() {
            match tls.write_tls(&mut stream) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => stream.writable().await?,
                Err(error) => return Err(error),
            }
        }
        if !tls.is_handshaking() {
            return Ok(());
        }
        match tls.read_tls(&mut stream) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => {
                if let Err(error) = tls.process_new_packets() {
                    // The client is told why, if it still listens.
                    tls.write_tls(&mut stream).ok();
                    return Err(Error::new(ErrorKind::InvalidData, error));
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => stream.readable().await?,
            Err(error) => return Err(error),
        }
    }
}

async fn explain(stream: Plain, pool: &Pool) -> Result<()> {
    let stream = Wire::from(stream);
    let mut out = pool.scratch();
    pages::PLAIN_ON_TLS.write(&mut out, false, false);
    let written = write_all(&stream, &out, HANDSHAKE_TIME_MAX).await;
    pool.give_back_scratch(out);
    written?;
    let buffer = close_gently(stream, pool.buffer()).await;
    pool.give_back(buffer);
    Ok(())
}
