//! The supervision of parts, which keeps one part's fault in that part: a panic or an error is
//! logged, and the part alone is started again after a pause.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;

use crate::task::{self, Boxed};

/// The minimum pause: nobody notices one fault.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The maximum pause: a part which fails at every start costs nothing to speak of.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// The time after which a part is taken to have started well: its next pause is short again.
const RAN_WELL: Duration = Duration::from_secs(30);

type StartPart = Box<dyn FnMut() -> Boxed<anyhow::Result<()>> + Send>;

/// Runs `start` again and again; returns when one run ends without a fault.
pub fn supervise<F, R>(part: &'static str, mut start: F) -> Boxed<()>
where
    F: FnMut() -> R + Send + 'static,
    R: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    task::boxed(keep(part, Box::new(move || task::boxed(start()))))
}

async fn keep(part: &'static str, mut start: StartPart) {
    let mut pause = PAUSE_MIN;
    loop {
        let began = Instant::now();
        match AssertUnwindSafe(start()).catch_unwind().await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => tracing::error!(part, error = format!("{error:#}"), "part.failed"),
            Err(panic) => tracing::error!(part, panic = panic_text(&*panic), "part.panicked"),
        }
        if began.elapsed() >= RAN_WELL {
            pause = PAUSE_MIN;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
        tracing::info!(part, "part.restarted");
    }
}

pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[tokio::test(start_paused = true)]
    async fn a_part_that_faults_is_started_again() {
        let starts = Arc::new(AtomicU32::new(0));
        let counted = starts.clone();
        supervise("test", move || {
            let start = counted.fetch_add(1, Ordering::Relaxed) + 1;
            async move {
                match start {
                    1 => panic!("first"),
                    2 => anyhow::bail!("second"),
                    _ => Ok(()),
                }
            }
        })
        .await;
        assert_eq!(starts.load(Ordering::Relaxed), 3);
    }
}
