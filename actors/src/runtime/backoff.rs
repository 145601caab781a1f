//! How long to wait, how often is too often, and when to say so again.
//!
//! Nothing here reads a clock: callers pass the time, so that virtual time works.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// Longer delays are cut to this one, so that adding one to a time cannot overflow: a year.
pub(crate) const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// Delays that double from `min` to `max`, each shortened at random by up to half, so that those who failed together do not
/// come back together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The first delay, before jitter.
    pub min: Duration,
    /// No delay is longer.
    pub max: Duration,
}

impl Backoff {
    /// The delay after `earlier` attempts failed before this one.
    #[must_use]
    pub fn delay(&self, earlier: u32) -> Duration {
        let doubled = 2u32.checked_pow(earlier).and_then(|factor| self.min.checked_mul(factor));
        let full = doubled.map_or(self.max, |delay| delay.min(self.max));
        full.min(FOREVER).mul_f64(1.0 - rand::random::<f64>() / 2.0)
    }
}

/// How many restarts within a window are still taken as bad luck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intensity {
    /// One more than this within the window escalates.
    pub count: u32,
    /// The window slides.
    pub window: Duration,
}

/// The deaths inside a sliding window.
#[derive(Debug, Default)]
pub(crate) struct Deaths(VecDeque<Instant>);

impl Deaths {
    /// Records a death at `now`; true if there were more than the intensity allows.
    pub(crate) fn record(&mut self, now: Instant, limit: Intensity) -> bool {
        self.0.push_back(now);
        while self.0.front().is_some_and(|first| now.duration_since(*first) > limit.window) {
            self.0.pop_front();
        }
        self.0.len() > limit.count as usize
    }
}

/// Whether the `n`th of a row of equal messages is worth a line: the first, and at each doubling.
#[must_use]
pub fn worth_a_line(n: u32) -> bool {
    n.is_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_limit_and_are_jittered() {
        let backoff = Backoff { min: Duration::from_millis(100), max: Duration::from_secs(1) };
        for (earlier, full) in [(0, 100), (1, 200), (3, 800), (4, 1000), (40, 1000)] {
            let full = Duration::from_millis(full);
            let delays: Vec<Duration> = (0..50).map(|_| backoff.delay(earlier)).collect();
            assert!(delays.iter().all(|delay| *delay <= full && *delay >= full / 2), "{earlier}: {delays:?}");
            assert!(delays.iter().any(|delay| *delay != delays[0]), "no jitter");
        }
    }

    #[test]
    fn the_window_slides() {
        let limit = Intensity { count: 2, window: Duration::from_secs(10) };
        let start = Instant::now();
        let mut deaths = Deaths::default();
        let mut record = |seconds| deaths.record(start + Duration::from_secs(seconds), limit);
        assert_eq!([record(0), record(5), record(11), record(16)], [false; 4]);
        assert!(record(17));
    }

    #[test]
    fn repeats_are_told_at_each_doubling() {
        let told: Vec<u32> = (0..=20).filter(|n| worth_a_line(*n)).collect();
        assert_eq!(told, [1, 2, 4, 8, 16]);
    }
}
