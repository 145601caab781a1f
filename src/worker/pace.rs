//! How to wait and how to complain: jittered pauses that grow, and lines that do not flood the log.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(3);

/// Pauses between attempts: they double, and each is jittered so that a fleet does not return in step.
pub(crate) struct Backoff {
    next: Duration,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self { next: PAUSE_MIN }
    }

    pub(crate) fn reset(&mut self) {
        self.next = PAUSE_MIN;
    }

    pub(crate) async fn pause(&mut self) {
        let jittered = self.next.mul_f64(rand::random_range(0.5..1.0));
        self.next = (self.next * 2).min(PAUSE_MAX);
        tokio::time::sleep(jittered).await;
    }
}

/// At most [`LINES`] lines in each [`WINDOW`].
pub(super) struct RateLimit {
    window: Mutex<(Option<Instant>, u32)>,
}

const WINDOW: Duration = Duration::from_secs(10);
const LINES: u32 = 5;

impl RateLimit {
    pub(super) fn new() -> Self {
        Self { window: Mutex::new((None, 0)) }
    }

    /// Whether one more line may be written now.
    pub(super) fn allows(&self) -> bool {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if window.0.is_none_or(|began| now.duration_since(began) >= WINDOW) {
            *window = (Some(now), 0);
        }
        window.1 += 1;
        window.1 <= LINES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_cut_short() {
        let limit = RateLimit::new();
        assert_eq!((0..100).filter(|_| limit.allows()).count(), LINES as usize);
    }
}
