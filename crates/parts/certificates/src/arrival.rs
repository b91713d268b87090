//! Whether requests for a name come to this cluster: what DNS says, and a request through the name
//! itself for something that only this cluster can answer. It is asked for just as an authority
//! asks for HTTP-01, so what arrives here arrives there.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use acme_core::Arrival;
use anyhow::Context;
use model::CertificateName;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};

/// The ports at which authorities ask; no other will do (RFC 8555, section 8.3; RFC 8737).
pub const HTTP_PORT: u16 = 80;
pub const HTTPS_PORT: u16 = 443;
/// The protocol of TLS-ALPN-01.
const ALPN: &[u8] = b"acme-tls/1";
const PATH: &str = "/.well-known/acme-challenge/";
/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 8;
const LOOKUP_MAX: Duration = Duration::from_secs(10);
/// The time for one address; authorities give ten seconds.
const TRY_MAX: Duration = Duration::from_secs(5);
/// Bytes of an answer that are read: a head and a token.
const ANSWER_BYTES_MAX: u64 = 16 * 1024;
const HEADERS_MAX: usize = 64;

/// What was found out about a name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// The addresses that DNS has for it.
    pub addresses: Vec<IpAddr>,
    /// The reason why there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lookup: Option<String>,
    /// What each of them answers.
    pub answers: Vec<Answered>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answered {
    pub address: IpAddr,
    pub secure: bool,
    pub outcome: Answer,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", content = "why", rename_all = "snake_case")]
pub enum Answer {
    /// This cluster answered.
    Here,
    /// Something else did.
    Other(String),
    /// Nothing did.
    Silent(String),
}

impl Found {
    pub fn arrival(&self) -> Arrival {
        if let Some(why) = &self.lookup {
            return Arrival::Elsewhere { why: why.clone() };
        }
        let here = |secure| {
            let of = self.answers.iter().filter(move |one| one.secure == secure);
            of.clone().any(|one| one.outcome == Answer::Here)
                && of.clone().all(|one| !matches!(one.outcome, Answer::Other(_)))
        };
        let (http, https) = (here(false), here(true));
        if http || https {
            return Arrival::Arrives { http, https };
        }
        for one in &self.answers {
            if let Answer::Other(why) = &one.outcome {
                return Arrival::Elsewhere { why: format!("{}: {why}", one.address) };
            }
        }
        let why = self.answers.iter().map(|one| match &one.outcome {
            Answer::Silent(why) | Answer::Other(why) => format!("{}: {why}", one.address),
            Answer::Here => String::new(),
        });
        Arrival::Unknown { why: why.collect::<Vec<_>>().join("; ") }
    }
}

/// Finds out whether a name comes here: it asks for `nonce`, to which this cluster answers with the
/// thumbprint of its account.
pub async fn find(name: &CertificateName, nonce: &str, thumbprint: &str) -> Found {
    let addresses = match lookup(name).await {
        Ok(addresses) => addresses,
        Err(why) => return Found { lookup: Some(why), ..Found::default() },
    };
    let expected = format!("{nonce}.{thumbprint}");
    let path = format!("{PATH}{nonce}");
    let mut answers = Vec::new();
    for address in &addresses {
        let outcome = ask(*address, name, &path, &expected, false).await;
        let is_here = outcome == Answer::Here;
        answers.push(Answered { address: *address, secure: false, outcome });
        if !is_here {
            let outcome = ask(*address, name, &path, &expected, true).await;
            answers.push(Answered { address: *address, secure: true, outcome });
        }
    }
    Found { addresses, lookup: None, answers }
}

/// Returns the addresses that this machine's resolver has for a name.
pub async fn lookup(name: &CertificateName) -> Result<Vec<IpAddr>, String> {
    let host = match name {
        CertificateName::Address(address) => return Ok(vec![*address]),
        // No record is for the star itself; any label will do.
        CertificateName::Domain(domain) => match domain.as_str().strip_prefix("*.") {
            Some(parent) => format!("cortex.{parent}"),
            None => domain.to_string(),
        },
    };
    // With a dot at its end, no search list of this machine is added.
    let looking = tokio::net::lookup_host((format!("{host}."), HTTP_PORT));
    match timeout(LOOKUP_MAX, looking).await {
        Err(_) => Err(format!("DNS does not answer for {host}")),
        Ok(Err(error)) => Err(format!("DNS has no address for {host} ({error})")),
        Ok(Ok(found)) => {
            let mut addresses: Vec<IpAddr> =
                found.map(|address| address.ip().to_canonical()).collect();
            addresses.sort_unstable();
            addresses.dedup();
            addresses.truncate(ADDRESSES_MAX);
            match addresses.is_empty() {
                true => Err(format!("DNS has no address for {host}")),
                false => Ok(addresses),
            }
        }
    }
}

async fn ask(
    address: IpAddr,
    name: &CertificateName,
    path: &str,
    expected: &str,
    secure: bool,
) -> Answer {
    let port = if secure { HTTPS_PORT } else { HTTP_PORT };
    let asking = async {
        let stream = TcpStream::connect(SocketAddr::new(address, port)).await;
        let stream = stream.map_err(|error| Answer::Silent(format!("port {port}: {error}")))?;
        let silent = |error: anyhow::Error| Answer::Silent(format!("port {port}: {error:#}"));
        let got = match secure {
            false => get(stream, name, path).await.map_err(silent)?,
            true => {
                let stream = handshake(stream, name, &[]).await.map_err(silent)?;
                get(stream, name, path).await.map_err(silent)?
            }
        };
        match got {
            (200, body) if body.trim_ascii() == expected.as_bytes() => Ok(Answer::Here),
            (status, _) => Ok(Answer::Other(format!(
                "something else answers on port {port} (status {status})"
            ))),
        }
    };
    let within = timeout(TRY_MAX, asking).await;
    let late = || Err(Answer::Silent(format!("port {port}: no answer within 5 seconds")));
    within.unwrap_or_else(|_| late()).unwrap_or_else(|answer| answer)
}

async fn get<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    name: &CertificateName,
    path: &str,
) -> anyhow::Result<(u16, Vec<u8>)> {
    let host = match name {
        CertificateName::Address(IpAddr::V6(address)) => format!("[{address}]"),
        other => other.to_string(),
    };
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: cortex\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let mut answer = Vec::new();
    let reading = (&mut stream).take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await;
    // A TLS connection that ends without a farewell has said what there was to say.
    if answer.is_empty() {
        reading?;
    }
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Response::new(&mut headers);
    match head.parse(&answer) {
        Ok(httparse::Status::Complete(length)) => {
            let status = head.code.context("it does not speak HTTP")?;
            Ok((status, answer[length..].to_vec()))
        }
        _ => anyhow::bail!("it does not speak HTTP"),
    }
}

