//! Bytes both ways between two connections, one of which at least is sealed or was a request before
//! it was upgraded, until both sides have ended. An upgraded connection is no request any more and
//! holds up no drain.

use std::cell::Cell;
use std::io;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use super::buffer::Buffer;
use super::moved::{Direction, Moved};
use super::pace::WRITE_TIME_MAX;
use super::permit::Permit;
use super::pool::Pool;
use super::presence::Busy;
use super::stream::{fill, write_all};
use super::streams::TransferEnd;
use super::wire::Wire;

/// The time that a tunnel may be idle; WebSockets that are alive say so far more often.
const IDLE_TIME_MAX: Duration = Duration::from_secs(3600);

/// The limits after which a tunnel is given up.
#[derive(Clone, Copy)]
pub struct TunnelLimits {
    /// The time for which nothing moved, either way.
    pub idle: Duration,
    /// The time for which one side took nothing, whatever the other did.
    pub write: Duration,
}

/// What a request leaves that upgraded its connection.
pub struct Upgraded {
    pub upstream: Wire,
    pub permit: Permit,
    /// A router that stops waits for it as for a request.
    pub busy: Busy,
}

pub async fn run(pool: &Pool, client: &Wire, upstream: &Wire, permit: Permit) {
    let limits = TunnelLimits { idle: IDLE_TIME_MAX, write: WRITE_TIME_MAX };
    let moved = Moved::default();
    let both = relay(pool, client, upstream, limits, &moved);
    tokio::pin!(both);
    let endpoint = permit.endpoint.clone();
    let draining = endpoint.until_draining();
    tokio::pin!(draining);
    let mut permit = Some(permit);
    // If the router ends before the tunnel does, that is not to look like the tunnel's own end.
    [client, upstream].into_iter().for_each(|wire| wire.end_with_a_reset(true));
    loop {
        tokio::select! {
            // An error of one side ends both; the sockets close with their owners.
            _ = &mut both => {
                [client, upstream].into_iter().for_each(|wire| wire.end_with_a_reset(false));
                return;
            }
            () = &mut draining, if permit.is_some() => permit = None,
        }
    }
}

/// Relays until both have ended, one broke, or a limit was reached.
pub async fn relay(
    pool: &Pool,
    client: &Wire,
    upstream: &Wire,
    limits: TunnelLimits,
    moved: &Moved,
) -> TransferEnd {
    let last = Cell::new(Instant::now());
    let way = |from, to, direction| {
        let passed = move |count| moved.add(direction, count);
        one_way(pool, from, to, &last, limits, passed)
    };
    let up = async {
        way(client, upstream, Direction::FromClient).await.map_err(|broken| match broken {
            Broken::Reading => TransferEnd::ClientReset,
            Broken::Writing => TransferEnd::BackEndReset,
            Broken::Idle => TransferEnd::Idle,
        })
    };
    let down = async {
        way(upstream, client, Direction::ToClient).await.map_err(|broken| match broken {
            Broken::Reading => TransferEnd::BackEndReset,
            Broken::Writing => TransferEnd::ClientReset,
            Broken::Idle => TransferEnd::Idle,
        })
    };
    match tokio::try_join!(up, down) {
        Ok(_) => TransferEnd::Closed,
        Err(ended) => ended,
    }
}

enum Broken {
    Reading,
    Writing,
    Idle,
}

async fn one_way(
    pool: &Pool,
    from: &Wire,
    to: &Wire,
    last: &Cell<Instant>,
    limits: TunnelLimits,
    passed: impl Fn(usize),
) -> Result<(), Broken> {
    let TunnelLimits { idle, .. } = limits;
    loop {
        // The other way counts, too.
        let deadline = last.get() + idle;
        match timeout_at(deadline, from.readable()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(Broken::Reading),
            Err(_) if last.get() + idle > deadline => continue,
            Err(_) => return Err(Broken::Idle),
        }
        last.set(Instant::now());
        let mut buffer = pool.buffer();
        let result = tokio::select! {
            biased;
            result = pass(from, to, &mut buffer, limits) => result,
            () = silence(last, idle) => Err(Broken::Idle),
        };
        pool.give_back(buffer);
        last.set(Instant::now());
        match result? {
            0 => return Ok(()),
            count => passed(count),
        }
    }
}

async fn silence(last: &Cell<Instant>, idle: Duration) {
    loop {
        let deadline = last.get() + idle;
        sleep_until(deadline).await;
        if last.get() + idle <= deadline {
            return;
        }
    }
}

async fn pass(
    from: &Wire,
    to: &Wire,
    buffer: &mut Buffer,
    TunnelLimits { idle, write }: TunnelLimits,
) -> Result<usize, Broken> {
    let count = match fill(from, buffer, idle).await {
        Ok(count) => count,
        Err(error) if error.kind() == io::ErrorKind::TimedOut => return Err(Broken::Idle),
        Err(_) => return Err(Broken::Reading),
    };
    if count == 0 {
        to.shut_down_writing();
    }
    // An end that is signed may have to wait for room, too.
    write_all(to, buffer.filled(), write).await.map_err(|_| Broken::Writing)?;
    Ok(count)
}

#[cfg(test)]
mod tests;
