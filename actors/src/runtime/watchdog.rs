//! Watches the control thread: if it does not move, nothing that it promises holds, and only another thread can say so.
//!
//! All actors share the control thread. None of them does anything slow there, so a stall means a defect or a machine that has
//! stopped giving it time. The watchdog only tells; ending the process is for whoever supervises it.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use slog::{Logger, error, info};
use tokio::sync::watch;

use super::backoff::worth_a_line;
use super::status::millis;

/// What the control thread shows to the watchdog, and to whoever waits for its next beat: when it last moved.
///
/// It is real time, whatever tokio's clock says: the watchdog is no task.
#[derive(Clone, Debug)]
pub(crate) struct Heartbeat(watch::Sender<Instant>);

impl Default for Heartbeat {
    fn default() -> Self {
        Self(watch::Sender::new(Instant::now()))
    }
}

impl Heartbeat {
    pub(crate) fn beat(&self) {
        self.0.send_replace(Instant::now());
    }

    pub(crate) fn last(&self) -> Instant {
        *self.0.borrow()
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Instant> {
        self.0.subscribe()
    }
}

/// Ends the watchdog when dropped.
pub(crate) struct Watchdog {
    _stop: Sender<()>,
}

impl Watchdog {
    /// Watches `heartbeat` until dropped. `None` if `limit` is zero or no thread can be had; the run goes on without it.
    pub(crate) fn start(log: Logger, heartbeat: Heartbeat, limit: Duration) -> Option<Self> {
        if limit.is_zero() {
            return None;
        }
        let (stop, stopped) = channel();
        let watch = move || watch(&log, &heartbeat, limit, &stopped);
        std::thread::Builder::new().name("watchdog".to_owned()).spawn(watch).ok()?;
        Some(Self { _stop: stop })
    }
}

fn watch(log: &Logger, heartbeat: &Heartbeat, limit: Duration, stopped: &Receiver<()>) {
    let mut seen = heartbeat.last();
    let mut since = Instant::now();
    let mut stalls = 0;
    while stopped.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
        let now_seen = heartbeat.last();
        if now_seen == seen {
            stalls += 1;
            if worth_a_line(stalls) {
                error!(log, "control thread stalled"; "stalled_ms" => millis(since.elapsed()));
            }
            continue;
        }
        if stalls > 0 {
            info!(log, "control thread moves again"; "stalled_ms" => millis(since.elapsed()));
        }
        (seen, since, stalls) = (now_seen, Instant::now(), 0);
    }
}
