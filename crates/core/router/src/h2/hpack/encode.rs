//! The writer of heads for a client (RFC 7541). Fields that are sent again and again are kept in a
//! table that both sides share. The code for strings is not used: it costs more time than it saves.

use super::names::index_of;
use super::table::{DynamicTable, TABLE_BYTES_MAX};

/// Fields that both sides know from the start.
const KNOWN: usize = 61;
const STATUS: usize = 8;
/// Fields that are remembered as sent a while ago: one is kept when it comes again, so that those
/// which are new each time cost no place.
const SAID_MAX: usize = 32;
/// Bytes of a field that is kept; longer ones would drive out many others.
const KEPT_BYTES_MAX: usize = 512;
/// Bytes of a name that is kept; longer names are as rare as they are odd.
const NAME_BYTES_MAX: usize = 64;

/// What the first byte of a field says, and how many bits of it are left for a number.
type Form = (u8, u32);
const INDEXED: Form = (0x80, 7);
const KEPT: Form = (0x40, 6);
const RESIZED: Form = (0x20, 5);
const NEVER_KEPT: Form = (0x10, 4);
const NOT_KEPT: Form = (0, 4);
const LENGTH: Form = (0, 7);

/// The encoder of one connection.
#[derive(Debug, Default)]
pub struct Encoder {
    table: DynamicTable,
    /// The hashes of the fields in the table, the oldest first.
    kept: Vec<u64>,
    said: Vec<u64>,
    /// The place of the next in `said`.
    next: usize,
    /// The smallest size of the table since the client was last told of its size; `None` if it
    /// knows the size.
    resized: Option<usize>,
}

impl Encoder {
    /// Sets how much the client keeps at the most.
    pub fn resize(&mut self, size: usize) {
        let size = size.min(TABLE_BYTES_MAX);
        if size != self.table.size_max() {
            self.resized = Some(self.resized.map_or(size, |least| least.min(size)));
            self.table.resize(size);
            self.forget();
        }
    }

    /// Writes what a block begins with.
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        let now = self.table.size_max();
        if let Some(least) = self.resized.take() {
            if least < now {
                integer(out, RESIZED, least);
            }
            integer(out, RESIZED, now);
        }
    }

    pub fn put_status(&mut self, out: &mut Vec<u8>, status: u16) {
        let index = match status {
            200 => 8,
            204 => 9,
            206 => 10,
            304 => 11,
            400 => 12,
            404 => 13,
            500 => 14,
            _ => {
                let digit = |number: u16| b'0' + u8::try_from(number % 10).unwrap_or(0);
                integer(out, NOT_KEPT, STATUS);
                return string(out, &[digit(status / 100), digit(status / 10), digit(status)]);
            }
        };
        integer(out, INDEXED, index);
    }

    /// Writes a field. `name` may have capital letters, which become small.
    pub fn put(&mut self, out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
        let mut small = [0; NAME_BYTES_MAX];
        let Some(small) = small.get_mut(..name.len()) else {
            return literal(out, NOT_KEPT, &name.to_ascii_lowercase(), value);
        };
        small.copy_from_slice(name);
        small.make_ascii_lowercase();
        let name = &*small;
        if name == b"set-cookie" {
            // Nobody is to find it out by what is compressed with it.
            return literal(out, NEVER_KEPT, name, value);
        }
        if name.len() + value.len() > KEPT_BYTES_MAX {
            return literal(out, NOT_KEPT, name, value);
        }
        let hash = hash(name, value);
        if let Some(at) = self.kept.iter().rposition(|kept| *kept == hash) {
            let index = self.kept.len() - 1 - at;
            if self.table.get(index) == Some((name, value)) {
                return integer(out, INDEXED, KNOWN + 1 + index);
            }
        }
        if self.was_said(hash) {
            literal(out, KEPT, name, value);
            self.table.keep(&[name, value].concat(), name.len());
            self.kept.push(hash);
            self.forget();
        } else {
            literal(out, NOT_KEPT, name, value);
        }
    }

    fn was_said(&mut self, hash: u64) -> bool {
        if self.said.contains(&hash) {
            return true;
        }
        if self.said.len() < SAID_MAX {
            self.said.push(hash);
        } else {
            self.said[self.next] = hash;
            self.next = (self.next + 1) % SAID_MAX;
        }
        false
    }

    /// Forgets what the table has no room for any more.
    fn forget(&mut self) {
        let gone = self.kept.len() - self.table.len();
        self.kept.drain(..gone);
    }
}

fn literal(out: &mut Vec<u8>, form: Form, name: &[u8], value: &[u8]) {
    match index_of(name) {
        Some(index) => integer(out, form, usize::from(index)),
        None => {
            integer(out, form, 0);
            string(out, name);
        }
    }
    string(out, value);
}

