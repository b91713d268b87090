//! Escape sequences in the output of applications. Colours may reach a terminal; no other sequence
//! may take hold of it, and where there is no terminal none of them is left. Pure.

/// The character that begins every sequence.
const ESCAPE: char = '\u{1b}';
/// Characters of a sequence; one that is longer was never ended, or is none.
const SEQUENCE_CHARS_MAX: usize = 256;
/// Bytes of the colours that are on: more are not worth a longer line.
const COLOURS_BYTES_MAX: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece<'a> {
    Text(&'a str),
    /// `ESC [ … m`: colours and weight.
    Colour(&'a str),
    /// Any other sequence, and one that was cut.
    Other,
}

/// Returns the text without any sequence.
pub fn strip(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for piece in Pieces(text) {
        if let Piece::Text(text) = piece {
            plain.push_str(text);
        }
    }
    plain
}

/// Returns where `bytes` may be cut at or before `limit`, so that no sequence that begins shortly
/// before it is cut in two; `limit` if there is no such sequence.
pub fn boundary(bytes: &[u8], limit: usize) -> usize {
    let limit = limit.min(bytes.len());
    let from = limit.saturating_sub(SEQUENCE_BYTES_LOOKED_AT);
    let Some(at) = bytes[from..limit].iter().rposition(|byte| *byte == 0x1b) else { return limit };
    let (start, rest) = (from + at, &bytes[from + at..limit]);
    let ended = match rest.get(1) {
        Some(b'[') => rest[2..].iter().any(|byte| (0x40..=0x7e).contains(byte)),
        Some(b']' | b'P' | b'X' | b'^' | b'_') => {
            rest.contains(&0x07) || rest[1..].windows(2).any(|pair| pair == b"\x1b\\")
        }
        Some(byte) => !(0x20..=0x2f).contains(byte) || rest.len() > 2,
        None => false,
    };
    // A line that is nothing but one sequence has to be cut somewhere.
    if ended || start == 0 { limit } else { start }
}

/// Bytes of what may be one colour, with all that a terminal understands in it.
const SEQUENCE_BYTES_LOOKED_AT: usize = 64;

/// Lines of one source, one after the other: a colour that is on at the end of a line is on in the
/// next one, and in nothing that is printed in between.
#[derive(Clone, Debug, Default)]
pub struct Painter {
    /// The sequences since the last one that turned all off.
    on: String,
}

impl Painter {
    /// Returns the line with its colours whole.
    pub fn line(&mut self, text: &str) -> String {
        let mut painted = self.on.clone();
        for piece in Pieces(text) {
            match piece {
                Piece::Text(text) => painted.push_str(text),
                Piece::Other => {}
                Piece::Colour(sequence) => {
                    painted.push_str(sequence);
                    self.note(sequence);
                }
            }
        }
        if !self.on.is_empty() {
            painted.push_str("\u{1b}[0m");
        }
        painted
    }

    fn note(&mut self, sequence: &str) {
        let codes = &sequence[2..sequence.len() - 1];
        let first = codes.split([';', ':']).next().unwrap_or_default();
        if matches!(first, "" | "0" | "00") {
            self.on.clear();
            if codes.len() == first.len() {
                return;
            }
        }
        if self.on.len() + sequence.len() > COLOURS_BYTES_MAX {
            self.on.clear();
        }
        if sequence.len() <= COLOURS_BYTES_MAX {
            self.on.push_str(sequence);
        }
    }
}

struct Pieces<'a>(&'a str);

impl<'a> Iterator for Pieces<'a> {
    type Item = Piece<'a>;

    fn next(&mut self) -> Option<Piece<'a>> {
        if self.0.is_empty() {
            return None;
        }
        let start = self.0.find(ESCAPE).unwrap_or(self.0.len());
        let (length, piece) = match start {
            0 => sequence(self.0),
            _ => (start, Piece::Text(&self.0[..start])),
        };
        self.0 = &self.0[length..];
        Some(piece)
    }
}

