//! A source of seeded randomness.

use model::hash;

#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn draw(&mut self) -> u64 {
        hash::draw(&mut self.0)
    }

    /// Returns a number from `low` up to and without `high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.draw() % (high - low).max(1)
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.between(0, 100) < percent
    }
}
