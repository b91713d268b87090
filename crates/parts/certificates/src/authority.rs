//! HTTP to an authority, for the client of the protocol: one connection for each request, over TLS,
//! with limits on time and size. Knows how far a request came when it failed, and what the
//! authority says of when to try again.

use std::cell::Cell;
use std::error::Error as StdError;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, anyhow};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::header::{self, HeaderValue};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use instant_acme::{BodyWrapper, BytesResponse, HttpClient};
use runtime::web;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// The time for a connection with its handshake.
const CONNECT_MAX: Duration = Duration::from_secs(15);
/// The time for an answer: authorities check the request before they answer.
const ANSWER_MAX: Duration = Duration::from_secs(45);
/// Bytes of an answer: a chain of certificates has a few thousand, a directory less.
const ANSWER_BYTES_MAX: usize = 1 << 20;
const HTTPS_PORT: u16 = 443;

tokio::task_local! {
    /// What the last answer of this task's authority that was an error said of when to try again.
    static RETRY_AFTER: Cell<Option<Duration>>;
}

/// Runs requests; returns with their result what the authority said last of when to try again.
pub async fn noting<T>(work: impl Future<Output = T>) -> (T, Option<Duration>) {
    RETRY_AFTER
        .scope(Cell::new(None), async move {
            let result = work.await;
            (result, RETRY_AFTER.with(Cell::get))
        })
        .await
}

#[derive(Debug, Error)]
pub enum RequestError {
    /// The request did not leave this machine.
    #[error("{host} cannot be reached: {why}")]
    Unreached { host: String, why: String },
    /// It may have been served.
    #[error("{host} did not answer: {why}")]
    Unanswered { host: String, why: String },
}

#[derive(Clone)]
pub struct AuthorityClient {
    tls: Arc<ClientConfig>,
}

impl AuthorityClient {
    /// Makes a client that trusts these authorities, or those that the machine trusts.
    pub fn new(roots: Option<&str>) -> anyhow::Result<AuthorityClient> {
        let roots = match roots {
            Some(pem) => roots_of(pem)?,
            None => web::roots_of_machine()?,
        };
        Ok(AuthorityClient { tls: web::client_config(roots, None)? })
    }
}

/// Reads certificates of authorities in PEM form.
pub fn roots_of(pem: &str) -> anyhow::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let certificate = certificate.context("these are no certificates in PEM form")?;
        roots.add(certificate).context("a certificate of an authority is no good")?;
    }
    if roots.is_empty() {
        return Err(anyhow!("there is no certificate in PEM form in it"));
    }
    Ok(roots)
}

impl HttpClient for AuthorityClient {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, instant_acme::Error>> + Send>> {
        let tls = self.tls.clone();
        Box::pin(async move {
            let answer = ask(tls, request).await;
            let answer = answer.map_err(|error| instant_acme::Error::Other(Box::new(error)))?;
            if answer.status().is_client_error() || answer.status().is_server_error() {
                let said = answer.headers().get(header::RETRY_AFTER).and_then(retry_after);
                // Outside of `noting` nobody wants to know.
                RETRY_AFTER.try_with(|cell| cell.set(said)).ok();
            }
            Ok(BytesResponse::from(answer.map(Full::new)))
        })
    }
}

async fn ask(
    tls: Arc<ClientConfig>,
    request: Request<BodyWrapper<Bytes>>,
) -> Result<Response<Bytes>, RequestError> {
    let host = request.uri().host().unwrap_or_default().to_string();
    let unreached = |why: String| RequestError::Unreached { host: host.clone(), why };
    let unanswered = |why: String| RequestError::Unanswered { host: host.clone(), why };
    let addressed = addressed(request).map_err(|error| unreached(format!("{error:#}")))?;
    let Addressed { request, address, name } = addressed;
    let connecting = async {
        let stream = TcpStream::connect(address).await?;
        let stream = TlsConnector::from(tls).connect(name, stream).await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        anyhow::Ok((sender, connection))
    };
    let connected = timeout(CONNECT_MAX, connecting).await;
    let connected = connected.unwrap_or_else(|_| Err(anyhow!("no connection within 15 seconds")));
    let (mut sender, connection) = connected.map_err(|error| unreached(format!("{error:#}")))?;
    let connection = runtime::task::spawn(async move { drop(connection.await) });
    let answering = async {
        let answer = sender.send_request(request).await.map_err(|error| chain(&error))?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| chain(&*error))?.to_bytes();
        Ok(Response::from_parts(head, body))
    };
    let answer = timeout(ANSWER_MAX, answering).await;
    connection.abort();
    answer.unwrap_or_else(|_| Err("no answer within 45 seconds".into())).map_err(unanswered)
}

fn chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

/// A request as it is sent to the server itself, and where that is.
struct Addressed {
    request: Request<BodyWrapper<Bytes>>,
    address: (String, u16),
    name: ServerName<'static>,
}

fn addressed(request: Request<BodyWrapper<Bytes>>) -> anyhow::Result<Addressed> {
    let (mut head, body) = request.into_parts();
    let authority = head.uri.authority().context("it names no server")?.clone();
    anyhow::ensure!(head.uri.scheme_str() == Some("https"), "only https:// will do");
    let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_string();
    let name = ServerName::try_from(host.clone()).context("it names no server")?;
    let port = authority.port_u16().unwrap_or(HTTPS_PORT);
    head.headers.insert(header::HOST, HeaderValue::from_str(authority.as_str())?);
    let path = head.uri.path_and_query().context("it names no resource")?.clone();
    head.uri = Uri::from(path);
    let request = Request::from_parts(head, body);
    Ok(Addressed { request, address: (host, port), name })
}

/// Reads how long is to be waited: seconds, or a date.
fn retry_after(value: &HeaderValue) -> Option<Duration> {
    let text = value.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = httpdate::parse_http_date(text).ok()?;
    at.duration_since(SystemTime::now()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_read_in_both_forms() {
        let read = |text: &str| retry_after(&HeaderValue::from_str(text).unwrap());
        assert_eq!(read("120"), Some(Duration::from_secs(120)));
        let hour = Duration::from_secs(3600);
        let later = read(&httpdate::fmt_http_date(SystemTime::now() + hour)).unwrap();
        assert!(later <= hour && later > hour - Duration::from_secs(60), "{later:?}");
        assert_eq!(read("Sun, 06 Nov 1994 08:49:37 GMT"), None);
        assert_eq!(read("soon"), None);
    }

    #[test]
    fn requests_go_to_the_server_that_they_name() {
        let to = |uri: &str| {
            let request = Request::builder().uri(uri).body(BodyWrapper::default()).unwrap();
            addressed(request).map(|one| (one.request, one.address))
        };
        let (request, address) = to("https://127.0.0.1:14000/dir?x=1").unwrap();
        assert_eq!(address, ("127.0.0.1".into(), 14000));
        assert_eq!(request.uri(), "/dir?x=1");
        assert_eq!(request.headers()[header::HOST], "127.0.0.1:14000");
        assert_eq!(to("https://ca.example/dir").unwrap().1, ("ca.example".into(), 443));
        assert!(to("http://ca.example/dir").is_err());
    }

    #[test]
    fn roots_are_certificates() {
        let key = rcgen::KeyPair::generate().unwrap();
        let authority = rcgen::CertificateParams::new(Vec::new()).unwrap().self_signed(&key);
        assert_eq!(roots_of(&authority.unwrap().pem()).unwrap().len(), 1);
        assert!(roots_of("").is_err() && roots_of("nothing").is_err());
    }
}