/// Returns the length of the sequence that `text` begins with, and what it is.
fn sequence(text: &str) -> (usize, Piece<'_>) {
    let rest = &text[1..];
    let Some(kind) = rest.chars().next() else { return (1, Piece::Other) };
    match kind {
        '[' => {
            for (at, c) in rest.char_indices().skip(1).take(SEQUENCE_CHARS_MAX) {
                match c {
                    '\u{20}'..='\u{3f}' => {}
                    'm' if rest[1..at].chars().all(|c| matches!(c, '0'..='9' | ';' | ':')) => {
                        return (at + 2, Piece::Colour(&text[..at + 2]));
                    }
                    '\u{40}'..='\u{7e}' => return (at + 2, Piece::Other),
                    // The sequence was cut: what follows is text.
                    _ => return (at + 1, Piece::Other),
                }
            }
            (text.len().min(1 + reach(rest)), Piece::Other)
        }
        // Titles, links and the like end with BEL or ESC \.
        ']' | 'P' | 'X' | '^' | '_' => {
            for (at, c) in rest.char_indices().skip(1).take(SEQUENCE_CHARS_MAX) {
                match c {
                    '\u{7}' => return (at + 2, Piece::Other),
                    ESCAPE if rest[at..].starts_with("\u{1b}\\") => return (at + 3, Piece::Other),
                    ESCAPE => return (at + 1, Piece::Other),
                    _ => {}
                }
            }
            (text.len().min(1 + reach(rest)), Piece::Other)
        }
        // A character set and the like: intermediates and one more.
        '\u{20}'..='\u{2f}' => {
            let end = rest.char_indices().find(|(_, c)| !('\u{20}'..='\u{2f}').contains(c));
            (end.map_or(text.len(), |(at, c)| 1 + at + c.len_utf8()), Piece::Other)
        }
        '\u{30}'..='\u{7e}' => (2, Piece::Other),
        _ => (1, Piece::Other),
    }
}

/// Returns the bytes of as many characters as one sequence may have.
fn reach(rest: &str) -> usize {
    let beyond = rest.char_indices().nth(SEQUENCE_CHARS_MAX + 1);
    beyond.map_or(rest.len(), |(at, _)| at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RED: &str = "\u{1b}[31m";
    const OFF: &str = "\u{1b}[0m";

    #[test]
    fn sequences_are_taken_out_whole() {
        for (text, expected) in [
            (
                "\u{1b}[32mINFO\u{1b}[0m  started  \u{1b}[1;34mGET\u{1b}[0m /",
                "INFO  started  GET /",
            ),
            ("\u{1b}[38;5;208mx\u{1b}[38:2::1:2:3my\u{1b}[m", "xy"),
            ("\u{1b}]0;title\u{7}after", "after"),
            ("\u{1b}]8;;http://x\u{1b}\\link\u{1b}]8;;\u{1b}\\", "link"),
            ("a\u{1b}[2Kb\u{1b}[1;5Hc\u{1b}(Bd\u{1b}7e\u{1b}=f", "abcdef"),
            ("cut \u{1b}[3", "cut "),
            ("cut \u{1b}", "cut "),
            ("\u{1b}[31ä is text", "ä is text"),
            ("no sequence", "no sequence"),
        ] {
            assert_eq!(strip(text), expected, "{text:?}");
        }
    }

    #[test]
    fn colours_go_on_in_the_next_line_and_nowhere_else() {
        let mut painter = Painter::default();
        assert_eq!(painter.line(&format!("a {RED}b")), format!("a {RED}b{OFF}"));
        assert_eq!(painter.line("c"), format!("{RED}c{OFF}"));
        assert_eq!(painter.line(&format!("d{OFF} e")), format!("{RED}d{OFF} e"));
        assert_eq!(painter.line("f"), "f");
        assert_eq!(painter.line("\u{1b}[2Jgone\u{1b}]0;t\u{7}\u{1b}[3"), "gone");
        assert_eq!(painter.line("\u{1b}[0;32mg"), format!("\u{1b}[0;32mg{OFF}"));
        assert_eq!(painter.line("h\u{1b}[m"), "\u{1b}[0;32mh\u{1b}[m");
        assert_eq!(painter.line("i"), "i");
    }

    #[test]
    fn what_is_on_is_bounded() {
        let mut painter = Painter::default();
        for number in 0..10_000 {
            painter.line(&format!("\u{1b}[38;5;{}mx", number % 256));
            assert!(painter.on.len() <= COLOURS_BYTES_MAX);
        }
    }

    #[test]
    fn a_long_line_is_cut_before_a_sequence_and_not_within() {
        let line = b"0123456789\x1b[1;31mred";
        for (limit, expected) in
            [(5, 5), (10, 10), (11, 10), (13, 10), (16, 10), (17, 17), (19, 19)]
        {
            assert_eq!(boundary(line, limit), expected, "{limit}");
        }
        assert_eq!(boundary(b"\x1b[31", 3), 3, "it goes on somewhere");
    }

    proptest! {
        #[test]
        fn nothing_is_left_that_a_terminal_would_obey(text in "([a-z]|\u{1b}|\\[|[0-9;m]|\\]|\u{7}|ä){0,60}") {
            prop_assert!(!strip(&text).contains(ESCAPE));
            let painted = Painter::default().line(&text);
            prop_assert_eq!(strip(&painted), strip(&text));
            for piece in Pieces(&painted) {
                prop_assert!(piece != Piece::Other, "{:?}", painted);
            }
        }
    }
}
