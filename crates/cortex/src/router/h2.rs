//! HTTP/2: each stream is one more form of `Wire`, so that a request of a client's stream takes the
//! same way as any other, and so does one to an instance that speaks it. On that way a message is
//! HTTP/1.1; what goes in and out of a stream is put into and taken out of frames here.

pub mod call;
mod chunks;
mod guard;
pub mod head;
mod io;
pub mod serve;
pub mod stream;
pub mod workers;
