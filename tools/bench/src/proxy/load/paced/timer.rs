//! A timer that is accurate to microseconds; the runtime's own timers have milliseconds.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

pub struct Timer(AsyncFd<OwnedFd>);

impl Timer {
    pub fn new() -> anyhow::Result<Timer> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let descriptor = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        #[expect(deprecated, reason = "what replaces it is unsafe, and this descriptor is owned")]
        let descriptor = AsyncFd::with_interest(descriptor, Interest::READABLE)?;
        Ok(Timer(descriptor))
    }

    pub async fn until(&self, at: Instant) -> anyhow::Result<()> {
        let left = at.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        let once = Itimerspec { it_interval: spec(Duration::ZERO)?, it_value: spec(left)? };
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once)?;
        loop {
            let mut ready = self.0.readable().await?;
            match rustix::io::read(&self.0, &mut [0; 8]) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn spec(time: Duration) -> anyhow::Result<Timespec> {
    let tv_sec = i64::try_from(time.as_secs())?;
    Ok(Timespec { tv_sec, tv_nsec: time.subsec_nanos().into() })
}
