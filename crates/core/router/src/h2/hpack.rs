//! The form that heads have in HTTP/2 (RFC 7541).

pub mod decode;
pub mod encode;
mod huffman;
mod names;
mod table;
