//! The format of records: JSON objects with a version `v`, and fields of newer versions kept.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;

/// The version of the format that this build writes.
pub const RECORD_VERSION: u32 = 1;

/// The fields that this build does not know, which are written back unchanged.
pub type Unknown = BTreeMap<String, Value>;

#[derive(Debug, Error)]
#[error("a stored record cannot be read: {0}")]
pub struct RecordError(#[from] serde_json::Error);

pub fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    serde_json::to_vec(record).expect("records have string keys and no failing serializers")
}

/// Decodes a record. Values in the store are hostile input: this never panics.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, RecordError> {
    Ok(serde_json::from_slice(bytes)?)
}
