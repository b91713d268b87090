//! The parser of commands: reads them off the front of a connection's bytes, however they were cut.
//! It remembers how far it came, so that nothing is read twice, and holds no bytes of its own but
//! those of a typed line.

use std::ops::Range;

use super::{
    ARGUMENTS_MAX, COMMAND_BYTES_MAX, INLINE_BYTES_MAX, ProtocolError, STREAMED_FROM, header,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// The command is not whole: call again with these bytes and more behind them.
    Incomplete,
    /// A whole command, `used` bytes long. It may have no arguments, and then wants no reply.
    Command { used: usize },
    /// `SET key`, and `length` bytes of value after the `used` ones. After the value come CR LF and
    /// `options` more arguments, which `Requests::expect_options` lets the parser read.
    Streamed { used: usize, length: u64, options: usize },
}

/// The state of reading one command.
#[derive(Clone, Debug, Default)]
pub struct Requests {
    arguments: Vec<Range<u32>>,
    /// The number of arguments still to come; `None` before the first header.
    missing: Option<usize>,
    at: usize,
    /// A typed line, unquoted; the arguments lie in it and not in the input. `None` if none was
    /// typed.
    line: Option<Vec<u8>>,
    complete: bool,
}

impl Requests {
    /// Parses `input`, which begins where the command begins. After `Command` or `Streamed`, drop
    /// `used` bytes from it.
    pub fn parse(&mut self, input: &[u8]) -> Result<Parsed, ProtocolError> {
        if self.complete {
            *self = Requests { arguments: std::mem::take(&mut self.arguments), ..Self::default() };
            self.arguments.clear();
        }
        let mut missing = match self.missing {
            Some(missing) => missing,
            None => match input.first() {
                None => return Ok(Parsed::Incomplete),
                Some(b'*') => {
                    let Some((count, used)) = header(input)? else { return Ok(Parsed::Incomplete) };
                    self.at = used;
                    // Other servers take a negative count for no command at all.
                    let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
                    if count > ARGUMENTS_MAX {
                        return Err(ProtocolError::Arguments);
                    }
                    count
                }
                Some(_) => return self.typed(input),
            },
        };
        while missing > 0 {
            self.missing = Some(missing);
            let rest = &input[self.at.min(input.len())..];
            let Some(first) = rest.first() else { return Ok(Parsed::Incomplete) };
            if *first != b'$' {
                return Err(ProtocolError::Expected(b'$', *first));
            }
            let Some((length, head)) = header(rest)? else { return Ok(Parsed::Incomplete) };
            let length = u64::try_from(length).map_err(|_| ProtocolError::Length)?;
            if length >= STREAMED_FROM && self.is_set(input) {
                self.complete = true;
                let (used, options) = (self.at + head, missing - 1);
                return Ok(Parsed::Streamed { used, length, options });
            }
            let start = self.at + head;
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            let end = start.saturating_add(length);
            if end > COMMAND_BYTES_MAX {
                return Err(ProtocolError::Command);
            }
            if input.len() < end + 2 {
                return Ok(Parsed::Incomplete);
            }
            if &input[end..end + 2] != b"\r\n" {
                return Err(ProtocolError::End);
            }
            self.arguments.push(start as u32..end as u32);
            self.at = end + 2;
            missing -= 1;
        }
        self.complete = true;
        Ok(Parsed::Command { used: self.at })
    }

    /// Starts again, as the next bytes begin another command, perhaps of another connection.
    pub fn restart(&mut self) {
        self.complete = true;
    }

    /// Reads, after a streamed value, the arguments behind it as a command of their own.
    pub fn expect_options(&mut self, options: usize) {
        *self = Requests { missing: Some(options), ..Requests::default() };
    }

    /// Returns how many arguments are known.
    pub fn len(&self) -> usize {
        self.arguments.len()
    }

    pub fn is_empty(&self) -> bool {
        self.arguments.is_empty()
    }

    /// Returns the bytes of one argument of a whole command; `input` must be as it was parsed.
    pub fn argument<'a>(&'a self, input: &'a [u8], index: usize) -> Option<&'a [u8]> {
        let range = self.arguments.get(index)?;
        let from = self.line.as_deref().unwrap_or(input);
        from.get(range.start as usize..range.end as usize)
    }

    /// Returns whether the next argument is the value of a `SET`.
    fn is_set(&self, input: &[u8]) -> bool {
        let command = self.argument(input, 0);
        self.arguments.len() == 2 && command.is_some_and(|name| name.eq_ignore_ascii_case(b"SET"))
    }

    /// Parses a line that a person typed: words, some of them quoted.
    fn typed(&mut self, input: &[u8]) -> Result<Parsed, ProtocolError> {
        let window = &input[..input.len().min(INLINE_BYTES_MAX)];
        let unread = &window[self.at.min(window.len())..];
        let Some(end) = unread.iter().position(|byte| *byte == b'\n') else {
            self.at = window.len();
            let whole = window.len() < INLINE_BYTES_MAX;
            return if whole { Ok(Parsed::Incomplete) } else { Err(ProtocolError::Inline) };
        };
        let used = self.at + end + 1;
        let line = &window[..used - 1];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let mut words = Vec::new();
        self.arguments = split(line, &mut words)?;
        self.line = Some(words);
        let first = self.argument(&[], 0).unwrap_or_default();
        // A page in a browser can make it send such lines here.
        if first.eq_ignore_ascii_case(b"POST") || first.eq_ignore_ascii_case(b"Host:") {
            return Err(ProtocolError::Http);
        }
        self.complete = true;
        Ok(Parsed::Command { used })
    }
}

