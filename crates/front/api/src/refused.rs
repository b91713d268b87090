//! Requests that are refused before a handler is asked, such as one for a path that is not there or
//! with a method that the path does not have, a query that lacks a field, or a body that is too
//! long: their answers are problems like all others.

use axum::Router;
use axum::body::to_bytes;
use axum::extract::Request;
use axum::http::{Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::problem::Problem;

/// Bytes read of what was said about a refusal, which is one sentence.
const SAID_BYTES_MAX: usize = 4096;

/// The hint where another version of Cortex may have what this one has not.
const OTHER_VERSION: &str = "client and node may be of different versions: compare `cortex \
                             --version` with `cortex status`";

/// Refuses what none of these routes takes.
pub fn what_is_left<S: Clone + Send + Sync + 'static>(routes: Router<S>) -> Router<S> {
    routes.fallback(unknown_path).method_not_allowed_fallback(wrong_method)
}

async fn unknown_path(uri: Uri) -> Problem {
    Problem::missing("no_such_path", format!("the API has no '{}'", uri.path())).hint(OTHER_VERSION)
}

/// Refuses a method; which ones the path has is added as `Allow` by the routes themselves.
async fn wrong_method(method: Method, uri: Uri) -> Problem {
    let detail = format!("the API has no {method} for '{}'", uri.path());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "wrong_method", detail).hint(OTHER_VERSION)
}

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
    let (parts, body) = response.into_parts();
    let said = to_bytes(body, SAID_BYTES_MAX).await.unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let problem = match status {
        StatusCode::PAYLOAD_TOO_LARGE => Problem::new(status, "too_large", said)
            .hint("only what is pushed, stored or imported may be longer than 2 MiB"),
        _ => Problem::new(status, "invalid_request", said)
            .hint("docs/api.md says what each request takes"),
    };
    let mut problem = problem.into_response();
    for (name, value) in &parts.headers {
        let is_of_the_body = matches!(*name, header::CONTENT_TYPE | header::CONTENT_LENGTH);
        if !is_of_the_body {
            problem.headers_mut().append(name, value.clone());
        }
    }
    problem
}