/// Finds out whether a name comes here at port 443, as an authority does that asks by TLS-ALPN-01:
/// whether the certificate with this hash is shown there, which all nodes were given.
pub async fn find_shown(name: &CertificateName, hash: &str) -> Found {
    let addresses = match lookup(name).await {
        Ok(addresses) => addresses,
        Err(why) => return Found { lookup: Some(why), ..Found::default() },
    };
    let mut answers = Vec::new();
    for address in &addresses {
        let shown = async {
            let stream = TcpStream::connect(SocketAddr::new(*address, HTTPS_PORT)).await?;
            let stream = handshake(stream, name, &[ALPN]).await?;
            let shown = stream.get_ref().1.peer_certificates().and_then(|all| all.first());
            let shown = shown.map(|one| model::hex::to_hex(blake3::hash(one).as_bytes()));
            anyhow::Ok(shown.as_deref() == Some(hash))
        };
        let port = HTTPS_PORT;
        let outcome = match timeout(TRY_MAX, shown).await {
            Ok(Ok(true)) => Answer::Here,
            Ok(Ok(false)) => Answer::Other(format!("something else answers on port {port}")),
            Ok(Err(error)) => Answer::Silent(format!("port {port}: {error:#}")),
            Err(_) => Answer::Silent(format!("port {port}: no answer within 5 seconds")),
        };
        answers.push(Answered { address: *address, secure: true, outcome });
    }
    Found { addresses, lookup: None, answers }
}

