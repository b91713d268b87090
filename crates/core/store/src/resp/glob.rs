//! Patterns of `KEYS`, `SCAN` and `PSUBSCRIBE`: `*`, `?`, `[a-z]`, `[^a]` and `\` before a letter.

use model::Prefix;
use model::key::SEPARATOR;

/// Returns whether the whole text matches. Takes at most the product of both lengths.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Where to resume if what follows the last star does not fit here.
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        let fits = match pattern.get(p) {
            Some(b'*') => {
                retry = Some((p + 1, t + 1));
                p += 1;
                continue;
            }
            Some(_) => one(&pattern[p..], text[t]),
            None => None,
        };
        match (fits, retry) {
            (Some(used), _) => {
                p += used;
                t += 1;
            }
            (None, Some((after, from))) => {
                retry = Some((after, from + 1));
                (p, t) = (after, from);
            }
            (None, None) => return false,
        }
    }
    pattern[p.min(pattern.len())..].iter().all(|byte| *byte == b'*')
}

/// Returns the length of the pattern's front that stands for this one byte; `None` if it does not.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'[', class @ ..] => {
            let (negated, body) = match class {
                [b'^', rest @ ..] => (true, rest),
                _ => (false, class),
            };
            let (hit, used) = in_class(body, byte);
            (hit != negated).then_some(1 + usize::from(negated) + used)
        }
        [b'\\', letter, ..] => (*letter == byte).then_some(2),
        [letter, ..] => (*letter == byte).then_some(1),
        [] => None,
    }
}

/// Returns whether the byte is in the class, and the length of the class with its bracket; a class
/// that is not closed ends with the pattern.
fn in_class(body: &[u8], byte: u8) -> (bool, usize) {
    let (mut at, mut hit) = (0, false);
    loop {
        match &body[at..] {
            [] => return (hit, at),
            [b']', ..] => return (hit, at + 1),
            [b'\\', letter, ..] => {
                hit |= *letter == byte;
                at += 2;
            }
            [low, b'-', high, ..] if *high != b']' => {
                hit |= (*low.min(high)..=*low.max(high)).contains(&byte);
                at += 3;
            }
            [letter, ..] => {
                hit |= *letter == byte;
                at += 1;
            }
        }
    }
}

/// Returns the bytes that every match begins with.
pub fn literal(pattern: &[u8]) -> &[u8] {
    let end = pattern.iter().position(|byte| b"*?[\\".contains(byte));
    &pattern[..end.unwrap_or(pattern.len())]
}

/// Returns the whole tokens that every match begins with.
pub fn prefix(pattern: &str) -> Prefix {
    let literal = literal(pattern.as_bytes()).len();
    let tokens = if literal == pattern.len() {
        pattern
    } else {
        pattern[..literal].rsplit_once(SEPARATOR).map_or("", |(tokens, _)| tokens)
    };
    // What is no prefix of keys matches none; looking at all of them finds that out, too.
    tokens.parse().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_elsewhere() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("a::*", "a::b::c", true),
            ("a::*", "a", false),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("*a*b", "xaxbxab", true),
            ("*a*b", "xaxbxa", false),
            (r"a\*", "a*", true),
            (r"a\*", "ab", false),
            ("[abc", "b", true),
            ("a**", "a", true),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn the_literal_front_of_a_pattern_narrows_the_search() {
        for (pattern, expected) in [
            ("*", ""),
            ("a::b::*", "a::b"),
            ("a::b*", "a"),
            ("a*::b", ""),
            ("a::b", "a::b"),
            ("::*", ""),
            (r"a::\*::b", "a"),
        ] {
            assert_eq!(prefix(pattern).as_str(), expected, "{pattern}");
        }
    }
}
