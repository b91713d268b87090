//! The only event loop: it feeds one machine with events and time, and hands its effects to a shell
//! in order.

mod clock;

use model::Machine;
use tokio::sync::mpsc;

pub use self::clock::{Clock, Leap};

/// The shell of one machine. Effects that take long are started here and report back as events.
pub trait Shell {
    type Effect;

    fn perform(&mut self, effect: Self::Effect) -> impl Future<Output = anyhow::Result<()>> + Send;
}

/// Runs until every sender of events is gone or an effect fails for good.
pub async fn drive<M, S>(
    machine: &mut M,
    shell: &mut S,
    events: &mut mpsc::Receiver<M::Event>,
    clock: Clock,
) -> anyhow::Result<()>
where
    M: Machine,
    S: Shell<Effect = M::Effect>,
{
    let mut effects = Vec::new();
    loop {
        let event = match machine.deadline() {
            None => match events.recv().await {
                Some(event) => Some(event),
                None => return Ok(()),
            },
            Some(deadline) => {
                let wait = deadline.since(clock.now());
                match tokio::time::timeout(wait, events.recv()).await {
                    Ok(Some(event)) => Some(event),
                    Ok(None) => return Ok(()),
                    Err(_) => None,
                }
            }
        };
        let now = clock.now();
        if let Some(event) = event {
            machine.handle(now, event, &mut effects);
        }
        if machine.deadline().is_some_and(|deadline| deadline <= now) {
            machine.tick(now, &mut effects);
            assert!(
                machine.deadline().is_none_or(|deadline| deadline > now),
                "a tick must move the deadline past now or clear it"
            );
        }
        if cfg!(debug_assertions) {
            machine.check_invariants();
        }
        for effect in effects.drain(..) {
            shell.perform(effect).await?;
        }
    }
}
