//! Requests that are refused before a handler is asked, such as a query that lacks a field or a
//! body that is too long: their answers become problems like all others.

use axum::body::to_bytes;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::problem::Problem;

/// Bytes read of what was said about a refusal, which is one sentence.
const SAID_BYTES_MAX: usize = 4096;

pub async fn as_problem(request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    let status = response.status();
    let is_problem = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/problem+json"));
    if !status.is_client_error() || is_problem {
        return response;
    }
    let said = to_bytes(response.into_body(), SAID_BYTES_MAX).await.unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let problem = match status {
        StatusCode::PAYLOAD_TOO_LARGE => Problem::new(status, "too_large", said)
            .hint("only what is pushed, stored or imported may be longer than 2 MiB"),
        _ => Problem::new(status, "invalid_request", said)
            .hint("docs/api.md says what each request takes"),
    };
    problem.into_response()
}
