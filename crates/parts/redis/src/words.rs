//! The words of a command, by their places among the bytes that came.

use store_core::resp::request::Requests;

use super::problem::Problem;

/// The words of one command.
#[derive(Clone, Copy)]
pub struct Words<'a> {
    pub requests: &'a Requests,
    pub input: &'a [u8],
}

impl<'a> Words<'a> {
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    pub fn get(&self, index: usize) -> &'a [u8] {
        self.requests.argument(self.input, index).unwrap_or_default()
    }

    pub fn from(self, first: usize) -> impl Iterator<Item = &'a [u8]> {
        (first..self.len()).map(move |index| self.get(index))
    }

    pub fn text(&self, index: usize) -> Result<&'a str, Problem> {
        let text = std::str::from_utf8(self.get(index));
        text.map_err(|_| Problem::error("an argument is no UTF-8"))
    }

    pub fn is(&self, index: usize, word: &str) -> bool {
        self.get(index).eq_ignore_ascii_case(word.as_bytes())
    }

    pub fn number(&self, index: usize) -> Result<i64, Problem> {
        let number = self.text(index).ok().and_then(|text| text.parse().ok());
        number.ok_or_else(|| Problem::error("value is not an integer or out of range"))
    }
}
