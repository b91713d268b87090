//! The rule that an answer's head broke, once it is known that it broke one: looked for line by
//! line, as slowly as that is, and told with the line.

use super::BadResponse;
use crate::http::HEADERS_MAX;
use crate::http::syntax::is_token_byte;

/// Characters of a line that are shown: enough to find it by in a program's source.
const SHOWN_CHARS_MAX: usize = 60;

/// Returns what is wrong with a head that cannot be read, or not in one way alone.
pub fn of_head(head: &[u8]) -> BadResponse {
    let mut lines = head.split_inclusive(|byte| *byte == b'\n');
    let first = lines.next().unwrap_or_default();
    if !is_status_line(first) {
        return of_first_line("its first line is no status line such as 'HTTP/1.1 200 OK'", head);
    }
    for line in std::iter::once(first).chain(lines) {
        let is_first = std::ptr::eq(line, first);
        let Some(whole) = line.strip_suffix(b"\n") else { break };
        let Some(text) = whole.strip_suffix(b"\r") else {
            // What is wrong with it otherwise says more.
            let rule = (!is_first).then(|| of_line(whole)).flatten();
            return with(rule.unwrap_or("a line ends with LF alone, not with CR and LF"), whole);
        };
        if text.is_empty() {
            break;
        }
        if !is_first && let Some(rule) = of_line(text) {
            return with(rule, text);
        }
    }
    BadResponse::new("its head cannot be read")
}

/// Returns the rule that a header's line broke.
fn of_line(line: &[u8]) -> Option<&'static str> {
    if line.first().is_some_and(|byte| matches!(byte, b' ' | b'\t')) {
        return Some("a header goes on in a second line");
    }
    let Some(colon) = line.iter().position(|byte| *byte == b':') else {
        return Some("a header line without a colon");
    };
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    let is_control = |byte: &u8| byte.is_ascii_control() && *byte != b'\t';
    match name {
        [] => Some("a header without a name"),
        [.., b' ' | b'\t'] => Some("white space before the colon of a header"),
        name if !name.iter().all(|byte| is_token_byte(*byte)) => {
            Some("a header's name has a character that none may have")
        }
        _ if value.iter().any(is_control) => Some("a control character in a header"),
        _ => None,
    }
}

fn is_status_line(line: &[u8]) -> bool {
    let Some(rest) = line.strip_prefix(b"HTTP/1.1 ").or_else(|| line.strip_prefix(b"HTTP/1.0 "))
    else {
        return false;
    };
    let digits = rest.len() >= 3 && rest[..3].iter().all(u8::is_ascii_digit);
    let reason = &rest[rest.len().min(3)..];
    let is_odd = |byte: &u8| byte.is_ascii_control() && !matches!(byte, b'\t' | b'\r' | b'\n');
    digits
        && matches!(reason.first(), None | Some(b' ' | b'\r' | b'\n'))
        && !reason.iter().any(is_odd)
}

pub fn too_many(head: &[u8]) -> BadResponse {
    let lines = head.split(|byte| *byte == b'\n').skip(1).map(<[u8]>::trim_ascii);
    let count = lines.take_while(|line| !line.is_empty()).count();
    let shown = format!(": {count}, and {HEADERS_MAX} are the most").into();
    BadResponse { rule: "too many headers", shown: Some(shown) }
}

/// Returns what is wrong with a head that does not end: the longest line is shown.
pub fn too_large(head: &[u8]) -> BadResponse {
    let longest = head.split(|byte| *byte == b'\n').max_by_key(|line| line.len());
    with("its head is larger than 64 KiB; its longest line", longest.unwrap_or_default())
}

pub fn of_first_line(rule: &'static str, head: &[u8]) -> BadResponse {
    with(rule, head.split(|byte| *byte == b'\n').next().unwrap_or_default())
}

pub fn of_field(rule: &'static str, header: &httparse::Header<'_>) -> BadResponse {
    with(rule, &[header.name.as_bytes(), b": ", header.value].concat())
}

