//! The fields that one side has told the other to keep (RFC 7541, section 2.3.2). Knows no wire
//! form.

use std::collections::VecDeque;

/// Bytes that are kept unless another size is agreed.
pub const TABLE_BYTES_MAX: usize = 4096;
/// Bytes that each field counts for beside its name and its value.
pub const FIELD_BYTES: usize = 32;

#[derive(Debug)]
pub struct DynamicTable {
    /// The fields, the newest first.
    entries: VecDeque<TableEntry>,
    size: usize,
    size_max: usize,
}

#[derive(Debug)]
struct TableEntry {
    bytes: Box<[u8]>,
    name: usize,
}

impl Default for DynamicTable {
    fn default() -> DynamicTable {
        DynamicTable { entries: VecDeque::new(), size: 0, size_max: TABLE_BYTES_MAX }
    }
}

impl DynamicTable {
    /// Returns the field that has this many newer ones.
    pub fn get(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let entry = self.entries.get(index)?;
        Some(entry.bytes.split_at(entry.name))
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn size_max(&self) -> usize {
        self.size_max
    }

    pub fn resize(&mut self, size: usize) {
        self.size_max = size;
        self.shrink_to(size);
    }

    /// Keeps a field with a name of this many bytes, and its value. One that has no room drives out
    /// all others.
    pub fn keep(&mut self, bytes: &[u8], name: usize) {
        let size = bytes.len() + FIELD_BYTES;
        self.shrink_to(self.size_max.saturating_sub(size));
        if size <= self.size_max {
            self.size += size;
            self.entries.push_front(TableEntry { bytes: bytes.into(), name });
        }
    }

    fn shrink_to(&mut self, size: usize) {
        while self.size > size
            && let Some(oldest) = self.entries.pop_back()
        {
            self.size -= oldest.bytes.len() + FIELD_BYTES;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_table_stays_within_its_size(
            steps: Vec<(Option<u16>, Vec<u8>)>,
        ) {
            let mut table = DynamicTable::default();
            for (size, bytes) in steps {
                if let Some(size) = size {
                    table.resize(usize::from(size % 5000));
                }
                table.keep(&bytes, bytes.len() / 2);
                let sizes = table.entries.iter().map(|entry| entry.bytes.len() + FIELD_BYTES);
                prop_assert_eq!(sizes.sum::<usize>(), table.size);
                prop_assert!(table.size <= table.size_max);
                if bytes.len() + FIELD_BYTES <= table.size_max {
                    prop_assert_eq!(table.get(0), Some(bytes.split_at(bytes.len() / 2)));
                }
            }
        }
    }
}