fn string(out: &mut Vec<u8>, text: &[u8]) {
    integer(out, LENGTH, text.len());
    out.extend_from_slice(text);
}

fn integer(out: &mut Vec<u8>, (first, bits): Form, mut value: usize) {
    let mask = (1_usize << bits) - 1;
    if value < mask {
        return out.push(first | u8::try_from(value).unwrap_or(0));
    }
    out.push(first | u8::try_from(mask).unwrap_or(0));
    value -= mask;
    while value >= 0x80 {
        out.push(0x80 | (value & 0x7f) as u8);
        value >>= 7;
    }
    out.push((value & 0x7f) as u8);
}

/// Hashes eight bytes at a time; the bytes themselves say which fields are the same.
fn hash(name: &[u8], value: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut hash = (name.len() as u64) << 32 | value.len() as u64;
    for part in [name, value] {
        let (words, rest) = part.as_chunks::<8>();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        for word in words.iter().chain([&last]) {
            hash = (hash ^ u64::from_le_bytes(*word)).wrapping_mul(FACTOR).rotate_left(29);
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::super::decode::{Decoder, Fields};
    use super::*;
    use proptest::prelude::*;

    /// A status, and names with their values.
    type Block = (u16, Vec<(Vec<u8>, Vec<u8>)>);

    /// Checks blocks of fields as a client reads them, whose table is as large as it says.
    fn check(blocks: &[Block], sizes: &[Option<u16>]) {
        let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
        for ((status, list), size) in blocks.iter().zip(sizes) {
            if let Some(size) = size {
                encoder.resize(usize::from(*size % 5000));
            }
            let mut block = Vec::new();
            encoder.begin(&mut block);
            encoder.put_status(&mut block, *status);
            list.iter().for_each(|(name, value)| encoder.put(&mut block, name, value));
            let mut fields = Fields::default();
            fields.begin(1_000_000);
            decoder.decode(&block, &mut fields).unwrap();
            let mut read = fields.iter();
            let status = status.to_string();
            assert_eq!(read.next().unwrap(), (&b":status"[..], status.as_bytes()));
            for (name, value) in list {
                assert_eq!(read.next().unwrap(), (&name.to_ascii_lowercase()[..], &value[..]));
            }
            assert!(read.next().is_none());
        }
    }

    #[test]
    fn what_comes_again_is_kept_but_for_cookies() {
        let mut encoder = Encoder::default();
        let lengths = |encoder: &mut Encoder, name: &str, value: &str| {
            let mut out = Vec::new();
            [(); 3].map(|()| {
                out.clear();
                encoder.put(&mut out, name.as_bytes(), value.as_bytes());
                (out[0], out.len())
            })
        };
        assert_eq!(lengths(&mut encoder, "Server", "x"), [(0x0f, 4), (0x76, 3), (0xbe, 1)]);
        assert_eq!(lengths(&mut encoder, "x-y", "x"), [(0, 7), (0x40, 7), (0xbe, 1)]);
        let cookie = (0x1f, 6);
        assert_eq!(lengths(&mut encoder, "Set-Cookie", "a=b"), [cookie; 3]);
        let long = "v".repeat(KEPT_BYTES_MAX);
        assert_eq!(lengths(&mut encoder, "x", &long)[2].0, 0);
        // A client that keeps nothing is told nothing to keep.
        encoder.resize(0);
        let mut out = Vec::new();
        encoder.begin(&mut out);
        assert_eq!((&out[..], encoder.kept.len()), (&[0x20][..], 0));
    }

    #[test]
    fn the_table_is_as_large_as_the_client_says() {
        let field = |number: usize| (b"x-number".to_vec(), vec![b'v'; number % 200]);
        let blocks: Vec<_> = (0..400)
            .map(|round| (200, (0..30).map(|at| field(round / 20 * 7 + at)).collect()))
            .collect();
        let sizes: Vec<_> = (0..400_u16)
            .map(|round| (round % 37 == 36).then_some(round.wrapping_mul(211)))
            .collect();
        check(&blocks, &sizes);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            blocks: Vec<Block>,
            sizes: Vec<Option<u16>>,
            known in 0_usize..61,
            long in 0_usize..20_000,
        ) {
            let known = super::super::names::KNOWN[known].0.to_ascii_uppercase();
            let mut blocks = blocks;
            for (status, list) in &mut blocks {
                *status = 100 + *status % 900;
                list.push((known.clone().into(), vec![b'v'; long]));
                list.extend_from_within(..);
                list.extend_from_within(..);
            }
            check(&blocks, &sizes);
        }
    }
}
