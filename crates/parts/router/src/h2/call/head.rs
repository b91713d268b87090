//! Heads of requests to instances and of their answers, from the form of HTTP/1.1 to that of
//! HTTP/2, and back.

use std::io::{Error, ErrorKind, Result};
use std::mem::MaybeUninit;

use bytes::Bytes;
use hyper::header::{CONTENT_LENGTH, HeaderName, HeaderValue, TE};
use hyper::http::response;
use hyper::{HeaderMap, Request, Uri};

use router_core::h2::answer::{Framing, OWN_HEADERS};
use router_core::h2::chunks::ChunkReader;
use router_core::h2::{content_length, is_of_connection};
use router_core::http::{HEADERS_MAX, put_header};

/// A head of HTTP/1.1 that was read.
#[derive(Debug)]
pub struct ReadHead {
    pub request: Request<()>,
    pub framing: Framing,
    pub length: usize,
    /// The part of a body of known length that has come, in one piece with the head's values.
    pub content: Bytes,
}

fn framing(headers: &[httparse::Header<'_>]) -> Framing {
    let find = |name: &str| headers.iter().find(|one| one.name.eq_ignore_ascii_case(name));
    if find("transfer-encoding").is_some() {
        return Framing::Chunked;
    }
    let length = find("content-length").and_then(|one| content_length(one.value));
    length.map_or(Framing::Empty, Framing::Length)
}

/// Returns a copy of the head with what came of its body, and the latter alone.
fn copy(bytes: &[u8], head: usize, framing: Framing) -> (Bytes, Bytes) {
    let content = match framing {
        Framing::Length(length) => usize::try_from(length).unwrap_or(usize::MAX),
        Framing::Empty | Framing::Chunked | Framing::UntilClose => 0,
    };
    let end = head.saturating_add(content).min(bytes.len());
    let copy = Bytes::copy_from_slice(&bytes[..end]);
    let content = copy.slice(head..);
    (copy, content)
}

/// Adds a field of `bytes`, whose `copy` all values share.
fn put(fields: &mut HeaderMap, header: &httparse::Header<'_>, copy: &Bytes, bytes: &[u8]) {
    // An empty value may lie elsewhere.
    let at = header.value.as_ptr().addr().wrapping_sub(bytes.as_ptr().addr());
    let value = match header.value.len() {
        0 => Bytes::new(),
        length => copy.slice(at..at + length),
    };
    let name = HeaderName::from_bytes(header.name.as_bytes());
    if let (Ok(name), Ok(value)) = (name, HeaderValue::from_maybe_shared(value)) {
        fields.append(name, value);
    }
}

/// Reads a request to an instance, once all of its head is there.
pub fn call(bytes: &[u8]) -> Result<Option<ReadHead>> {
    let mut headers = [const { MaybeUninit::uninit() }; HEADERS_MAX + OWN_HEADERS];
    let mut parsed = httparse::Request::new(&mut []);
    let read = parsed.parse_with_uninit_headers(bytes, &mut headers);
    let length = match read.map_err(invalid)? {
        httparse::Status::Complete(length) => length,
        httparse::Status::Partial => return Ok(None),
    };
    let host = parsed.headers.iter().find(|one| one.name.eq_ignore_ascii_case("host"));
    let host = host.map_or(&b""[..], |host| host.value);
    let uri = Uri::builder()
        .scheme("http")
        .authority(host)
        .path_and_query(parsed.path.unwrap_or("/"))
        .build()
        .map_err(invalid)?;
    let mut request = Request::new(());
    request.headers_mut().reserve(parsed.headers.len());
    *request.uri_mut() = uri;
    *request.method_mut() = parsed.method.unwrap_or("").parse().map_err(invalid)?;
    let framing = framing(parsed.headers);
    let (copy, content) = copy(bytes, length, framing);
    for header in &*parsed.headers {
        let is_length = header.name.eq_ignore_ascii_case("content-length");
        if (is_length || !is_of_connection(header.name))
            && !header.name.eq_ignore_ascii_case("host")
        {
            put(request.headers_mut(), header, &copy, bytes);
        }
    }
    // Trailers are passed on to a client in a form that has them.
    request.headers_mut().insert(TE, HeaderValue::from_static("trailers"));
    Ok(Some(ReadHead { request, framing, length, content }))
}

/// Writes an instance's answer as HTTP/1.1; returns whether its body is to be put into chunks.
pub fn called(parts: &response::Parts, ended: bool, is_head: bool) -> (Bytes, bool) {
    let mut out = Vec::with_capacity(512);
    let status = parts.status;
    for part in ["HTTP/1.1 ", status.as_str(), " "] {
        out.extend_from_slice(part.as_bytes());
    }
    out.extend_from_slice(status.canonical_reason().unwrap_or("").as_bytes());
    out.extend_from_slice(b"\r\n");
    for (name, value) in &parts.headers {
        if !is_of_connection(name.as_str()) {
            put_header(&mut out, name.as_str(), value.as_bytes());
        }
    }
    let empty = is_head || matches!(status.as_u16(), 100..=199 | 204 | 304);
    let length = parts.headers.get(CONTENT_LENGTH);
    let chunked = !empty && (length.is_none() || ended);
    if chunked {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    } else if let Some(length) = length {
        put_header(&mut out, "Content-Length", length.as_bytes());
    }
    out.extend_from_slice(b"\r\n");
    (out.into(), chunked)
}

/// Returns the last chunk, with the trailers if there are any.
pub fn last_chunk(trailers: Option<HeaderMap>) -> Bytes {
    let Some(trailers) = trailers else { return Bytes::from_static(b"0\r\n\r\n") };
    let mut out = b"0\r\n".to_vec();
    for (name, value) in &trailers {
        if !is_of_connection(name.as_str()) {
            put_header(&mut out, name.as_str(), value.as_bytes());
        }
    }
    out.extend_from_slice(b"\r\n");
    out.into()
}

/// Returns the trailers of a body that has come to its end.
pub fn trailers(chunks: &ChunkReader) -> Result<HeaderMap> {
    let mut fields = HeaderMap::new();
    let put = |name: &str, value: &[u8]| {
        let name = HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value)) {
            fields.append(name, value);
        }
    };
    let unreadable = |_| Error::new(ErrorKind::InvalidData, "the trailers cannot be read");
    chunks.trailers(put).map_err(unreadable)?;
    Ok(fields)
}

fn invalid(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests;
