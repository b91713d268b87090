//! Errors as the API shows them: RFC 9457 documents with a stable `code` and a `hint` that says
//! what to do next. The handlers make them, the client reads them.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use model::id::IdError;

use api_types::ProblemBody;
use store::StoreError;

#[derive(Debug)]
pub struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: String,
    hint: Option<String>,
}

impl Problem {
    pub fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Problem {
        Problem { status, code, detail: detail.into(), hint: None }
    }

    pub fn invalid(code: &'static str, detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail)
    }

    pub fn conflict(code: &'static str, detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::CONFLICT, code, detail)
    }

    pub fn missing(code: &'static str, detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, code, detail)
    }

    pub fn internal(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail)
            .hint("see the node's own log for what happened before")
    }

    pub fn detail(&self) -> &str {
        &self.detail
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Problem {
        self.hint = Some(hint.into());
        self
    }

    pub fn is_unauthorized(&self) -> bool {
        self.status == StatusCode::UNAUTHORIZED
    }

    pub fn body(&self) -> ProblemBody {
        ProblemBody {
            status: self.status.as_u16(),
            kind: format!("urn:cortex:problem:{}", self.code),
            code: self.code.into(),
            title: self.status.canonical_reason().unwrap_or_default().into(),
            detail: self.detail.clone(),
            hint: self.hint.clone(),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        if self.status.is_server_error() {
            tracing::warn!(code = self.code, detail = self.detail, "api.failed");
        }
        let body = serde_json::to_vec(&self.body()).unwrap_or_default();
        (self.status, [(header::CONTENT_TYPE, "application/problem+json")], body).into_response()
    }
}

impl From<IdError> for Problem {
    fn from(error: IdError) -> Problem {
        Problem::invalid("invalid_name", error.to_string())
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Problem {
        match &error {
            StoreError::Io { what, source } => storage(what, source),
            StoreError::Stopped(_) => {
                Problem::new(StatusCode::SERVICE_UNAVAILABLE, "store_stopped", error.to_string())
            }
            StoreError::Refused(_) => {
                Problem::new(StatusCode::SERVICE_UNAVAILABLE, "store_refused", error.to_string())
            }
            StoreError::Unavailable(_) => {
                let status = StatusCode::SERVICE_UNAVAILABLE;
                Problem::new(status, "store_unavailable", error.to_string())
            }
            StoreError::Unsupported(_) => {
                let status = StatusCode::NOT_IMPLEMENTED;
                Problem::new(status, "store_unsupported", error.to_string())
            }
            StoreError::Away(_) => {
                Problem::new(StatusCode::SERVICE_UNAVAILABLE, "value_away", error.to_string())
            }
            StoreError::Missing(_) => Problem::missing("no_value", error.to_string()),
            StoreError::TooLarge { .. } => {
                Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", error.to_string())
            }
        }
    }
}

/// Returns the problem of a failed access to the disk: a full disk is the user's to mend, anything
/// else needs the log.
pub fn storage(what: &str, source: &std::io::Error) -> Problem {
    let full = matches!(
        source.kind(),
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded
    );
    if full {
        return Problem::new(
            StatusCode::INSUFFICIENT_STORAGE,
            "disk_full",
            format!("the disk is full: {what}"),
        )
        .hint(
            "free some space (`cortex doctor` shows how much is left), then try again; nothing \
               was changed",
        );
    }
    Problem::internal(format!("{what}: {source}"))
}
