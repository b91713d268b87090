//! An index of sorted texts that mostly finds a text without looking at them: texts are anywhere in
//! memory, and eight bytes of each, behind what all of them begin with, are here side by side.

use super::GROWTH;

const START_BYTES: usize = 8;

#[derive(Clone, Debug, Default)]
pub(super) struct Guide {
    /// The number of bytes, at least, that all texts begin with.
    common: usize,
    starts: Vec<u64>,
}

impl Guide {
    pub fn of<'a>(count: usize, text: impl Fn(usize) -> &'a str) -> Guide {
        let mut guide = Guide::default();
        if count > 0 {
            guide.common = common(text(0), text(count - 1));
            guide.starts.reserve_exact(count);
            guide.starts.extend((0..count).map(|index| start(text(index), guide.common)));
        }
        guide
    }

    /// Returns the index of this text; as an error, the index that it would get.
    pub fn find<'a>(&self, wanted: &str, text: impl Fn(usize) -> &'a str) -> Result<usize, usize> {
        if self.starts.is_empty() {
            return Err(0);
        }
        let head = &text(0).as_bytes()[..self.common];
        let same = common_bytes(wanted.as_bytes(), head);
        if same < self.common {
            let before = wanted.as_bytes() < head;
            return Err(if before { 0 } else { self.starts.len() });
        }
        let wanted_start = start(wanted, self.common);
        let from = self.starts.partition_point(|start| *start < wanted_start);
        let alike = self.starts[from..].iter().take_while(|start| **start == wanted_start).count();
        let (mut low, mut high) = (from, from + alike);
        while low < high {
            let middle = low + (high - low) / 2;
            match text(middle).cmp(wanted) {
                std::cmp::Ordering::Equal => return Ok(middle),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// Notes that a text has come, or another has taken this one's place; `text` knows all of them
    /// as they are now.
    pub fn set<'a>(&mut self, index: usize, count: usize, text: impl Fn(usize) -> &'a str) {
        // Any of the others shows what all the others begin with.
        let other = if index == 0 { count - 1 } else { 0 };
        let common = common(text(index), text(other));
        if common < self.common || count == 1 {
            *self = Guide::of(count, text);
            return;
        }
        let start = start(text(index), self.common);
        if self.starts.len() == count {
            self.starts[index] = start;
            return;
        }
        if self.starts.len() == self.starts.capacity() {
            self.starts.reserve_exact(GROWTH);
        }
        self.starts.insert(index, start);
    }

    pub fn remove(&mut self, index: usize) {
        self.starts.remove(index);
    }

    pub fn split_off(&mut self, at: usize) -> Guide {
        let upper = Guide { common: self.common, starts: self.starts.split_off(at) };
        self.starts.shrink_to_fit();
        upper
    }
}

fn start(text: &str, skipped: usize) -> u64 {
    let mut start = [0; START_BYTES];
    let rest = &text.as_bytes()[skipped..];
    let length = rest.len().min(START_BYTES);
    start[..length].copy_from_slice(&rest[..length]);
    u64::from_be_bytes(start)
}

fn common(a: &str, b: &str) -> usize {
    common_bytes(a.as_bytes(), b.as_bytes())
}

pub(super) fn common_bytes(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
