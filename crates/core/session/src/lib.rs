//! A command that runs for somebody who is connected, over connections that may be cut: what both
//! ends say (`frame`), what the end that holds the command does (`holder`), and what the client's
//! end does (`client`). Every byte has a number in each direction, so that a connection takes up
//! where the one before it stopped. Must not know where a connection leads, how the command is
//! held, or what a terminal is.

pub mod client;
pub mod frame;
pub mod holder;
mod output_log;

use std::time::Duration;

/// The protocol to which an HTTP connection is upgraded. Its number changes with whatever the other
/// side must know; frames that are only added keep it, as unknown ones are passed over.
pub const PROTOCOL: &str = "cortex-stream/2";
pub const VERSION: u32 = 2;
/// The most bytes of input that were sent and are not yet with the command. Frames that follow it
/// in the stream, such as a signal, never wait for a command that does not read.
pub const INPUT_WINDOW_BYTES: usize = 256 << 10;
/// The most output that is kept until the client has printed it. It is what may be under way: 10
/// MB/s at a round trip of 100 ms. Beyond it the command waits.
pub const OUTPUT_KEPT_BYTES: usize = 1 << 20;
/// The printed output of a terminal that somebody who attaches sees again: several screens.
pub const SCREEN_BYTES: usize = 16 << 10;
/// The time for which a session that was cut off waits for its client: a laptop that was closed for
/// a meeting's break, or a node process that is started again by hand.
pub const CUT_KEPT: Duration = Duration::from_secs(600);
/// The time for which a session that has ended is kept for somebody who has not heard how.
pub const ENDED_KEPT: Duration = Duration::from_secs(3600);
/// The silence after which an end says that it is there, so that the other one knows.
pub const PING_AFTER: Duration = Duration::from_secs(5);
/// The silence after which the client takes a connection for cut: two pings that were not answered.
pub const SILENCE_MAX: Duration = Duration::from_secs(15);
/// The signals that wait to be taken; more than that nobody sends to a command that listens.
pub const SIGNALS_WAITING_MAX: usize = 64;
