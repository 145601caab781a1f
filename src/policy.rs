//! How a run is treated: its window, its attempts, its delays.
//!
//! A [`Policy`] is complete; it is the `[policy]` section of the configuration, for runs that do not state their own. A
//! [`PolicyOverrides`] is what one run states, on the command line or in the header that is sent to SQL. Both have the
//! same names and the same ranges. In JSON, durations are whole milliseconds under names that end in `_ms`.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::keys::{Raw, Rule, hours, human, mins, secs, section};

section! {
    /// Defaults for runs that do not state their own.
    pub struct Policy {
        /// The most chunks of one shard that may be handed out and not yet finished.
        window: u32 = 1_000, count(1..=1_000_000);
        /// Chunks that one chunk-ready event announces; more than one where chunks are small, to share the cost of a
        /// message.
        chunks_per_event: u32 = 1, count(1..=1_000);
        /// How often a chunk is tried before a retryable failure is final.
        max_attempts: u32 = 3, count(1..=1_000);
        /// How often a chunk is taken back from a worker whose lease expired; one more fails it.
        recovery_limit: u32 = 5, count(0..=1_000);
        /// How often workers may give a chunk back without an attempt being charged.
        release_limit: u32 = 100, count(0..=100_000);
        /// The pause before a failed chunk is tried again; it doubles, jittered, from attempt to attempt.
        #[serde(with = "humantime_serde")]
        retry_delay: Duration = secs(5), span(ms(0)..=hours(24));
        /// The longest pause before a failed chunk is tried again.
        #[serde(with = "humantime_serde")]
        retry_delay_max: Duration = mins(10), span(ms(0)..=days(7));
        /// The longest lease that a worker gets at once; it may renew it.
        #[serde(with = "humantime_serde")]
        lease_ttl_max: Duration = mins(5), span(ms(100)..=hours(24));
        /// How long one attempt may take in all; leases are not renewed past it.
        #[serde(with = "humantime_serde")]
        max_chunk_time: Duration = hours(1), span(ms(100)..=days(30));
        /// An event that was published this long ago, and whose chunk was not leased since, is published again.
        #[serde(with = "humantime_serde")]
        redelivery_after: Duration = mins(5), span(ms(100)..=hours(24));
        /// The longest such time; it doubles with each redelivery.
        #[serde(with = "humantime_serde")]
        redelivery_after_max: Duration = hours(1), span(ms(100)..=days(7));
    }
}

/// What one run states about its own treatment; what it leaves out comes from the configuration.
///
/// As JSON: only what is stated, durations as `…_ms`. As flags: `--retry-delay 10s`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
#[serde(deny_unknown_fields)]
#[command(next_help_heading = "Policy of the run")]
pub struct PolicyOverrides {
    /// The most chunks of one shard that may be handed out and not yet finished.
    #[arg(long, value_name = "CHUNKS")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u32>,
    /// Chunks that one event announces; more than one where chunks are small.
    #[arg(long, value_name = "CHUNKS")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunks_per_event: Option<u32>,
    /// How often a chunk is tried before a retryable failure is final.
    #[arg(long, value_name = "TIMES")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// How often a chunk is taken back from a worker whose lease expired; one more fails it.
    #[arg(long, value_name = "TIMES")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery_limit: Option<u32>,
    /// How often workers may give a chunk back without an attempt being charged.
    #[arg(long, value_name = "TIMES")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release_limit: Option<u32>,
    /// The pause before a failed chunk is tried again (such as 10s); it doubles from attempt to attempt.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    #[serde(rename = "retry_delay_ms", with = "millis", default, skip_serializing_if = "Option::is_none")]
    pub retry_delay: Option<Duration>,
    /// The longest pause before a failed chunk is tried again.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    #[serde(rename = "retry_delay_max_ms", with = "millis", default, skip_serializing_if = "Option::is_none")]
    pub retry_delay_max: Option<Duration>,
    /// The longest lease that a worker gets at once; it may renew it.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    #[serde(rename = "lease_ttl_max_ms", with = "millis", default, skip_serializing_if = "Option::is_none")]
    pub lease_ttl_max: Option<Duration>,
    /// How long one attempt may take in all; leases are not renewed past it.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    #[serde(rename = "max_chunk_time_ms", with = "millis", default, skip_serializing_if = "Option::is_none")]
    pub max_chunk_time: Option<Duration>,
    /// An event that was published this long ago, and whose chunk was not leased since, is published again.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    #[serde(rename = "redelivery_after_ms", with = "millis", default, skip_serializing_if = "Option::is_none")]
    pub redelivery_after: Option<Duration>,
    /// The longest such time; it doubles with each redelivery.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    #[serde(rename = "redelivery_after_max_ms", with = "millis", default, skip_serializing_if = "Option::is_none")]
    pub redelivery_after_max: Option<Duration>,
}

