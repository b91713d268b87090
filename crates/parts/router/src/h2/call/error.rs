//! The meaning of an error of the library for the reader or writer of a stream.

use std::io::{Error, ErrorKind};

pub fn broken(error: h2::Error) -> Error {
    Error::new(ErrorKind::ConnectionReset, error)
}
