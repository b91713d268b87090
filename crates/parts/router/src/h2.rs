//! HTTP/2: each stream is one more form of `Wire`, so that a request of a client's stream takes the
//! same way as any other, and so does one to an instance that speaks it. On that way a message is
//! HTTP/1.1. `router_core::h2` takes apart what a client sends; connections to instances are a
//! library's.

pub mod call;
pub mod client;
pub mod serve;
pub mod stream;
pub mod workers;
