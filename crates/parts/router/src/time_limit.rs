//! A time limit for one piece of work. It knows no socket.

use std::io::{Error, ErrorKind, Result};
use std::time::Duration;

use tokio::time::timeout;

/// Does the work; beyond the limit it is an error of the kind `TimedOut`.
pub async fn within<T>(limit: Duration, work: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(limit, work).await.unwrap_or_else(|_| Err(Error::from(ErrorKind::TimedOut)))
}
