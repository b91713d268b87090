//! The keys by which somebody in a raw terminal leaves, as with ssh: `~.` at the beginning of a
//! line; `~~` types one `~`.

const ESCAPE: u8 = b'~';
const LEAVE: u8 = b'.';

#[derive(Debug)]
pub struct Escape {
    at_line_start: bool,
    /// Whether an escape was typed, and what follows it decides.
    pending: bool,
}

impl Escape {
    pub fn new() -> Escape {
        Escape { at_line_start: true, pending: false }
    }

    /// Returns what of these keys is for the command, or `None` if somebody leaves.
    pub fn filter(&mut self, keys: &[u8]) -> Option<Vec<u8>> {
        let mut typed = Vec::with_capacity(keys.len() + 1);
        for key in keys {
            if std::mem::take(&mut self.pending) {
                match *key {
                    LEAVE => return None,
                    ESCAPE => {}
                    _ => typed.push(ESCAPE),
                }
            } else if *key == ESCAPE && self.at_line_start {
                self.pending = true;
                continue;
            }
            self.at_line_start = matches!(key, b'\r' | b'\n');
            typed.push(*key);
        }
        Some(typed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pieces: &[&str], typed: Option<&str>) {
        let mut escape = Escape::new();
        let passed: Option<Vec<Vec<u8>>> =
            pieces.iter().map(|keys| escape.filter(keys.as_bytes())).collect();
        let passed = passed.map(|passed| String::from_utf8(passed.concat()).unwrap());
        assert_eq!(passed.as_deref(), typed, "{pieces:?}");
    }

    #[test]
    fn a_tilde_leaves_at_the_beginning_of_a_line_alone() {
        check(&["~."], None);
        check(&["ls\r~", "."], None);
        check(&["cd ~.\r"], Some("cd ~.\r"));
        check(&["~~.", "~."], Some("~.~."));
        check(&["~", "/x\r"], Some("~/x\r"));
        check(&["~x\r~."], None);
    }
}
