//! The signals that this process gets while it stands for a command elsewhere.

use rustix::process::Signal;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// Signals that are passed on as they are.
const PASSED_ON: [Signal; 5] =
    [Signal::INT, Signal::TERM, Signal::QUIT, Signal::USR1, Signal::USR2];

pub struct Signals(Vec<(Signal, Stream)>);

impl Signals {
    pub fn new() -> anyhow::Result<Signals> {
        let all = PASSED_ON.into_iter().chain([Signal::HUP, Signal::WINCH]);
        let listen = |one: Signal| Ok((one, signal(SignalKind::from_raw(one.as_raw()))?));
        Ok(Signals(all.map(listen).collect::<std::io::Result<_>>()?))
    }

    pub async fn next(&mut self) -> Signal {
        std::future::poll_fn(|context| {
            for (signal, stream) in &mut self.0 {
                if stream.poll_recv(context).is_ready() {
                    return std::task::Poll::Ready(*signal);
                }
            }
            std::task::Poll::Pending
        })
        .await
    }

    /// Returns the next signal that ends a process which does not care for it.
    pub async fn next_deadly(&mut self) -> Signal {
        loop {
            match self.next().await {
                Signal::WINCH => {}
                signal => return signal,
            }
        }
    }
}