/// A policy that is not allowed; one line for each reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct PolicyError {
    /// The reasons, each with its key.
    pub reasons: Vec<String>,
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reasons.join("\n"))
    }
}

impl Policy {
    /// This policy with what a run states for itself.
    #[must_use]
    pub fn merged_with(&self, run: &PolicyOverrides) -> Self {
        Self {
            window: run.window.unwrap_or(self.window),
            chunks_per_event: run.chunks_per_event.unwrap_or(self.chunks_per_event),
            max_attempts: run.max_attempts.unwrap_or(self.max_attempts),
            recovery_limit: run.recovery_limit.unwrap_or(self.recovery_limit),
            release_limit: run.release_limit.unwrap_or(self.release_limit),
            retry_delay: run.retry_delay.unwrap_or(self.retry_delay),
            retry_delay_max: run.retry_delay_max.unwrap_or(self.retry_delay_max),
            lease_ttl_max: run.lease_ttl_max.unwrap_or(self.lease_ttl_max),
            max_chunk_time: run.max_chunk_time.unwrap_or(self.max_chunk_time),
            redelivery_after: run.redelivery_after.unwrap_or(self.redelivery_after),
            redelivery_after_max: run.redelivery_after_max.unwrap_or(self.redelivery_after_max),
        }
    }

    /// The complete policy as JSON, durations as `…_ms`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        PolicyOverrides::from(self).to_json()
    }

    /// Checks every range, and how the settings go together.
    ///
    /// # Errors
    /// All that is wrong.
    pub fn validate(&self) -> Result<(), PolicyError> {
        // Values that serialise to numbers and texts only: this cannot fail.
        let values = serde_json::to_value(self).unwrap_or_default();
        let check = |key: &crate::config::keys::Key| {
            let value = &values[key.name];
            let raw = match value.as_str() {
                Some(text) => Raw::Text(text.to_owned()),
                None => Raw::Untyped(value.to_string()),
            };
            key.rule.check(key.name, &raw).err().map(|fault| fault.to_string())
        };
        let mut reasons: Vec<String> = Self::section("policy").keys.iter().filter_map(check).collect();
        reasons.extend(self.conflicts().into_iter().map(|(key, _, why)| format!("{key}: {why}")));
        if reasons.is_empty() { Ok(()) } else { Err(PolicyError { reasons }) }
    }

    /// Settings that do not go together: one key, the other, and why.
    pub(crate) fn conflicts(&self) -> Vec<(&'static str, &'static str, String)> {
        [
            ("retry_delay", self.retry_delay, "retry_delay_max", self.retry_delay_max),
            ("redelivery_after", self.redelivery_after, "redelivery_after_max", self.redelivery_after_max),
        ]
        .into_iter()
        .filter(|(_, first, _, most)| first > most)
        .map(|(key, first, cap, most)| (key, cap, format!("{} is above {cap} ({})", human(first), human(most))))
        .collect()
    }
}

impl PolicyOverrides {
    /// What is stated, as JSON, durations as `…_ms`: the `policy` of a run's header.
    #[must_use]
    pub fn to_json(&self) -> Value {
        // Numbers under fixed names: this cannot fail.
        serde_json::to_value(self).unwrap_or_default()
    }

    /// Checks the range of what is stated. Whether it goes together with the rest is known after
    /// [`Policy::merged_with`].
    ///
    /// # Errors
    /// All that is out of range.
    pub fn validate(&self) -> Result<(), PolicyError> {
        // Caps as high as they go, so that only the ranges speak.
        let ample = |key| {
            Policy::section("policy").keys.into_iter().find(|known| known.name == key).map_or(Duration::ZERO, |known| {
                if let Rule::Span(range) = known.rule { *range.end() } else { Duration::ZERO }
            })
        };
        let mut merged = Policy::default().merged_with(self);
        merged.retry_delay_max = self.retry_delay_max.unwrap_or_else(|| ample("retry_delay_max"));
        merged.redelivery_after_max = self.redelivery_after_max.unwrap_or_else(|| ample("redelivery_after_max"));
        merged.validate()
    }
}

