//! Bytes that one read after the other puts into one piece of memory, and that are used up from its
//! front. It knows no pool and no socket.

/// The bytes of a buffer: a head and a small body in one read.
pub const BUFFER_BYTES: usize = 16 * 1024;

/// Bytes that were read and not yet used. A hollow buffer holds no memory while it waits for the
/// first of them.
#[derive(Default)]
pub struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Buffer {
    /// Creates an empty buffer in this memory.
    pub fn within(bytes: Vec<u8>) -> Buffer {
        Buffer { bytes, start: 0, end: 0 }
    }

    /// Returns its memory, without what is in it.
    pub fn into_memory(self) -> Vec<u8> {
        self.bytes
    }

    /// Returns how many bytes of memory it has.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    pub fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Returns the room behind what is filled, made by moving it to the front where needed.
    pub fn room(&mut self) -> &mut [u8] {
        if self.is_hollow() {
            self.bytes = vec![0; BUFFER_BYTES];
        }
        if self.end == self.bytes.len() && self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        &mut self.bytes[self.end..]
    }

    pub fn is_full(&self) -> bool {
        self.end - self.start == self.bytes.len() && !self.is_hollow()
    }

    pub fn is_hollow(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn grow(&mut self, bytes: usize) {
        self.bytes.resize(bytes, 0);
    }

    pub fn added(&mut self, count: usize) {
        self.end += count;
    }

    /// Makes room for this many more bytes.
    pub fn reserve(&mut self, bytes: usize) {
        if self.room().len() < bytes {
            self.grow(self.end + bytes);
        }
    }

    /// Drops all but the first `count` bytes.
    pub fn truncate(&mut self, count: usize) {
        self.end = self.end.min(self.start + count);
    }

    /// Adds bytes as if they had been read.
    pub fn put(&mut self, bytes: &[u8]) {
        self.reserve(bytes.len());
        self.bytes[self.end..self.end + bytes.len()].copy_from_slice(bytes);
        self.added(bytes.len());
    }

    pub fn consume(&mut self, count: usize) {
        self.start += count;
        if self.start >= self.end {
            (self.start, self.end) = (0, 0);
        }
    }
}
