//! HTTP/1.1 as the router forwards it: heads are read, checked and rewritten, bodies are measured
//! and passed on as they are. Knows bytes, no sockets; driven by the router's connections.

pub mod body;
pub mod request;
pub mod response;

/// Larger than any browser sends; a cookie jar gone wild is told so.
pub const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Browsers send about 20, chains of proxies add some.
pub const HEADERS_MAX: usize = 100;

/// Concerns one connection only and is never passed on, nor is what `Connection` names.
fn is_hop_by_hop(name: &str) -> bool {
    const NAMES: [&str; 8] = [
        "connection",
        "keep-alive",
        "proxy-connection",
        "transfer-encoding",
        "upgrade",
        "te",
        "http2-settings",
        "proxy-authenticate",
    ];
    NAMES.iter().any(|known| name.eq_ignore_ascii_case(known))
}

fn lists(value: &[u8], token: &str) -> bool {
    value
        .split(|byte| *byte == b',')
        .any(|one| one.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
}

/// Every line ends with CR and LF: who takes a bare LF for an end sees another message.
fn ends_are_whole(head: &[u8]) -> bool {
    let mut previous = 0;
    head.iter().all(|byte| {
        let whole = *byte != b'\n' || previous == b'\r';
        previous = *byte;
        whole
    })
}

/// Digits alone; a sign, a list or an empty value is refused.
fn content_length(value: &[u8]) -> Option<u64> {
    let digits = !value.is_empty() && value.len() <= 18 && value.iter().all(u8::is_ascii_digit);
    digits.then(|| value.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))
}

fn put_header(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}