/// Returns where the words lie in `words`, to which they are added without their quotes.
fn split(line: &[u8], words: &mut Vec<u8>) -> Result<Vec<Range<u32>>, ProtocolError> {
    let mut found = Vec::new();
    let mut rest = line;
    loop {
        rest = rest.trim_ascii_start();
        let Some(first) = rest.first() else { return Ok(found) };
        let start = words.len() as u32;
        rest = match first {
            b'"' => double_quoted(&rest[1..], words)?,
            b'\'' => single_quoted(&rest[1..], words)?,
            _ => {
                let end = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
                words.extend_from_slice(&rest[..end]);
                &rest[end..]
            }
        };
        if rest.first().is_some_and(|byte| !byte.is_ascii_whitespace()) {
            return Err(ProtocolError::Quotes);
        }
        found.push(start..words.len() as u32);
    }
}

/// Reads a double-quoted word and returns what follows the closing quote.
fn double_quoted<'a>(mut rest: &'a [u8], words: &mut Vec<u8>) -> Result<&'a [u8], ProtocolError> {
    loop {
        let (byte, next) = match rest {
            [b'"', end @ ..] => return Ok(end),
            [b'\\', b'x', high, low, next @ ..]
                if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                (digit(*high) << 4 | digit(*low), next)
            }
            [b'\\', b'n', next @ ..] => (b'\n', next),
            [b'\\', b'r', next @ ..] => (b'\r', next),
            [b'\\', b't', next @ ..] => (b'\t', next),
            [b'\\', other, next @ ..] => (*other, next),
            [other, next @ ..] => (*other, next),
            [] => return Err(ProtocolError::Quotes),
        };
        words.push(byte);
        rest = next;
    }
}

fn single_quoted<'a>(mut rest: &'a [u8], words: &mut Vec<u8>) -> Result<&'a [u8], ProtocolError> {
    loop {
        let (byte, next) = match rest {
            [b'\'', end @ ..] => return Ok(end),
            [b'\\', b'\'', next @ ..] => (b'\'', next),
            [other, next @ ..] => (*other, next),
            [] => return Err(ProtocolError::Quotes),
        };
        words.push(byte);
        rest = next;
    }
}

fn digit(hex: u8) -> u8 {
    char::from(hex).to_digit(16).unwrap_or_default() as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Result<Vec<String>, ProtocolError> {
        let mut requests = Requests::default();
        let input = format!("{line}\r\n");
        assert_eq!(requests.parse(input.as_bytes())?, Parsed::Command { used: input.len() });
        let word = |i| requests.argument(input.as_bytes(), i).unwrap().escape_ascii().to_string();
        Ok((0..requests.len()).map(word).collect())
    }

    #[test]
    fn typed_lines_are_split_into_words() {
        assert_eq!(words("  set a  'b c' ").unwrap(), ["set", "a", "b c"]);
        assert_eq!(words(r#"set "a\x41\"" 'it\'s'"#).unwrap(), ["set", "aA\\\"", "it\\'s"]);
        assert_eq!(words("").unwrap(), [""; 0]);
        for bad in ["set 'a", "set \"a", "set 'a'b"] {
            assert_eq!(words(bad), Err(ProtocolError::Quotes), "{bad}");
        }
        assert_eq!(words("POST / HTTP/1.1"), Err(ProtocolError::Http));
    }

    #[test]
    fn limits_are_kept() {
        let parse = |input: &[u8]| Requests::default().parse(input);
        assert_eq!(parse(b"*65537\r\n"), Err(ProtocolError::Arguments));
        assert_eq!(parse(b"*1\r\n$4194305\r\n"), Err(ProtocolError::Command));
        assert_eq!(parse(b"*1\r\n$-1\r\n"), Err(ProtocolError::Length));
        assert_eq!(parse(b"*1\r\n$9223372036854775808\r\n"), Err(ProtocolError::Length));
        assert_eq!(parse(b"*1\r\n:1\r\n"), Err(ProtocolError::Expected(b'$', b':')));
        assert_eq!(parse(b"*1\r\n$1\r\nabc"), Err(ProtocolError::End));
        assert_eq!(parse(&[b'*'; 40]), Err(ProtocolError::Line));
        assert_eq!(parse(&vec![b'a'; INLINE_BYTES_MAX]), Err(ProtocolError::Inline));
        assert_eq!(parse(b"*-1\r\n"), Ok(Parsed::Command { used: 5 }));
    }

    #[test]
    fn large_values_of_set_are_left_to_the_caller() {
        let mut requests = Requests::default();
        let head = b"*5\r\n$3\r\nset\r\n$1\r\nk\r\n$65536\r\n";
        for cut in 0..head.len() {
            assert_eq!(requests.parse(&head[..cut]), Ok(Parsed::Incomplete), "{cut}");
        }
        let streamed = Parsed::Streamed { used: head.len(), length: 65536, options: 2 };
        assert_eq!(requests.parse(head), Ok(streamed));
        assert_eq!(requests.argument(head, 1), Some(&b"k"[..]));
        requests.expect_options(2);
        let options = b"$2\r\nEX\r\n$1\r\n9\r\n";
        assert_eq!(requests.parse(options), Ok(Parsed::Command { used: options.len() }));
        assert_eq!(requests.argument(options, 1), Some(&b"9"[..]));
        requests.expect_options(0);
        assert_eq!(requests.parse(b""), Ok(Parsed::Command { used: 0 }));
    }
}
