//! What a run is, beside its chunks: checked here, before anything is begun, and sent as `begin_run` documents it.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::SubmitError;
use crate::policy::PolicyOverrides;

/// The most shards of one run.
pub const SHARDS_MAX: u32 = 4096;
/// The highest priority; the lowest is its negative.
pub const PRIORITY_MAX: i32 = 1000;
/// The longest queue name, in bytes.
const QUEUE_BYTES_MAX: usize = 200;
/// The longest idempotency key, in bytes.
const KEY_BYTES_MAX: usize = 255;
/// Ten years: longer is a mistake in the unit.
const DEADLINE_MAX: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

/// What a run is, beside its chunks. What is left out is the server's default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The queue whose workers do it.
    pub queue: String,
    /// A name for people.
    pub name: Option<String>,
    /// How many shards it is cut into; the server's default is 8.
    pub shards: Option<u32>,
    /// Higher goes first, from -1000 to 1000.
    pub priority: Option<i32>,
    /// The most failed chunks with which it still succeeds; one more stops it. Left out, it goes on to its end, and any failed
    /// chunk makes it fail then.
    pub tolerated_failures: Option<u64>,
    /// How long after its beginning it fails if it has not ended.
    pub deadline: Option<Duration>,
    /// How it wants to be treated.
    pub policy: PolicyOverrides,
}

impl Header {
    /// A run for this queue, everything else by default.
    #[must_use]
    pub fn new(queue: impl Into<String>) -> Self {
        Self { queue: queue.into(), ..Self::default() }
    }

    /// The header that `begin_run` takes: only what is stated, so that the same command always gives the same header.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut header = Map::new();
        let mut put = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                header.insert(key.to_owned(), value);
            }
        };
        put("queue", Some(json!(self.queue)));
        put("name", self.name.as_ref().map(|name| json!(name)));
        put("shards", self.shards.map(|shards| json!(shards)));
        put("priority", self.priority.map(|priority| json!(priority)));
        put("tolerated_failures", self.tolerated_failures.map(|failures| json!(failures)));
        put(
            "deadline_ms",
            self.deadline.map(|deadline| json!(u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX))),
        );
        put(
            "policy",
            Some(self.policy.to_json()).filter(|policy| policy.as_object().is_some_and(|map| !map.is_empty())),
        );
        Value::Object(header)
    }

    /// Checks everything that the server would refuse, in words that name what was given.
    ///
    /// # Errors
    /// [`SubmitError::Request`].
    pub fn validate(&self) -> Result<(), SubmitError> {
        check_queue(&self.queue)?;
        if let Some(shards) = self.shards
            && !(1..=SHARDS_MAX).contains(&shards)
        {
            return refuse(format!("shards must be from 1 to {SHARDS_MAX}, not {shards}"));
        }
        if let Some(priority) = self.priority
            && !(-PRIORITY_MAX..=PRIORITY_MAX).contains(&priority)
        {
            return refuse(format!("priority must be from -{PRIORITY_MAX} to {PRIORITY_MAX}, not {priority}"));
        }
        if self.name.as_ref().is_some_and(|name| name.contains('\0')) {
            return refuse("a name cannot hold the character NUL".to_owned());
        }
        if self.tolerated_failures.is_some_and(|failures| i64::try_from(failures).is_err()) {
            return refuse(format!("tolerated failures must be at most {}", i64::MAX));
        }
        if let Some(deadline) = self.deadline
            && !(Duration::from_millis(1)..=DEADLINE_MAX).contains(&deadline)
        {
            let given = humantime::format_duration(deadline);
            return refuse(format!("a deadline must be from 1ms to ten years after the beginning, not {given}"));
        }
        self.policy.validate().or_else(|error| refuse(format!("policy: {error}")))
    }
}

/// Checks an idempotency key.
pub(super) fn check_key(key: &str) -> Result<(), SubmitError> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX || key.contains('\0') {
        let length = key.len();
        return refuse(format!("an idempotency key has 1 to {KEY_BYTES_MAX} bytes and no NUL; this one has {length}"));
    }
    Ok(())
}

fn check_queue(queue: &str) -> Result<(), SubmitError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if queue.is_empty() || queue.len() > QUEUE_BYTES_MAX || !queue.bytes().all(allowed) {
        return refuse(format!("queue {queue:?} must be 1 to {QUEUE_BYTES_MAX} of the characters A-Z a-z 0-9 . _ -"));
    }
    Ok(())
}

fn refuse(what: String) -> Result<(), SubmitError> {
    Err(SubmitError::Request(what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_stated_is_sent() {
        assert_eq!(Header::new("q").to_json(), json!({ "queue": "q" }));
        let header = Header {
            queue: "render".to_owned(),
            name: Some("film".to_owned()),
            shards: Some(16),
            priority: Some(-3),
            tolerated_failures: Some(0),
            deadline: Some(Duration::from_secs(3600)),
            policy: PolicyOverrides { window: Some(7), ..PolicyOverrides::default() },
        };
        assert_eq!(
            header.to_json(),
            json!({ "queue": "render", "name": "film", "shards": 16, "priority": -3, "tolerated_failures": 0,
                "deadline_ms": 3_600_000, "policy": { "window": 7 } })
        );
        header.validate().unwrap();
    }

    #[test]
    fn what_the_server_would_refuse_is_refused_here() {
        let good = Header::new("q");
        let cases = [
            (Header::new(""), "queue \"\""),
            (Header::new("a b"), "queue \"a b\""),
            (Header::new("é"), "queue"),
            (Header::new("q".repeat(201)), "queue"),
            (Header { shards: Some(0), ..good.clone() }, "shards must be from 1 to 4096, not 0"),
            (Header { shards: Some(4097), ..good.clone() }, "shards must be from 1 to 4096, not 4097"),
            (Header { priority: Some(1001), ..good.clone() }, "priority must be from -1000 to 1000, not 1001"),
            (Header { deadline: Some(Duration::ZERO), ..good.clone() }, "deadline"),
            (Header { tolerated_failures: Some(u64::MAX), ..good.clone() }, "tolerated failures"),
            (
                Header { policy: PolicyOverrides { window: Some(0), ..PolicyOverrides::default() }, ..good },
                "policy: window = 0",
            ),
        ];
        for (header, expected) in cases {
            let error = header.validate().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        assert!(check_key("").is_err());
        assert!(check_key(&"k".repeat(256)).is_err());
        check_key(&"k".repeat(255)).unwrap();
        Header::new("q".repeat(200)).validate().unwrap();
    }
}
