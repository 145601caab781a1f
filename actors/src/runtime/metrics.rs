//! What is measured of a mailbox: depth, waiting time, handling time, and what was handled, rejected or lost.
//!
//! Recording costs a few nanoseconds and never blocks. A histogram is log-linear: sixteen steps for each power of two, so a
//! quantile is at most 1/16 too high. It never answers too low.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

const STEP_BITS: u32 = 4;
const STEPS: u64 = 1 << STEP_BITS;
const BUCKETS: usize = ((64 - STEP_BITS as usize) + 1) << STEP_BITS;

fn bucket(value: u64) -> usize {
    if value < STEPS {
        return value as usize;
    }
    let shift = value.ilog2() - STEP_BITS;
    ((shift as usize + 1) << STEP_BITS) + ((value >> shift) - STEPS) as usize
}

/// The largest value that falls into the bucket.
fn bucket_end(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < STEPS {
        return bucket;
    }
    let shift = (bucket >> STEP_BITS) - 1;
    let first = ((bucket & (STEPS - 1)) + STEPS) << shift;
    first + ((1u64 << shift) - 1)
}

/// Durations, counted in log-linear buckets.
pub struct Histogram {
    buckets: Box<[AtomicU64]>,
    max: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(), max: AtomicU64::new(0) }
    }
}

impl std::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Histogram").field(&self.summary()).finish()
    }
}

/// What a histogram holds, in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Summary {
    /// How many were recorded.
    pub count: u64,
    /// Half of them took at most this long.
    pub p50_us: u64,
    /// All but one in a hundred took at most this long.
    pub p99_us: u64,
    /// The longest.
    pub max_us: u64,
}

impl Histogram {
    /// Counts one duration.
    pub fn record(&self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket(nanos)].fetch_add(1, Ordering::Relaxed);
        self.max.fetch_max(nanos, Ordering::Relaxed);
    }

    /// The quantiles of all that was recorded.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let counts: Vec<u64> = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        let count: u64 = counts.iter().sum();
        let max = self.max.load(Ordering::Relaxed);
        let quantile = |percent: u64| {
            let rank = (count * percent).div_ceil(100).max(1);
            let mut seen = 0;
            let holds_rank = |n: &u64| {
                seen += n;
                seen >= rank
            };
            counts.iter().position(holds_rank).map_or(0, |bucket| bucket_end(bucket).min(max)) / 1000
        };
        Summary { count, p50_us: quantile(50), p99_us: quantile(99), max_us: max / 1000 }
    }
}

/// The counters of one actor's mailbox. They outlive the actor: a restart goes on counting.
#[derive(Debug)]
pub struct MailboxMetrics {
    name: String,
    capacity: u64,
    pub(super) depth: AtomicU64,
    pub(super) max_depth: AtomicU64,
    pub(super) handled: AtomicU64,
    pub(super) rejected: AtomicU64,
    pub(super) dead_letters: AtomicU64,
    pub(super) wait: Histogram,
    pub(super) handling: Histogram,
}

/// One mailbox, as seen at one moment.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct MailboxStatus {
    /// The actor's name.
    pub actor: String,
    /// The most messages that may wait, commands not counted.
    pub capacity: u64,
    /// How many wait now, commands included.
    pub depth: u64,
    /// The most that ever waited.
    pub max_depth: u64,
    /// Messages that were handled.
    pub handled: u64,
    /// Messages that were refused because the mailbox was full.
    pub rejected: u64,
    /// Messages that were lost with an actor that died or had stopped.
    pub dead_letters: u64,
    /// Time between sending and handling.
    pub wait: Summary,
    /// Time spent in the handler.
    pub handling: Summary,
}

impl MailboxMetrics {
    /// New counters for the actor `name`, whose mailbox holds `capacity` messages (at least one).
    #[must_use]
    pub fn new(name: impl Into<String>, capacity: usize) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            capacity: capacity.max(1) as u64,
            depth: AtomicU64::new(0),
            max_depth: AtomicU64::new(0),
            handled: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            dead_letters: AtomicU64::new(0),
            wait: Histogram::default(),
            handling: Histogram::default(),
        })
    }

    /// The actor's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The most messages that may wait.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// All of it at this moment.
    #[must_use]
    pub fn status(&self) -> MailboxStatus {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        MailboxStatus {
            actor: self.name.clone(),
            capacity: self.capacity,
            depth: load(&self.depth),
            max_depth: load(&self.max_depth),
            handled: load(&self.handled),
            rejected: load(&self.rejected),
            dead_letters: load(&self.dead_letters),
            wait: self.wait.summary(),
            handling: self.handling.summary(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_meet_without_gaps() {
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert_eq!(bucket_end(BUCKETS - 1), u64::MAX);
        for b in 0..BUCKETS - 1 {
            assert_eq!(bucket(bucket_end(b)), b);
            assert_eq!(bucket(bucket_end(b) + 1), b + 1);
        }
    }

    #[test]
    fn quantiles_are_close_and_never_too_low() {
        let histogram = Histogram::default();
        assert_eq!(histogram.summary(), Summary::default());
        for micros in 1..=1000 {
            histogram.record(Duration::from_micros(micros));
        }
        let summary = histogram.summary();
        assert_eq!((summary.count, summary.max_us), (1000, 1000));
        assert!((500..=532).contains(&summary.p50_us), "{summary:?}");
        assert!((990..=1000).contains(&summary.p99_us), "{summary:?}");
    }
}
