//! A cache of recently used small values, so that reading a record again costs no system call. It
//! has two generations: when the young one is full the old one is dropped.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use bytes::Bytes;
use store_core::Location;

/// The size of the cache in bytes. Records have some 300 bytes, so it holds every record of a small
/// cluster.
const BYTES_MAX: usize = 4 << 20;
/// The memory that an entry costs beyond its value, in bytes.
const OVERHEAD: usize = 96;

/// A hasher of numbers that the store itself chooses, such as places in the log, so that nobody can
/// make them collide.
#[derive(Default)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn write_u32(&mut self, part: u32) {
        self.write_u64(u64::from(part));
    }

    fn write_u64(&mut self, part: u64) {
        // Fibonacci hashing: Knuth, The Art of Computer Programming, volume 3, 6.4.
        self.0 = (self.0 ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}

type Places = HashMap<(u32, u32), Bytes, BuildHasherDefault<NumberHasher>>;

#[derive(Default)]
pub struct ValueCache {
    young: Places,
    old: Places,
    young_bytes: usize,
}

impl ValueCache {
    pub fn get(&mut self, location: Location) -> Option<Bytes> {
        let Location::Log { segment, offset } = location else { return None };
        if let Some(value) = self.young.get(&(segment, offset)) {
            return Some(value.clone());
        }
        let value = self.old.remove(&(segment, offset))?;
        self.put(location, &value);
        Some(value)
    }

    pub fn put(&mut self, location: Location, value: &Bytes) {
        let Location::Log { segment, offset } = location else { return };
        self.young_bytes += value.len() + OVERHEAD;
        if self.young_bytes > BYTES_MAX / 2 {
            self.young_bytes = value.len() + OVERHEAD;
            self.old = std::mem::take(&mut self.young);
        }
        // A slice of a larger buffer would keep all of it.
        self.young.insert((segment, offset), Bytes::copy_from_slice(value));
    }
}
