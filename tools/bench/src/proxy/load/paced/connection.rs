//! One client of the load at a rate: on a connection that is kept, or on a new one for each
//! request.

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

use crate::answer::Head;
use crate::process::on_loopback;
use crate::proxy::workload::{Over, Workload};

/// The most bytes read at a time; heads are shorter.
const BUFFER_BYTES: usize = 32 * 1024;

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

/// Returns a connector that resumes nothing: every handshake is a full one.
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
    /// Creates a client, already connected if connections are kept.
    pub async fn open(target: Rc<Target>) -> anyhow::Result<Client> {
        let kept = match target.keep_alive {
            true => Some(target.connect().await.context("connecting")?),
            false => None,
        };
        Ok(Client { target, kept, buffer: vec![0; BUFFER_BYTES] })
    }

    /// Sends the request and waits until the answer is complete.
    pub async fn ask(&mut self) -> anyhow::Result<()> {
        let mut stream = match self.kept.take() {
            Some(stream) => stream,
            None => self.target.connect().await.context("connecting")?,
        };
        stream.write_all(&self.target.request).await.context("sending")?;
        let head = self.answer(&mut *stream).await?;
        ensure!(head.status == 200, "status {}", head.status);
        if self.target.keep_alive && !head.closes {
            self.kept = Some(stream);
        }
        Ok(())
    }

    async fn answer(&mut self, stream: &mut dyn Stream) -> anyhow::Result<Head> {
        let mut count = 0;
        let head = loop {
            ensure!(count < self.buffer.len(), "the head is too long");
            let more = stream.read(&mut self.buffer[count..]).await.context("reading")?;
            ensure!(more > 0, "cut off in its head");
            count += more;
            if let Some(head) = Head::parse(&self.buffer[..count])? {
                break head;
            }
        };
        let left = head.whole_bytes.checked_sub(count);
        let mut left = left.context("more than was asked for")?;
        while left > 0 {
            let room = left.min(self.buffer.len());
            let more = stream.read(&mut self.buffer[..room]).await.context("reading")?;
            ensure!(more > 0, "cut off in its body");
            left -= more;
        }
        Ok(head)
    }
}
