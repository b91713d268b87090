//! HTTP/2: each stream is one more form of `Wire`, so that a request of a client's stream takes the
//! same way as any other, and so does one to an instance that speaks it. On that way a message is
//! HTTP/1.1. What a client sends, `router_core::h2` takes apart; connections to instances are a
//! library's.

pub mod call;
pub mod client;
pub mod serve;
pub mod stream;
pub mod workers;
