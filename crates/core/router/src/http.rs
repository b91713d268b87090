//! HTTP/1.1 as the router forwards it: heads are read, checked and rewritten, bodies are measured
//! and passed on. What is not understood is refused. Knows bytes, no sockets; driven by the
//! router's connections.

pub mod body;
pub mod request;
pub mod response;
pub(crate) mod syntax;
pub mod trailers;

/// Bytes of a head, more than any browser sends; a client whose cookie jar has gone wild is told
/// so.
pub const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Headers of a head; browsers send about 20, chains of proxies add some.
pub const HEADERS_MAX: usize = 100;
/// Headers that routers add of their own on the way to the node that has the instance.
pub const HEADERS_ADDED_MAX: usize = 10;
/// The bytes of these: a name of a host and a few short values.
pub const HEAD_BYTES_ADDED_MAX: usize = 1024;

/// Returns whether a header concerns one connection only and is never passed on, as is also true of
/// what `Connection` names.
fn is_hop_by_hop(name: &str) -> bool {
    let known: &[&str] = match name.len() {
        2 => &["te"],
        7 => &["upgrade"],
        10 => &["connection", "keep-alive"],
        14 => &["http2-settings"],
        16 => &["proxy-connection"],
        17 => &["transfer-encoding"],
        18 => &["proxy-authenticate"],
        _ => &[],
    };
    known.iter().any(|known| name.eq_ignore_ascii_case(known))
}

fn lists(value: &[u8], token: &str) -> bool {
    value
        .split(|byte| *byte == b',')
        .any(|one| one.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
}

/// Returns whether a `Connection` of this value may name further headers: most do not.
fn may_name(value: &[u8]) -> bool {
    !value.eq_ignore_ascii_case(b"keep-alive")
}

/// Returns whether a header called `Connection` lists this one. Content-Length frames the body and
/// is never dropped, whatever that says.
fn is_named(headers: &[httparse::Header<'_>], name: &str) -> bool {
    !name.eq_ignore_ascii_case("content-length")
        && headers
            .iter()
            .any(|one| one.name.eq_ignore_ascii_case("connection") && lists(one.value, name))
}

/// Writes one line of a head.
pub fn put_header(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}
