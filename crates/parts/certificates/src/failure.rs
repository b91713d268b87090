//! Errors of the client of the protocol as problems: the authority's own words where it said any.

use acme_core::{Problem, kind};
use instant_acme::Error;

use crate::authority::RequestError;

/// Subproblems whose words are kept; an order has one name.
const SUBPROBLEMS_MAX: usize = 4;

pub fn problem(error: &Error) -> Problem {
    match error {
        Error::Api(api) => of_api(api),
        Error::Timeout(_) => Problem::new(kind::TIMEOUT, "the authority takes too long"),
        Error::Other(other) => match other.downcast_ref::<RequestError>() {
            Some(RequestError::Unreached { .. }) => {
                Problem::new(kind::UNREACHABLE, &other.to_string())
            }
            _ => Problem::new(kind::TIMEOUT, &other.to_string()),
        },
        other => Problem::new(kind::TIMEOUT, &format!("its answer is odd: {other}")),
    }
}

pub fn of_api(api: &instant_acme::Problem) -> Problem {
    let mut kind = api.r#type.clone().unwrap_or_else(|| "serverInternal".into());
    let mut words: Vec<String> = api.detail.iter().cloned().collect();
    for one in api.subproblems.iter().take(SUBPROBLEMS_MAX) {
        // What is wrong with the name says more than that something is.
        kind = one.r#type.clone().unwrap_or(kind);
        words.extend(one.detail.clone());
    }
    Problem::new(&kind, &words.join(": "))
}