async fn handshake(
    stream: TcpStream,
    name: &CertificateName,
    protocols: &[&[u8]],
) -> anyhow::Result<TlsStream<TcpStream>> {
    let provider = Arc::new(ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|one| one.to_vec()).collect();
    let name = ServerName::try_from(asked_for(name))?;
    Ok(TlsConnector::from(Arc::new(config)).connect(name, stream).await?)
}

/// Returns the name that a handshake asks for. An address is asked for by the name that DNS has for
/// it, as authorities do (RFC 8738, section 6).
fn asked_for(name: &CertificateName) -> String {
    match name {
        CertificateName::Domain(domain) => domain.to_string(),
        CertificateName::Address(IpAddr::V4(address)) => {
            let [a, b, c, d] = address.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        CertificateName::Address(IpAddr::V6(address)) => {
            let digits = format!("{:032x}", address.to_bits());
            let digits: String = digits.chars().rev().flat_map(|digit| [digit, '.']).collect();
            format!("{digits}ip6.arpa")
        }
    }
}

/// Takes any certificate: the name may not have one yet, and what is asked for is no secret.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    // The certificate of a challenge has an extension that the usual check does not know. Whoever
    // shows it was given it by this cluster, and nothing is said to them that others may not hear.
    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    fn answered(address: &str, secure: bool, outcome: Answer) -> Answered {
        Answered { address: address.parse().unwrap(), secure, outcome }
    }

    fn found(answers: Vec<Answered>) -> Arrival {
        let addresses = answers.iter().map(|one| one.address).collect();
        Found { addresses, lookup: None, answers }.arrival()
    }

    #[test]
    fn one_address_that_is_not_here_is_enough_to_fail() {
        let here = || answered("192.0.2.1", false, Answer::Here);
        assert_eq!(found(vec![here()]), Arrival::Arrives { http: true, https: false });
        let other = answered("192.0.2.9", false, Answer::Other("a page".into()));
        assert!(matches!(found(vec![here(), other]), Arrival::Elsewhere { .. }));
        let silent = answered("2001:db8::1", false, Answer::Silent("refused".into()));
        assert_eq!(found(vec![here(), silent]), Arrival::Arrives { http: true, https: false });
        let silent = answered("2001:db8::1", false, Answer::Silent("refused".into()));
        assert!(matches!(found(vec![silent]), Arrival::Unknown { .. }));
    }

    async fn answers(body: &'static str) -> (u16, Vec<u8>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            let read = stream.read(&mut request).await.unwrap();
            stream.write_all(body.as_bytes()).await.unwrap();
            String::from_utf8_lossy(&request[..read]).into_owned()
        });
        let stream = TcpStream::connect(address).await.unwrap();
        let got = get(stream, &"a.example".parse().unwrap(), "/x").await;
        assert!(serving.await.unwrap().starts_with("GET /x HTTP/1.1\r\nHost: a.example\r\n"));
        got.unwrap_or((0, Vec::new()))
    }

    #[test]
    fn addresses_are_asked_for_by_their_reverse_names() {
        for address in ["192.0.2.7", "2001:db8::7"] {
            let name: CertificateName = address.parse().unwrap();
            assert_eq!(CertificateName::asked_for(&asked_for(&name)), Some(name));
        }
    }

    #[tokio::test]
    async fn an_answer_is_read_and_nonsense_is_none() {
        let good = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\na.b";
        assert_eq!(answers(good).await, (200, b"a.b".to_vec()));
        assert_eq!(answers("SSH-2.0-OpenSSH\r\n").await.0, 0);
    }
}
