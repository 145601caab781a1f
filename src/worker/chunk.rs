//! What a handler gets, and what it answers.
//!
//! Promises that a payload is the text that was submitted, byte for byte, and that an [`Outcome`] is valid JSON and is stored
//! byte for byte. Knows neither leases nor messages.

use std::error::Error;
use std::fmt;
use std::future::Future;

use runherd_actors::model::ChunkKey;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

/// Works on chunks. One value serves all of a worker's chunks, several at a time.
///
/// A chunk may be handed out again after its worker died, so the same chunk may be handled twice; its outcome is stored once.
/// A panic counts as a retryable failure.
pub trait Handler: Send + Sync + 'static {
    /// Works on one chunk. Implement it as `async fn handle(&self, chunk: Chunk) -> Result<Outcome, ChunkError>`.
    ///
    /// Once [`Chunk::cancelled`] fires, it has a few seconds to end by itself; then its future is dropped.
    fn handle(&self, chunk: Chunk) -> impl Future<Output = Result<Outcome, ChunkError>> + Send;
}

/// One chunk, leased for this attempt.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Chunk {
    /// Which chunk.
    pub key: ChunkKey,
    /// Its payload, JSON as it was submitted.
    pub payload: Box<RawValue>,
    /// The number of this attempt, from 1. Releases and recoveries do not count as attempts.
    pub attempt: i32,
    /// How many times the chunk was handed out anew.
    pub generation: i32,
    /// Fires when the work is of no use any more: the lease is lost, the run takes no more work, the attempt has taken too
    /// long, or the worker drains and its grace is over.
    pub cancelled: CancellationToken,
}

impl Chunk {
    /// The payload as a type of yours.
    ///
    /// # Errors
    /// The payload is something else. That never mends itself: a failure for good.
    pub fn payload_as<T: DeserializeOwned>(&self) -> Result<T, ChunkError> {
        serde_json::from_str(self.payload.get())
            .map_err(|error| ChunkError::fatal(format!("the payload is not what this worker expects: {error}")))
    }
}

/// What a chunk came to: a JSON value.
#[derive(Clone, Debug)]
pub struct Outcome(Box<RawValue>);

impl Outcome {
    /// JSON `null`, for work whose result is elsewhere.
    #[must_use]
    pub fn null() -> Self {
        Self(RawValue::NULL.to_owned())
    }

    /// JSON text, kept as it is (without the white space around it).
    ///
    /// # Errors
    /// It is not JSON.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str::<&RawValue>(text).map(|value| Self(value.to_owned()))
    }

    /// A value as JSON.
    ///
    /// # Errors
    /// It cannot be written as JSON: a map whose keys are no strings, or an error of its own.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self, serde_json::Error> {
        serde_json::value::to_raw_value(value).map(Self)
    }

    /// The JSON text.
    #[must_use]
    pub fn json(&self) -> &str {
        self.0.get()
    }
}

impl Default for Outcome {
    fn default() -> Self {
        Self::null()
    }
}

/// Why an attempt at a chunk failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkError {
    /// What went wrong, for people. It is stored with the chunk; the database keeps 16 KiB of it.
    pub error: String,
    /// Whether another attempt may mend it. If not, the chunk fails now, whatever attempts remain.
    pub retryable: bool,
}

impl ChunkError {
    /// A failure that another attempt may mend.
    pub fn retryable(error: impl Into<String>) -> Self {
        Self { error: error.into(), retryable: true }
    }

    /// A failure for good.
    pub fn fatal(error: impl Into<String>) -> Self {
        Self { error: error.into(), retryable: false }
    }
}

impl fmt::Display for ChunkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.error)
    }
}

/// Errors of other kinds are retryable, with their causes, so that `?` works in handlers.
impl<E: Error> From<E> for ChunkError {
    fn from(error: E) -> Self {
        Self::retryable(crate::telemetry::error_chain(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_is_kept_byte_for_byte() {
        for text in ["{\"b\" : 1.50,\"a\":1e400}", "\"\\u00e4\"", "12345678901234567890123", "null"] {
            assert_eq!(Outcome::from_json(&format!(" {text}\n")).unwrap().json(), text);
        }
        assert!(Outcome::from_json("{} {}").is_err());
        assert_eq!(Outcome::of("a\"b").unwrap().json(), r#""a\"b""#);
    }

    #[test]
    fn other_errors_are_retryable() {
        fn fails() -> Result<(), ChunkError> {
            Err(std::fmt::Error)?;
            Ok(())
        }
        assert!(fails().unwrap_err().retryable);
    }
}
