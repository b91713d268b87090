//! HTTP/2 as the router speaks it to clients (RFC 9113, RFC 8441): frames in and out, streams and
//! their windows, heads in their compressed form. Each stream is a request of HTTP/1.1 to whatever
//! serves it. Knows bytes, no sockets; driven by the router's connections.

pub mod answer;
pub mod chunks;
pub mod connection;
pub mod frame;
mod guard;
pub mod hpack;
pub mod request;
mod streams;
pub mod text;

pub use crate::http::syntax::content_length;

/// Returns whether a header says something about a connection of HTTP/1.1, and means nothing here.
pub fn is_of_connection(name: &str) -> bool {
    let known: &[&str] = match name.len() {
        2 => &["te"],
        7 => &["upgrade"],
        10 => &["connection", "keep-alive"],
        14 => &["content-length", "http2-settings"],
        16 => &["proxy-connection"],
        17 => &["transfer-encoding"],
        _ => &[],
    };
    known.iter().any(|known| name.eq_ignore_ascii_case(known))
}