fn with(rule: &'static str, line: &[u8]) -> BadResponse {
    let text = String::from_utf8_lossy(line.trim_ascii_end());
    let mut shown: String =
        text.chars().take(SHOWN_CHARS_MAX).flat_map(char::escape_debug).collect();
    if text.chars().count() > SHOWN_CHARS_MAX {
        shown.push('…');
    }
    BadResponse { rule, shown: Some(format!(": '{shown}'").into()) }
}

#[cfg(test)]
mod tests {
    use super::super::{AnsweredRequest, parse};
    use super::*;

    fn check(answer: &str, expected: &str) {
        let asked = AnsweredRequest {
            head: false,
            modern: true,
            keep_alive: true,
            transparent: false,
            of_router: false,
        };
        let error = parse(answer.as_bytes(), asked, &mut Vec::new()).unwrap_err();
        assert_eq!(error.to_string(), expected, "{answer:?}");
    }

    #[test]
    fn each_malformed_answer_says_which_rule_it_broke() {
        for (fields, expected) in [
            (
                "X-Err: line one\nline two\r\n",
                "a line ends with LF alone, not with CR and LF: 'X-Err: line one'",
            ),
            ("Foo bar\r\n", "a header line without a colon: 'Foo bar'"),
            ("X: a\r\nline two\n", "a header line without a colon: 'line two'"),
            ("X Bad: a\r\n", "a header's name has a character that none may have: 'X Bad: a'"),
            ("A : b\r\n", "white space before the colon of a header: 'A : b'"),
            (": b\r\n", "a header without a name: ': b'"),
            ("A: b\r\n c\r\n", "a header goes on in a second line: ' c'"),
            ("A: b\0c\r\n", "a control character in a header: 'A: b\\0c'"),
            ("A: b\rc\r\n", "a control character in a header: 'A: b\\rc'"),
            ("Content-Length: 1x\r\n", "its Content-Length is no number: 'Content-Length: 1x'"),
            (
                "Content-Length: 1\r\nContent-Length: 2\r\n",
                "it has two different Content-Lengths: 'Content-Length: 2'",
            ),
            (
                "Transfer-Encoding: chunked\r\ntransfer-encoding: chunked\r\n",
                "it has two Transfer-Encodings: 'transfer-encoding: chunked'",
            ),
            (
                "Transfer-Encoding: gzip\r\n",
                "its Transfer-Encoding is not chunked: 'Transfer-Encoding: gzip'",
            ),
            (
                "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
                "it has both Content-Length and Transfer-Encoding",
            ),
        ] {
            check(&format!("HTTP/1.1 200 OK\r\n{fields}\r\n"), expected);
        }
        let line = "its first line is no status line such as 'HTTP/1.1 200 OK'";
        for first in ["hello", "HTTP/1.1 OK", "HTTP/2 200", "HTTP/1.1 2000", "<html>"] {
            check(&format!("{first}\r\n\r\n"), &format!("{line}: '{first}'"));
        }
        check("HTTP/1.1 099 X\r\n\r\n", "its status is below 100: 'HTTP/1.1 099 X'");
        check("HTTP/1.1 101 X\r\n\r\n", "status 101 without an Upgrade header");
        let many = "Link: </a.css>\r\n".repeat(110);
        check(
            &format!("HTTP/1.1 200 OK\r\n{many}Content-Length: 2\r\n\r\nok"),
            "too many headers: 111, and 100 are the most",
        );
        check(
            "HTTP/1.1 200 OK\n\n",
            "a line ends with LF alone, not with CR and LF: 'HTTP/1.1 200 OK'",
        );
    }

    #[test]
    fn long_lines_are_cut() {
        let head = format!("HTTP/1.1 200 OK\r\nX-Debug: {}\r\nA: b", "v".repeat(70_000));
        let text = too_large(head.as_bytes()).to_string();
        assert!(text.contains("64 KiB; its longest line: 'X-Debug: vvv"), "{text}");
        assert!(text.ends_with("vv…'") && text.len() < 200, "{text}");
    }
}
