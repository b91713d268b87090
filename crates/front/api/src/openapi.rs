//! The description of the API in OpenAPI 3.1, from which programs make clients, tests and pages. A
//! test makes it of the table of routes, the handlers' signatures and the types, and compares it
//! with the file that is kept; so the binary carries the text alone, and a change of the API is
//! read as a change of that file.

#[cfg(test)]
mod document;
#[cfg(test)]
mod operations;
pub mod signature;
#[cfg(test)]
mod tests;

use axum::http::header;
use axum::response::{IntoResponse, Response};

use super::problem::Problem;

/// The document as the build compressed it.
const DOCUMENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/openapi.deflate"));
/// The most bytes of the document; it has been checked long before anybody asks.
const DOCUMENT_BYTES_MAX: usize = 4 * 1024 * 1024;

pub async fn show() -> Result<Response, Problem> {
    let document = miniz_oxide::inflate::decompress_to_vec_with_limit(DOCUMENT, DOCUMENT_BYTES_MAX)
        .map_err(|error| Problem::internal(format!("the description: {error}")))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], document).into_response())
}
