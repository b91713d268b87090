//! One client: a connection that is kept, or a new one for each request.

use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context, ensure};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::bench::process::on_loopback;
use crate::bench::proxy::workload::{Over, Workload};

/// What is read at a time; heads are shorter.
const BUFFER_BYTES: usize = 32 * 1024;
const HEADERS_MAX: usize = 32;

/// What all clients of a row ask for, and where.
pub struct Target {
    address: SocketAddr,
    request: Vec<u8>,
    keep_alive: bool,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

trait Stream: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Stream for T {}

pub struct Client {
    target: Rc<Target>,
    kept: Option<Box<dyn Stream>>,
    buffer: Vec<u8>,
}

impl Target {
    pub fn new(workload: &Workload, port: u16, certificate: &Path) -> anyhow::Result<Target> {
        let Workload { host, path, keep_alive, .. } = *workload;
        let close = if keep_alive { "" } else { "Connection: close\r\n" };
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{close}\r\n").into_bytes();
        let tls = match workload.over {
            Over::Plain => None,
            Over::Tls | Over::Http2 => {
                Some((trusting(certificate)?, ServerName::try_from(host.to_owned())?))
            }
        };
        Ok(Target { address: on_loopback(port), request, keep_alive, tls })
    }

    async fn connect(&self) -> anyhow::Result<Box<dyn Stream>> {
        let plain = TcpStream::connect(self.address).await?;
        plain.set_nodelay(true)?;
        Ok(match &self.tls {
            None => Box::new(plain),
            Some((connector, name)) => Box::new(connector.connect(name.clone(), plain).await?),
        })
    }
}

/// Resumes nothing: every handshake is a whole one.
fn trusting(certificate: &Path) -> anyhow::Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certificate)?)?;
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    Ok(TlsConnector::from(Arc::new(config)))
}

impl Client {
    /// Connected already, where connections are kept.
    pub async fn open(target: Rc<Target>) -> anyhow::Result<Client> {
        let kept = match target.keep_alive {
            true => Some(target.connect().await.context("connecting")?),
            false => None,
        };
        Ok(Client { target, kept, buffer: vec![0; BUFFER_BYTES] })
    }

    /// Until the answer is whole.
    pub async fn ask(&mut self) -> anyhow::Result<()> {
        let mut stream = match self.kept.take() {
            Some(stream) => stream,
            None => self.target.connect().await.context("connecting")?,
        };
        stream.write_all(&self.target.request).await.context("sending")?;
        self.answer(&mut *stream).await?;
        if self.target.keep_alive {
            self.kept = Some(stream);
        }
        Ok(())
    }

    async fn answer(&mut self, stream: &mut dyn Stream) -> anyhow::Result<()> {
        let mut count = 0;
        let mut left = loop {
            ensure!(count < self.buffer.len(), "the head is too long");
            let more = stream.read(&mut self.buffer[count..]).await.context("reading")?;
            ensure!(more > 0, "cut off in its head");
            count += more;
            if let Some(whole) = whole_bytes(&self.buffer[..count])? {
                break whole.checked_sub(count).context("more than was asked for")?;
            }
        };
        while left > 0 {
            let room = left.min(self.buffer.len());
            let more = stream.read(&mut self.buffer[..room]).await.context("reading")?;
            ensure!(more > 0, "cut off in its body");
            left -= more;
        }
        Ok(())
    }
}

/// Of an answer, once its head is there.
fn whole_bytes(bytes: &[u8]) -> anyhow::Result<Option<usize>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(head) = response.parse(bytes)? else { return Ok(None) };
    let status = response.code.context("an answer without a status")?;
    ensure!(status == 200, "status {status}");
    let length =
        response.headers.iter().find(|one| one.name.eq_ignore_ascii_case("content-length"));
    let length = length.context("an answer without a length")?;
    Ok(Some(head + std::str::from_utf8(length.value)?.parse::<usize>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_as_long_as_its_head_says() {
        let text = b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nok";
        let head = text.len() - 2;
        for end in 0..head {
            assert_eq!(whole_bytes(&text[..end]).unwrap(), None);
        }
        assert_eq!(whole_bytes(text).unwrap(), Some(head + 12));
        assert!(whole_bytes(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
        assert!(whole_bytes(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n").is_err());
    }
}
