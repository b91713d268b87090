//! Ctrl-C and SIGTERM during a measurement: loops that wait check for them here, so that everything
//! that was started is stopped before the command ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that is set once Ctrl-C or SIGTERM came and everything that was started is to be stopped.
#[derive(Clone, Debug, Default)]
pub struct Interrupted(Arc<AtomicBool>);

impl Interrupted {
    pub fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(!self.0.load(Ordering::Relaxed), "interrupted; everything was stopped");
        Ok(())
    }

    pub fn watch(&self) -> anyhow::Result<()> {
        let flag = self.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let mut terminate = {
            let _inside = runtime.enter();
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?
        };
        let body = move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = tokio::signal::ctrl_c() => {}
                    _ = terminate.recv() => {}
                }
            });
            flag.0.store(true, Ordering::Relaxed);
        };
        std::thread::Builder::new().name("interrupts".into()).spawn(body)?;
        Ok(())
    }
}
