//! The writer of replies, in the older or the newer form of the protocol.

use super::Protocol;

/// The replies of one connection, one behind the other, until they are sent.
#[derive(Clone, Debug, Default)]
pub struct Replies {
    pub bytes: Vec<u8>,
    pub protocol: Protocol,
}

impl Replies {
    pub fn ok(&mut self) {
        self.bytes.extend_from_slice(b"+OK\r\n");
    }

    /// Writes a simple string; `text` is ours and has no line breaks.
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text);
    }

    /// Writes an error. It begins with a word in capitals, `ERR` where clients know no better one.
    /// What others wrote may be quoted in it: line breaks are taken out.
    pub fn error(&mut self, text: &str) {
        self.line(b'-', text);
    }

    pub fn integer(&mut self, number: i64) {
        self.number(b':', number);
    }

    pub fn bulk(&mut self, value: &[u8]) {
        self.bulk_head(value.len() as u64);
        self.bytes.extend_from_slice(value);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Writes what comes before the bytes of a value that is sent in pieces; CR LF must follow
    /// them.
    pub fn bulk_head(&mut self, length: u64) {
        self.bytes.push(b'$');
        self.decimal(length);
        self.bytes.extend_from_slice(b"\r\n");
    }

    pub fn text(&mut self, text: &str) {
        self.bulk(text.as_bytes());
    }

    /// Writes text for people; newer clients are told that it is.
    pub fn verbatim(&mut self, text: &str) {
        match self.protocol {
            Protocol::Resp2 => self.text(text),
            Protocol::Resp3 => {
                self.number(b'=', text.len() as i64 + 4);
                self.bytes.extend_from_slice(b"txt:");
                self.bytes.extend_from_slice(text.as_bytes());
                self.bytes.extend_from_slice(b"\r\n");
            }
        }
    }

    pub fn null(&mut self) {
        self.bytes.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    pub fn array(&mut self, count: usize) {
        self.number(b'*', count as i64);
    }

    /// Begins a map; `pairs` times a key and its value follow.
    pub fn map(&mut self, pairs: usize) {
        match self.protocol {
            Protocol::Resp2 => self.array(2 * pairs),
            Protocol::Resp3 => self.number(b'%', pairs as i64),
        }
    }

    /// Begins a message that the client did not ask for just now.
    pub fn push(&mut self, count: usize) {
        match self.protocol {
            Protocol::Resp2 => self.array(count),
            Protocol::Resp3 => self.number(b'>', count as i64),
        }
    }

    fn line(&mut self, kind: u8, text: &str) {
        self.bytes.push(kind);
        let breaks = |byte: u8| if byte.is_ascii_control() { b' ' } else { byte };
        self.bytes.extend(text.bytes().map(breaks));
        self.bytes.extend_from_slice(b"\r\n");
    }

    fn number(&mut self, kind: u8, number: i64) {
        self.bytes.push(kind);
        if number < 0 {
            self.bytes.push(b'-');
        }
        self.decimal(number.unsigned_abs());
        self.bytes.extend_from_slice(b"\r\n");
    }

    fn decimal(&mut self, mut number: u64) {
        // 2^64 has 20 digits.
        let mut digits = [0; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        self.bytes.extend_from_slice(&digits[at..]);
    }
}
