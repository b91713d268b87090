//! Bodies of requests that are JSON, whatever their `Content-Type` says: commands and scripts may
//! leave it out. A handler that takes one says in its signature what it understands, and the API's
//! description is made from that.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;

use super::problem::Problem;

/// A body that has to be there.
pub struct JsonBody<T>(pub T);

/// A body that may be left out, which leaves everything as it is by default.
pub struct OptionalJson<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<JsonBody<T>, Response> {
        let bytes = read(request, state).await?;
        parse(&bytes).map(JsonBody).map_err(Problem::into_response)
    }
}

impl<T: DeserializeOwned + Default, S: Send + Sync> FromRequest<S> for OptionalJson<T> {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<OptionalJson<T>, Response> {
        let bytes = read(request, state).await?;
        let parsed = if bytes.is_empty() { Ok(T::default()) } else { parse(&bytes) };
        parsed.map(OptionalJson).map_err(Problem::into_response)
    }
}

async fn read<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes, Response> {
    Bytes::from_request(request, state).await.map_err(IntoResponse::into_response)
}

/// Parses a request's JSON; the caller is told what is wrong with it.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(bytes).map_err(|error| {
        let detail = format!("the request's JSON is not understood: {error}");
        Problem::invalid("invalid_request", detail)
    })
}
