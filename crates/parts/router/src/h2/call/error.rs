//! What an error of the library means for whoever reads or writes a stream.

use std::io::{Error, ErrorKind};

pub fn broken(error: h2::Error) -> Error {
    Error::new(ErrorKind::ConnectionReset, error)
}
