//! Bytes of one connection or flow that were passed on so far. They are counted here as they are
//! passed on; on an application's own port they count for the port at the same time.

use std::cell::{Cell, OnceCell};

use metrics::ports::CountedFlow;

#[derive(Clone, Copy, Debug)]
pub enum Direction {
    FromClient,
    ToClient,
}

#[derive(Debug, Default)]
pub struct Moved {
    from_client: Cell<u64>,
    to_client: Cell<u64>,
    /// The bytes that went through a pipe in the kernel.
    pub spliced: Cell<u64>,
    port: OnceCell<CountedFlow>,
}

impl Moved {
    /// Counts for a port, on which it is open until this is dropped.
    pub fn through(port: CountedFlow) -> Moved {
        Moved { port: port.into(), ..Moved::default() }
    }

    /// Counts for a port from now on; to be called once.
    pub fn goes_through(&self, port: CountedFlow) {
        self.port.set(port).ok();
    }

    pub fn add(&self, direction: Direction, count: usize) {
        let count = count as u64;
        let sum = self.sum(direction);
        sum.set(sum.get() + count);
        match (self.port.get(), direction) {
            (Some(port), Direction::FromClient) => port.bytes_in(count),
            (Some(port), Direction::ToClient) => port.bytes_out(count),
            (None, _) => {}
        }
    }

    pub fn get(&self, direction: Direction) -> u64 {
        self.sum(direction).get()
    }

    fn sum(&self, direction: Direction) -> &Cell<u64> {
        match direction {
            Direction::FromClient => &self.from_client,
            Direction::ToClient => &self.to_client,
        }
    }
}

#[cfg(test)]
mod tests;
