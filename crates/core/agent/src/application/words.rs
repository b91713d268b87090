//! What a rollout says to people: the end of an output, remarks, and the texts of records. Texts
//! alone; used by rollout and by what takes a release back.

/// Bytes of an output's end. People read the end of an output; a record in the store must stay
/// small.
pub const LAST_WORDS_BYTES_MAX: usize = 4096;

/// Returns the last words, on lines of their own below what they belong to.
pub(super) fn last_words(output: &str) -> String {
    let words = tail(output.trim_end(), LAST_WORDS_BYTES_MAX);
    if words.is_empty() { String::new() } else { format!("\n{words}") }
}

/// Returns the end of `text`, at most `bytes_max` long, cut between characters.
pub(super) fn tail(text: &str, bytes_max: usize) -> &str {
    let start = text.len().saturating_sub(bytes_max);
    let start = (start..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    &text[start..]
}
