//! The start of tasks on the thread that asks for one.

use std::pin::Pin;

/// Begins a task for a connection or a stream. Its future is several KiB, and the runtime moves
/// what it is given when a task begins and when it ends.
pub fn begin(work: impl Future<Output = ()> + 'static) {
    let work: Pin<Box<dyn Future<Output = ()>>> = Box::pin(work);
    tokio::task::spawn_local(work);
}
