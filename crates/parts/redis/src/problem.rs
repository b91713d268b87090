//! The reason why a command is refused, as its client reads it.

use store::StoreError;

/// The reason why a command was not carried out, as the client is told.
#[derive(Debug)]
pub struct Problem(pub String);

impl Problem {
    pub fn error(text: impl std::fmt::Display) -> Problem {
        Problem(format!("ERR {text}"))
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Problem {
        Problem::error(error)
    }
}
