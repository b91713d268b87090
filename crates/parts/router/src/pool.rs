//! The stock that one thread keeps for reuse: buffers, pipes, and idle connections to instances and
//! to routers of other nodes.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::buffer::{BUFFER_BYTES, Buffer};
use super::endpoint::Endpoint;
use super::splice::Pipe;
use super::wire::Wire;

/// The size of a large buffer, in bytes: with it a body of 100 KB took 3 reads and 3 writes instead
/// of 7 of each.
const LARGE_BYTES: usize = 128 * 1024;
/// Large buffers in use: only clients that do not keep up hold one. That is 8 MiB per thread;
/// beyond, small ones have to do.
const LARGE_USED_MAX: usize = 64;
/// Large buffers kept: one serves all clients that keep up, and stays in the processor's cache.
const LARGE_KEPT: usize = 2;
/// Pipes in use: only clients that do not keep up hold one for long. Each is two descriptors, and
/// what is in it.
const PIPES_USED_MAX: usize = 64;
/// Pipes kept, as few as large buffers for the same reason.
const PIPES_KEPT: usize = 2;
/// Buffers kept for reading and as many for writing: 4 MiB each per thread.
const BUFFERS_KEPT: usize = 256;
/// The memory for the head of a request, in bytes, which is enough for most.
const HEAD_BYTES: usize = 1024;
/// Heads' memories kept: 256 KiB per thread.
const HEADS_KEPT: usize = 256;
/// Idle connections that one thread keeps to an endpoint: what it asks of an instance or another
/// node at once, with room for bursts.
const IDLE_PER_ENDPOINT_MAX: usize = 512;
/// Idle connections that one thread keeps to all endpoints together: each is a descriptor, and
/// clients need some too.
const IDLE_MAX: usize = 4_096;
/// Connections closed at once to make room: to find the single oldest one would cost as much.
const LET_GO: usize = 64;
/// The time that a connection is kept idle: shorter than most servers keep them, so that few are
/// found closed.
const IDLE_TIME_MAX: Duration = Duration::from_secs(15);
/// The idle time up to which a connection is fresh: a request that must not be sent twice takes
/// none that is about to be closed.
const FRESH: Duration = Duration::from_secs(1);
/// The idle time of connections to other nodes, which cost a handshake; routers keep them more than
/// twice as long.
const FAR_IDLE_TIME_MAX: Duration = Duration::from_secs(30);

#[derive(Default)]
pub struct Pool {
    read: RefCell<Vec<Vec<u8>>>,
    large: RefCell<Vec<Vec<u8>>>,
    large_used: Cell<usize>,
    pipes: Rc<Pipes>,
    write: RefCell<Vec<Vec<u8>>>,
    heads: RefCell<Vec<Vec<u8>>>,
    idle: RefCell<HashMap<u64, Vec<Idle>>>,
    idle_count: Cell<usize>,
}

struct Idle {
    stream: Wire,
    since: Instant,
    endpoint: Arc<Endpoint>,
}

impl Idle {
    fn time_max(&self) -> Duration {
        if self.stream.far().is_some() { FAR_IDLE_TIME_MAX } else { IDLE_TIME_MAX }
    }

    fn fresh_max(&self) -> Duration {
        if self.stream.far().is_some() { FAR_IDLE_TIME_MAX } else { FRESH }
    }
}

impl Pool {
    pub fn buffer(&self) -> Buffer {
        let kept = self.read.borrow_mut().pop();
        Buffer::within(kept.unwrap_or_else(|| vec![0; BUFFER_BYTES]))
    }

    /// Returns a buffer for a piece of a long body, to be given back before the next wait for one.
    pub fn large(&self) -> Buffer {
        if self.large_used.get() >= LARGE_USED_MAX {
            return self.buffer();
        }
        self.large_used.set(self.large_used.get() + 1);
        let kept = self.large.borrow_mut().pop();
        Buffer::within(kept.unwrap_or_else(|| vec![0; LARGE_BYTES]))
    }

    pub fn give_back(&self, buffer: Buffer) {
        let (kept, kept_max) = match buffer.size() {
            BUFFER_BYTES => (&self.read, BUFFERS_KEPT),
            LARGE_BYTES => {
                self.large_used.set(self.large_used.get().saturating_sub(1));
                (&self.large, LARGE_KEPT)
            }
            _ => return,
        };
        let mut kept = kept.borrow_mut();
        if kept.len() < kept_max {
            kept.push(buffer.into_memory());
        }
    }

    /// Returns a pipe for a long body; `None` if there are enough already, or the kernel gives
    /// none.
    pub fn pipe(&self) -> Option<LentPipe> {
        let pipes = &self.pipes;
        if pipes.used.get() >= PIPES_USED_MAX {
            return None;
        }
        let kept = pipes.kept.borrow_mut().pop();
        let pipe = kept.or_else(|| Pipe::new().ok().map(Rc::new))?;
        pipes.used.set(pipes.used.get() + 1);
        Some(LentPipe { pipes: pipes.clone(), pipe })
    }

