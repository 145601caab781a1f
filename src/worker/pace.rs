//! How to wait and how to complain: jittered pauses that grow, and lines that do not flood the log.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use runherd_actors::runtime::backoff::Backoff;

/// Between two attempts at a database or a broker.
const BACKOFF: Backoff = Backoff { min: Duration::from_millis(50), max: Duration::from_secs(3) };

/// Pauses between attempts that fail in a row.
#[derive(Default)]
pub(crate) struct Pauses {
    failures: u32,
}

impl Pauses {
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    pub(crate) async fn pause(&mut self) {
        let delay = BACKOFF.delay(self.failures);
        self.failures += 1;
        tokio::time::sleep(delay).await;
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
