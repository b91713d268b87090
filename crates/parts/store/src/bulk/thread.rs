//! The thread of large values: one of its own, at lower priority, so that commits and requests go
//! before megabytes wherever a processor or disk has to choose.

use std::future::Future;
use std::io;

use tokio::runtime::{Builder, Runtime};

/// The number of threads for reading, hashing and writing; each works on 64 KiB at a time or hashes
/// one file.
const DISK_THREADS_MAX: usize = 4;
/// The amount added to the thread's nice value, from which the kernel derives the priority of its
/// reads.
const NICE: i32 = 10;

pub fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread()
        .enable_all()
        .thread_name("store-bulk-disk")
        .max_blocking_threads(DISK_THREADS_MAX)
        .on_thread_start(be_nice)
        .build()
}

/// Runs the future on a new thread until it ends; tasks that it spawned end with it.
pub fn run(runtime: Runtime, work: impl Future<Output = ()> + Send + 'static) -> io::Result<()> {
    let body = move || {
        be_nice();
        runtime.block_on(work);
        // A write that hangs on a dead disk must not hold up the node's shutdown.
        runtime.shutdown_background();
    };
    std::thread::Builder::new().name("store-bulk".into()).spawn(body).map(drop)
}

/// Lowers this thread's priority; in Linux a nice value is the thread's. If that fails, everything
/// works, but less politely.
fn be_nice() {
    let thread = rustix::thread::gettid();
    if let Err(error) = rustix::process::setpriority_process(Some(thread), NICE) {
        tracing::debug!(%error, "bulk.not_nice");
    }
}