impl From<&Policy> for PolicyOverrides {
    fn from(policy: &Policy) -> Self {
        Self {
            window: Some(policy.window),
            chunks_per_event: Some(policy.chunks_per_event),
            max_attempts: Some(policy.max_attempts),
            recovery_limit: Some(policy.recovery_limit),
            release_limit: Some(policy.release_limit),
            retry_delay: Some(policy.retry_delay),
            retry_delay_max: Some(policy.retry_delay_max),
            lease_ttl_max: Some(policy.lease_ttl_max),
            max_chunk_time: Some(policy.max_chunk_time),
            redelivery_after: Some(policy.redelivery_after),
            redelivery_after_max: Some(policy.redelivery_after_max),
        }
    }
}

/// Durations as whole milliseconds.
mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(duration) => serializer.serialize_u64(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(deserializer)?.map(Duration::from_millis))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        policy: PolicyOverrides,
    }

    fn flags(flags: &[&str]) -> PolicyOverrides {
        Command::try_parse_from(std::iter::once(&"test").chain(flags)).unwrap().policy
    }

    const ALL_FLAGS: &[&str] = &[
        "--window=1",
        "--chunks-per-event=2",
        "--max-attempts=3",
        "--recovery-limit=4",
        "--release-limit=5",
        "--retry-delay=6s",
        "--retry-delay-max=7s",
        "--lease-ttl-max=8s",
        "--max-chunk-time=9s",
        "--redelivery-after=10s",
        "--redelivery-after-max=1m 1s",
    ];

    #[test]
    fn every_setting_has_a_flag_and_a_name_in_json() {
        let stated = flags(ALL_FLAGS);
        let expected = json!({
            "window": 1, "chunks_per_event": 2, "max_attempts": 3, "recovery_limit": 4, "release_limit": 5,
            "retry_delay_ms": 6000, "retry_delay_max_ms": 7000, "lease_ttl_max_ms": 8000, "max_chunk_time_ms": 9000,
            "redelivery_after_ms": 10_000, "redelivery_after_max_ms": 61_000,
        });
        assert_eq!(stated.to_json(), expected);
        assert_eq!(serde_json::from_value::<PolicyOverrides>(expected.clone()).unwrap(), stated);
        let merged = Policy::default().merged_with(&stated);
        assert_eq!(merged.to_json(), expected);
        assert_eq!(expected.as_object().unwrap().len(), Policy::section("policy").keys.len());
    }

    #[test]
    fn what_is_not_stated_is_left_out_and_comes_from_the_configuration() {
        assert_eq!(flags(&[]).to_json(), json!({}));
        let stated = flags(&["--retry-delay", "10s"]);
        assert_eq!(stated.to_json(), json!({ "retry_delay_ms": 10_000 }));
        let merged = Policy::default().merged_with(&stated);
        assert_eq!(merged, Policy { retry_delay: secs(10), ..Policy::default() });
        assert!(serde_json::from_value::<PolicyOverrides>(json!({ "retry_delay": 1 })).is_err());
    }

    #[test]
    fn the_default_is_valid() {
        assert_eq!(Policy::default().validate(), Ok(()));
        assert_eq!(PolicyOverrides::from(&Policy::default()).validate(), Ok(()));
    }

    #[test]
    fn all_that_is_out_of_range_is_named() {
        let stated = flags(&["--window=0", "--max-attempts=1001", "--lease-ttl-max=1ms", "--recovery-limit=0"]);
        assert_eq!(
            stated.validate().unwrap_err().to_string(),
            "window = 0: out of range; allowed: 1 to 1000000\n\
             max_attempts = 1001: out of range; allowed: 1 to 1000\n\
             lease_ttl_max = 1ms: out of range; allowed: 100ms to 1day"
        );
    }

    #[test]
    fn a_delay_above_its_cap_is_refused_once_both_are_known() {
        let stated = flags(&["--retry-delay=20m"]);
        assert_eq!(stated.validate(), Ok(()));
        let merged = Policy::default().merged_with(&stated);
        assert_eq!(merged.validate().unwrap_err().to_string(), "retry_delay: 20m is above retry_delay_max (10m)");
        let both = flags(&["--redelivery-after=2m", "--redelivery-after-max=1m"]);
        assert_eq!(both.validate().unwrap_err().to_string(), "redelivery_after: 2m is above redelivery_after_max (1m)");
    }

    #[test]
    fn flags_that_are_no_durations_are_refused() {
        assert!(Command::try_parse_from(["test", "--retry-delay=5"]).is_err());
    }
}