    /// Gives a hollow buffer its memory before bytes come.
    pub fn fill_out(&self, buffer: &mut Buffer) {
        if buffer.is_hollow() {
            *buffer = self.buffer();
        }
    }

    pub fn scratch(&self) -> Vec<u8> {
        self.write.borrow_mut().pop().unwrap_or_else(|| Vec::with_capacity(BUFFER_BYTES))
    }

    /// Returns a copy in no more memory than it needs.
    pub fn head(&self, bytes: &[u8]) -> Vec<u8> {
        if bytes.len() > HEAD_BYTES {
            return bytes.to_vec();
        }
        let kept = self.heads.borrow_mut().pop();
        let mut head = kept.unwrap_or_else(|| Vec::with_capacity(HEAD_BYTES));
        head.extend_from_slice(bytes);
        head
    }

    pub fn give_back_scratch(&self, mut scratch: Vec<u8>) {
        const LARGEST: usize = 2 * BUFFER_BYTES;
        let (kept, kept_max) = match scratch.capacity() {
            BUFFER_BYTES..=LARGEST => (&self.write, BUFFERS_KEPT),
            HEAD_BYTES => (&self.heads, HEADS_KEPT),
            _ => return,
        };
        let mut kept = kept.borrow_mut();
        if kept.len() < kept_max {
            scratch.clear();
            kept.push(scratch);
        }
    }

    /// Takes an idle connection that is still open. One that ends at this moment may be found, too,
    /// and what is sent there is lost, unless it is `only_fresh`.
    pub fn take(&self, endpoint: &Endpoint, only_fresh: bool, now: Instant) -> Option<Wire> {
        let mut pool = self.idle.borrow_mut();
        let idle = pool.get_mut(&endpoint.pool_key())?;
        while let Some(candidate) = idle.pop() {
            self.idle_count.set(self.idle_count.get() - 1);
            let limit = if only_fresh { candidate.fresh_max() } else { candidate.time_max() };
            if now.saturating_duration_since(candidate.since) > limit {
                // Those below are older still.
                self.idle_count.set(self.idle_count.get() - idle.len());
                idle.clear();
                return None;
            }
            // Bytes or an end that nobody asked for make it useless.
            if candidate.stream.is_untouched(only_fresh) {
                return Some(candidate.stream);
            }
        }
        None
    }

    pub fn keep(&self, endpoint: &Arc<Endpoint>, stream: Wire, now: Instant) {
        if !endpoint.keeps_connections() || matches!(stream, Wire::Stream(_)) {
            return;
        }
        if self.idle_count.get() >= IDLE_MAX {
            self.make_room();
        }
        let mut pool = self.idle.borrow_mut();
        let idle = pool.entry(endpoint.pool_key()).or_default();
        if idle.len() < IDLE_PER_ENDPOINT_MAX {
            idle.push(Idle { stream, since: now, endpoint: endpoint.clone() });
            self.idle_count.set(self.idle_count.get() + 1);
        }
    }

    /// Closes the idle connections that were used longest ago.
    pub fn make_room(&self) {
        let mut times: Vec<Instant> = {
            let pool = self.idle.borrow();
            pool.values().flatten().map(|one| one.since).collect()
        };
        let newest = match times.len() {
            0 => return,
            count => *times.select_nth_unstable(LET_GO.min(count) - 1).1,
        };
        self.retain(|one| one.since > newest);
    }

    fn retain(&self, keep: impl Fn(&Idle) -> bool) {
        let mut count = 0;
        self.idle.borrow_mut().retain(|_, idle| {
            idle.retain(&keep);
            count += idle.len();
            !idle.is_empty()
        });
        self.idle_count.set(count);
    }

    /// Closes connections that are old or lead to an instance that is on its way out.
    pub fn sweep(&self) {
        self.retain(|one| {
            one.since.elapsed() <= one.time_max() && one.endpoint.keeps_connections()
        });
    }
}

#[derive(Default)]
struct Pipes {
    kept: RefCell<Vec<Rc<Pipe>>>,
    used: Cell<usize>,
}

/// A pipe that goes back to its pool when it is dropped.
pub struct LentPipe {
    pipes: Rc<Pipes>,
    pipe: Rc<Pipe>,
}

impl Deref for LentPipe {
    type Target = Pipe;

    fn deref(&self) -> &Pipe {
        &self.pipe
    }
}

impl Drop for LentPipe {
    fn drop(&mut self) {
        self.pipes.used.set(self.pipes.used.get() - 1);
        let mut kept = self.pipes.kept.borrow_mut();
        // What is left in a pipe belongs to a client that is gone.
        if self.pipe.is_empty() && kept.len() < PIPES_KEPT {
            kept.push(self.pipe.clone());
        }
    }
}

#[cfg(test)]
mod tests;
