//! The reader of heads as a client sends them (RFC 7541). It keeps the fields that it was told to,
//! in a table that both sides share.

use super::huffman;
use super::names::KNOWN;
use super::table::{DynamicTable, FIELD_BYTES, TABLE_BYTES_MAX};

/// The fields of one head. One value serves many heads, so that none needs memory of its own.
#[derive(Debug, Default)]
pub struct Fields {
    bytes: Vec<u8>,
    list: Vec<Field>,
    size: usize,
    size_max: usize,
}

#[derive(Clone, Copy, Debug)]
struct Field {
    start: usize,
    value: usize,
    end: usize,
}

impl Fields {
    /// Begins a head of at most this many bytes, each field counted with 32 more.
    pub fn begin(&mut self, size_max: usize) {
        self.bytes.clear();
        self.list.clear();
        (self.size, self.size_max) = (0, size_max);
    }

    /// Returns whether there were more fields; the rest is not kept.
    pub fn are_too_many(&self) -> bool {
        self.size > self.size_max
    }

    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.list.iter().map(|field| {
            let Field { start, value, end } = *field;
            (&self.bytes[start..value], &self.bytes[value..end])
        })
    }

    /// Makes what was put to the bytes behind `start`, its value at `value`, a field.
    fn add(&mut self, start: usize, value: usize) {
        let end = self.bytes.len();
        self.count(end - start);
        match self.are_too_many() {
            true => self.bytes.truncate(start),
            false => self.list.push(Field { start, value, end }),
        }
    }

    fn count(&mut self, bytes: usize) {
        self.size = self.size.saturating_add(bytes + FIELD_BYTES);
    }

    fn put(&mut self, name: &[u8], value: &[u8]) {
        if self.are_too_many() {
            return self.count(name.len() + value.len());
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(name);
        let at = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.add(start, at);
    }
}

/// The block cannot be read, and so no later one either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable;

/// The decoder of one connection.
#[derive(Debug, Default)]
pub struct Decoder {
    table: DynamicTable,
}

impl Decoder {
    /// Reads a whole block to `fields`, which were begun.
    pub fn decode(&mut self, mut block: &[u8], fields: &mut Fields) -> Result<(), Unreadable> {
        let mut may_resize = true;
        while let Some(first) = block.first().copied() {
            let input = &mut block;
            match first {
                0x80.. => {
                    let index = integer(input, 7)?;
                    let (name, value) = self.field(index)?;
                    fields.put(name, value);
                }
                0x40..0x80 => self.literal(input, 6, true, fields)?,
                0x20..0x40 => {
                    let size = integer(input, 5)?;
                    if !may_resize || size > TABLE_BYTES_MAX {
                        return Err(Unreadable);
                    }
                    self.table.resize(size);
                    continue;
                }
                // A field that is never to be indexed is not kept here anyway.
                0x00..0x20 => self.literal(input, 4, false, fields)?,
            }
            may_resize = false;
        }
        Ok(())
    }

    fn literal(
        &mut self,
        input: &mut &[u8],
        prefix: u32,
        is_kept: bool,
        fields: &mut Fields,
    ) -> Result<(), Unreadable> {
        let start = fields.bytes.len();
        match integer(input, prefix)? {
            0 => string(input, &mut fields.bytes)?,
            index => fields.bytes.extend_from_slice(self.field(index)?.0),
        }
        let value = fields.bytes.len();
        string(input, &mut fields.bytes)?;
        if is_kept {
            self.table.keep(&fields.bytes[start..], value - start);
        }
        fields.add(start, value);
        Ok(())
    }

    fn field(&self, index: usize) -> Result<(&[u8], &[u8]), Unreadable> {
        let index = index.checked_sub(1).ok_or(Unreadable)?;
        if let Some((name, value)) = KNOWN.get(index) {
            return Ok((name.as_bytes(), value.as_bytes()));
        }
        self.table.get(index - KNOWN.len()).ok_or(Unreadable)
    }
}

