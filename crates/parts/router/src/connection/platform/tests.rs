//! What ends TLS in front of the router is believed.

use super::*;

#[test]
fn what_ended_tls_in_front_is_believed() {
    for (head, expected) in [
        ("GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-Proto: https\r\n\r\n", true),
        ("GET / HTTP/1.1\r\nx-forwarded-proto:HTTPS\r\n\r\n", true),
        ("GET / HTTP/1.1\r\nX-Forwarded-Proto: http\r\n\r\n", false),
        ("GET / HTTP/1.1\r\nX-Forwarded-Protocol: https\r\n\r\n", false),
        ("GET /x-forwarded-proto:https HTTP/1.1\r\n\r\n", false),
    ] {
        assert_eq!(comes_from_tls(head.as_bytes()), expected, "{head}");
    }
}
