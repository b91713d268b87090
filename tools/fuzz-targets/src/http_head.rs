//! Heads of requests and of answers: no bytes panic; a head is not complete before its end; and
//! what is written for the next reader is well-formed and means the same to it.

use std::net::IpAddr;

use router_core::http::body::Body;
use router_core::http::request::{self, ForwardedFields, RequestOrigin};
use router_core::http::response::{self, AnsweredRequest};

/// The length in bytes up to which each cut of a head is tried.
const CUT_EVERYWHERE_MAX: usize = 256;

pub fn check(bytes: &[u8]) {
    let Some((flags, text)) = bytes.split_first() else { return };
    let is = |bit: u8| flags & (1 << bit) != 0;
    if is(0) {
        let asked = AnsweredRequest {
            head: is(1),
            modern: is(2),
            keep_alive: is(3),
            transparent: false,
            of_router: false,
        };
        answer(text, asked);
    } else {
        let peer = IpAddr::from(if is(1) { [127, 0, 0, 1] } else { [192, 0, 2, 7] });
        let forwarded = if is(3) { ForwardedFields::Standard } else { ForwardedFields::Usual };
        let origin =
            RequestOrigin { peer, request_id: 5, is_router: false, is_secure: is(2), forwarded };
        ask(text, &origin);
    }
}

fn ask(text: &[u8], origin: &RequestOrigin) {
    let mut out = Vec::new();
    let Ok(Some(head)) = request::parse(text, origin, &mut out) else { return };
    assert!(head.length <= text.len());
    let target = &text[head.target.clone()];
    assert!(target.is_empty() || head.target.end <= head.length);
    assert!(head.host.end <= head.length);
    if head.length <= CUT_EVERYWHERE_MAX {
        for cut in 1..head.length {
            let part = request::parse(&text[..cut], origin, &mut Vec::new());
            assert!(matches!(part, Ok(None)), "{part:?} at {cut}");
        }
    }
    out.extend_from_slice(b"\r\n");
    sound(&out, true);
    // The router of another node reads it next.
    let next = RequestOrigin { is_router: true, ..*origin };
    let mut again = Vec::new();
    let second = request::parse(&out, &next, &mut again).expect("it is understood");
    let second = second.expect("it is whole");
    assert_eq!(second.length, out.len(), "nothing is left over");
    assert_eq!((second.method, second.body), (head.method, head.body));
    assert!(target.is_empty() || &out[second.target.clone()] == target);
    assert!(!second.expects_continue && second.modern);
}

fn answer(text: &[u8], asked: AnsweredRequest) {
    let mut out = Vec::new();
    let Ok(Some(head)) = response::parse(text, asked, &mut out) else { return };
    assert!(head.length <= text.len() && (100..1000).contains(&head.status));
    if head.length <= CUT_EVERYWHERE_MAX {
        for cut in 1..head.length {
            let part = response::parse(&text[..cut], asked, &mut Vec::new());
            assert!(matches!(part, Ok(None)), "{part:?} at {cut}");
        }
    }
    sound(&out, false);
    let mut again = Vec::new();
    let asked = AnsweredRequest { of_router: true, ..asked };
    let second = response::parse(&out, asked, &mut again).expect("it is understood");
    let second = second.expect("it is whole");
    assert_eq!((second.length, second.status), (out.len(), head.status));
    // A client that knows no chunks gets the content without them.
    let expected = match head.body {
        Body::Chunked(_) if !asked.modern => Body::UntilClose,
        body => body,
    };
    assert_eq!(second.body, expected);
    if head.body == Body::UntilClose {
        assert!(!head.keep_alive && !head.client_keeps_alive);
    }
}

/// Asserts that lines end with CR and LF and with nothing else, and that one field at most says how
/// a body ends.
fn sound(head: &[u8], is_request: bool) {
    assert!(head.ends_with(b"\r\n\r\n"));
    let text = String::from_utf8_lossy(head).to_lowercase();
    let lines: Vec<&str> = text[..text.len() - 4].split("\r\n").collect();
    assert!(lines.iter().all(|line| !line.contains(['\r', '\n', '\0']) && !line.is_empty()));
    let count = |name: &str| lines.iter().filter(|line| line.starts_with(name)).count();
    assert!(count("content-length:") + count("transfer-encoding:") <= 1, "{text}");
    if is_request {
        assert_eq!(count("host:"), 1, "{text}");
        let mut names = lines[1..].iter().filter_map(|line| line.split(':').next());
        assert!(!names.any(|name| name.contains('_')), "{text}");
    }
}
