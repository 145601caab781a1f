//! What this process is, what it hears and how it ends: its host's name, signals, exit statuses.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Everything went well; for commands that wait for a run, it succeeded.
pub const EXIT_OK: u8 = 0;
/// The run failed, or a check found a violation.
pub const EXIT_FAILED: u8 = 1;
/// The run was cancelled.
pub const EXIT_CANCELLED: u8 = 3;
/// The input is bad: a line, a payload, a value.
pub const EXIT_DATA: u8 = 65;
/// A server cannot be reached, or is not ready.
pub const EXIT_UNAVAILABLE: u8 = 69;
/// The coordinator escalated: a stage failed too often, or got stuck.
pub const EXIT_ESCALATED: u8 = 70;
/// The coordinator was forced to stop before it had drained.
pub const EXIT_FORCED: u8 = 75;
/// The command was interrupted by a signal.
pub const EXIT_INTERRUPTED: u8 = 130;

/// SIGTERM and SIGINT, from the moment this was made: they end the process no more.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Begins to listen. Call it within a tokio runtime.
    ///
    /// # Errors
    /// The process cannot listen for signals.
    pub fn new() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next of them.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// This machine's name, for operators.
#[must_use]
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
