//! The head of an HTTP/1.1 answer, as far as a measurement's own clients need it.

use anyhow::{Context, bail};

/// The most header fields of an answer; no server that is measured sends more.
const HEADERS_MAX: usize = 32;

#[derive(Debug, PartialEq)]
pub struct Head {
    pub status: u16,
    pub closes: bool,
    /// The length of the answer in bytes, with its body.
    pub whole_bytes: usize,
}

impl Head {
    /// Parses the head of an answer; returns `None` while the head is incomplete.
    pub fn parse(bytes: &[u8]) -> anyhow::Result<Option<Head>> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut headers);
        let httparse::Status::Complete(head) = response.parse(bytes)? else { return Ok(None) };
        let status = response.code.context("an answer without a status")?;
        let field = |name: &str| {
            let found = response.headers.iter().find(|one| one.name.eq_ignore_ascii_case(name));
            found.and_then(|one| std::str::from_utf8(one.value).ok())
        };
        let Some(length) = field("content-length").and_then(|text| text.parse::<usize>().ok())
        else {
            bail!("an answer without a length");
        };
        let closes = field("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        Ok(Some(Head { status, closes, whole_bytes: head.saturating_add(length) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_as_long_as_its_head_says() {
        let text = b"HTTP/1.1 503 Busy\r\nConnection: close\r\nContent-Length: 12\r\n\r\nno";
        let head = text.len() - 2;
        for end in 0..head {
            assert_eq!(Head::parse(&text[..end]).unwrap(), None);
        }
        let expected = Head { status: 503, closes: true, whole_bytes: head + 12 };
        assert_eq!(Head::parse(text).unwrap(), Some(expected));
        assert!(Head::parse(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }
}
