//! The handshake with a client, and the answer to one that speaks plain HTTP here.

use std::io::{Error, ErrorKind, Result};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use model::PlatformAddress;
use tls::book::ServedCertificate;
use tls::{ALPN_ACME, ALPN_HTTP_2, Tls};
use tokio_rustls::rustls::server::{Accepted, Acceptor, ClientHello};
use tokio_rustls::rustls::{Connection, ServerConfig, ServerConnection};

use crate::closing::close_gently;
use crate::far::sealed::Sealed;
use crate::plain::Plain;
use crate::pool::Pool;
use crate::stream::write_all;
use crate::time_limit::within;
use crate::wire::Wire;
use router_core::pages;

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

/// A client that asked for the platform itself in its first message, which is all that was read.
pub struct PlatformClient {
    pub stream: TcpStream,
    pub from: SocketAddr,
    pub hello: Accepted,
    /// What the handshake goes on with.
    pub config: Arc<ServerConfig>,
}

/// The outcome of a connection's beginning.
pub enum Greeted {
    Client(SecureClient),
    Platform(PlatformClient),
    /// It spoke plain HTTP and has been told so, or asked no more than whose a name is.
    Nobody,
}

/// A client after the handshake.
pub struct SecureClient {
    pub wire: Wire,
    /// Whether it chose HTTP/2.
    pub is_h2: bool,
    pub shown: ShownCertificate,
}

/// Shakes hands with a client. One that asks for `own_name` is given back after its first message.
pub async fn accept(
    stream: Plain,
    from: SocketAddr,
    config: Arc<ServerConfig>,
    certificates: &Tls,
    own_name: Option<&PlatformAddress>,
    pool: &Pool,
) -> Result<Greeted> {
    let first = within(HANDSHAKE_TIME_MAX, first_byte(&stream)).await?;
    if first != HANDSHAKE_RECORD {
        if first.is_ascii_uppercase() {
            explain(stream, pool).await?;
        }
        return Ok(Greeted::Nobody);
    }
    let mut tls = match own_name {
        None => ServerConnection::new(config),
        Some(own_name) => {
            let hello = within(HANDSHAKE_TIME_MAX, hello(&stream)).await?;
            if asks_for(&hello.client_hello(), own_name) {
                let (stream, config) = (stream.into_stream(), certificates.config_of_platform());
                return Ok(Greeted::Platform(PlatformClient { stream, from, hello, config }));
            }
            hello.into_connection(config).map_err(|(error, _)| error)
        }
    }
    .map_err(Error::other)?;
    within(HANDSHAKE_TIME_MAX, handshake(&stream, &mut tls)).await?;
    let is_h2 = match tls.alpn_protocol() {
        Some(ALPN_ACME) => return Ok(Greeted::Nobody),
        chosen => chosen == Some(ALPN_HTTP_2),
    };
    let asked = tls.server_name().map(str::to_ascii_lowercase);
    let certificate = certificates.certificate(asked.as_deref());
    let shown = ShownCertificate { asked, certificate };
    let sealed = Sealed::to_client(stream, Connection::Server(tls));
    Ok(Greeted::Client(SecureClient { wire: Wire::Sealed(Box::new(sealed)), is_h2, shown }))
}

/// Returns whether a client wants the platform, and not only to know whose the name is.
fn asks_for(hello: &ClientHello<'_>, own_name: &PlatformAddress) -> bool {
    let asks_whose = hello.alpn().is_some_and(|mut all| all.all(|one| one == ALPN_ACME));
    hello.server_name().is_some_and(|name| own_name.is(&name.to_ascii_lowercase())) && !asks_whose
}

/// Reads the first message of a client.
async fn hello(mut stream: &Plain) -> Result<Accepted> {
    let mut acceptor = Acceptor::default();
    loop {
        match acceptor.read_tls(&mut stream) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => match acceptor.accept() {
                Ok(Some(hello)) => return Ok(hello),
                Ok(None) => {}
                Err((error, mut alert)) => {
                    // The client is told why, if it still listens.
                    alert.write(&mut stream).ok();
                    return Err(Error::new(ErrorKind::InvalidData, error));
                }
            },
            Err(error) if error.kind() == ErrorKind::WouldBlock => stream.readable().await?,
            Err(error) => return Err(error),
        }
    }
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