/// Reads an integer that has this many bits in the first byte.
fn integer(input: &mut &[u8], prefix: u32) -> Result<usize, Unreadable> {
    /// No length or index is larger.
    const BITS_MAX: u32 = 28;
    let mut next = || {
        let (first, rest) = input.split_first().ok_or(Unreadable)?;
        *input = rest;
        Ok(usize::from(*first))
    };
    let mask = (1 << prefix) - 1;
    let mut value = next()? & mask;
    if value < mask {
        return Ok(value);
    }
    let mut shift = 0;
    loop {
        let byte = next()?;
        value += (byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
        shift += 7;
        if shift >= BITS_MAX {
            return Err(Unreadable);
        }
    }
}

fn string(input: &mut &[u8], out: &mut Vec<u8>) -> Result<(), Unreadable> {
    let is_coded = input.first().is_some_and(|first| first & 0x80 != 0);
    let length = integer(input, 7)?;
    let (text, rest) = input.split_at_checked(length).ok_or(Unreadable)?;
    *input = rest;
    if !is_coded {
        out.extend_from_slice(text);
    } else if !huffman::decode(text, out) {
        return Err(Unreadable);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(decoder: &mut Decoder, block: &[u8]) -> Result<Vec<(String, String)>, Unreadable> {
        let mut fields = Fields::default();
        fields.begin(10_000);
        decoder.decode(block, &mut fields)?;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        Ok(fields.iter().map(|(name, value)| (text(name), text(value))).collect())
    }

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        let pair = |two: &[u8]| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap();
        digits.chunks(2).map(pair).collect()
    }

    /// The examples of RFC 7541, appendices C.3 and C.4: three requests, plain and coded.
    #[test]
    fn the_examples_of_the_standard_are_read() {
        let plain = [
            "828684410f7777772e6578616d706c652e636f6d",
            "828684be58086e6f2d6361636865",
            "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
        ];
        let coded = [
            "828684418cf1e3c2e5f23a6ba0ab90f4ff",
            "828684be5886a8eb10649cbf",
            "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
        ];
        let common = |scheme: &str, path: &str| {
            [(":method", "GET"), (":scheme", scheme), (":path", path)]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into_iter()
                .chain([(":authority".to_owned(), "www.example.com".to_owned())])
                .collect::<Vec<_>>()
        };
        for blocks in [plain, coded] {
            let mut decoder = Decoder::default();
            assert_eq!(read(&mut decoder, &bytes(blocks[0])).unwrap(), common("http", "/"));
            let second = read(&mut decoder, &bytes(blocks[1])).unwrap();
            assert_eq!(second[..4], common("http", "/"));
            assert_eq!(second[4], ("cache-control".to_owned(), "no-cache".to_owned()));
            let third = read(&mut decoder, &bytes(blocks[2])).unwrap();
            assert_eq!(third[..4], common("https", "/index.html"));
            assert_eq!(third[4], ("custom-key".to_owned(), "custom-value".to_owned()));
            assert_eq!(decoder.table.len(), 3);
        }
    }

    #[test]
    fn the_table_stays_small() {
        let mut decoder = Decoder::default();
        for number in 0..1000_u32 {
            let mut block = vec![0x40, 4];
            block.extend(number.to_be_bytes().map(|byte| b'a' + byte % 16));
            block.extend([100; 101]);
            read(&mut decoder, &block).unwrap();
        }
        assert_eq!(decoder.table.len(), TABLE_BYTES_MAX / (4 + 100 + FIELD_BYTES));
        // A field that has no room in the table empties it.
        let mut large = vec![0x40, 1, b'a', 0x7f, 0x81, 0x1f];
        large.resize(large.len() + 127 + 1 + 31 * 128, b'v');
        read(&mut decoder, &large).unwrap();
        assert_eq!(decoder.table.len(), 0);
        // A size of its own comes at the start of a block alone.
        read(&mut decoder, &[0x20, 0x40, 1, b'a', 1, b'b']).unwrap();
        assert_eq!((decoder.table.len(), decoder.table.size_max()), (0, 0));
        read(&mut decoder, &[0x82, 0x20]).unwrap_err();
        read(&mut decoder, &[0x3f, 0xe2, 0x1f]).unwrap_err();
    }

    #[test]
    fn a_small_block_that_means_much_is_not_kept() {
        let mut decoder = Decoder::default();
        let mut block = vec![0x40, 1, b'x', 0x7f, 0x81, 0x1e];
        block.extend([b'v'; 127 + 1 + 30 * 128]);
        block.extend([0xbe; 100_000]);
        let mut fields = Fields::default();
        fields.begin(64 * 1024);
        decoder.decode(&block, &mut fields).unwrap();
        assert!(fields.are_too_many() && fields.bytes.capacity() <= 256 * 1024);
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        for block in [
            &[0x80][..],
            &[0xbe],
            &[0xff],
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
            &[0x40],
            &[0x40, 5, b'a'],
            &[0x41, 0x81, 0x1e],
            &[0x7f, 0x80],
        ] {
            assert_eq!(read(&mut Decoder::default(), block), Err(Unreadable), "{block:x?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(blocks: Vec<Vec<u8>>) {
            let (mut decoder, mut fields) = (Decoder::default(), Fields::default());
            for block in blocks {
                fields.begin(500);
                decoder.decode(&block, &mut fields).ok();
            }
        }
    }
}
