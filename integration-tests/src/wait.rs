//! Waiting for an event, with a limit. Tests do this instead of sleeping: they go on as soon as they can, and a slow
//! machine does not fail them.

use std::fmt::Display;
use std::panic::Location;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use crate::logs;

/// How often a probe is asked.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Asks the probe until it answers `Some`, and returns that.
///
/// # Panics
/// When the limit is over, also if the probe itself hangs: with what was waited for, where, and where the logs are.
#[track_caller]
pub fn until<T>(
    what: impl Display,
    limit: Duration,
    mut probe: impl AsyncFnMut() -> Option<T>,
) -> impl Future<Output = T> {
    let caller = Location::caller();
    async move {
        let deadline = Instant::now() + limit;
        let mut probed = 0_u32;
        loop {
            let hung = match timeout_at(deadline, probe()).await {
                Ok(Some(value)) => return value,
                Ok(None) => false,
                Err(_) => true,
            };
            probed += 1;
            if hung || Instant::now() >= deadline {
                let how = if hung { "the last look never answered" } else { "no look found it" };
                let logs = logs::whereabouts();
                panic!("{caller}: waited {limit:?} for {what} ({probed} looks, {how}); logs: {logs}");
            }
            sleep(POLL_INTERVAL).await;
        }
    }
}
