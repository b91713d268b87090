//! The spawning of tasks off the paths of requests. The runtime's code for a task is compiled once
//! for each future and each kind of runtime, about 5 KiB of the binary each time: here it is once
//! for each result, for one allocation more when a task begins.

use std::pin::Pin;

use tokio::task::JoinHandle;

pub type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

pub fn boxed<T>(future: impl Future<Output = T> + Send + 'static) -> Boxed<T> {
    Box::pin(future)
}

/// Spawns a task like `tokio::spawn`.
pub fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(boxed(future))
}

/// Runs work that blocks like `tokio::task::spawn_blocking`.
pub fn spawn_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    let boxed: Box<dyn FnOnce() -> T + Send> = Box::new(work);
    tokio::task::spawn_blocking(boxed)
}
