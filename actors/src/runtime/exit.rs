//! The one path by which a death becomes known.
//!
//! Every child of the overseer owns an [`ExitGuard`]. However the child ends (it stopped itself, a handler panicked, its
//! context was torn down) the guard is dropped, and its drop tells the overseer.

use std::error::Error;
use std::fmt;

use tokio::task::AbortHandle;

use super::mailbox::ActorRef;
use super::overseer::{Overseer, OverseerMsg};

/// A child of the overseer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Child {
    Scheduler,
    Stage(usize),
}

/// Why a child ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ExitReason {
    /// It was told to stop.
    Stopped,
    /// It was told to stop, but had to be cut short; this names what was.
    CutShort(&'static str),
    /// Its cycle, its factory or its actor panicked.
    Panicked(String),
    /// Its cycle ended with a fatal error.
    Fatal(String),
    /// So many of its cycles in a row failed; this is the last error.
    Failing { in_row: u32, error: String },
    /// Its cycle was aborted some time after its deadline.
    DeadlinePassed,
    /// Its actor ended without a word.
    Vanished,
}

impl ExitReason {
    /// Whether the death counts for the restart intensity. A passed deadline does not: it is how an unreachable dependency
    /// looks to a stage that cannot tell, and an outage must not become a crash loop. Backoff alone slows those down.
    pub(crate) fn counts(&self) -> bool {
        !matches!(self, Self::DeadlinePassed | Self::Stopped | Self::CutShort(_))
    }

    /// One word for the log.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::CutShort(_) => "cut_short",
            Self::Panicked(_) => "panicked",
            Self::Fatal(_) => "fatal",
            Self::Failing { .. } => "failing",
            Self::DeadlinePassed => "deadline",
            Self::Vanished => "vanished",
        }
    }
}

impl fmt::Display for ExitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped => f.write_str("stopped"),
            Self::CutShort(what) => write!(f, "{what} had to be cut short"),
            Self::Panicked(message) => write!(f, "panicked: {message}"),
            Self::Fatal(error) => write!(f, "fatal error: {error}"),
            Self::Failing { in_row, error } => write!(f, "{in_row} failed cycles in a row, the last: {error}"),
            Self::DeadlinePassed => f.write_str("a cycle passed its deadline and was aborted"),
            Self::Vanished => f.write_str("its actor ended without a word"),
        }
    }
}

/// The news of a death.
#[derive(Debug)]
pub(crate) struct Exit {
    pub(crate) child: Child,
    /// Which life of the child ended.
    pub(crate) life: u64,
    pub(crate) reason: ExitReason,
    /// The task of a cycle that may still be running: its successor must not start beside it.
    pub(crate) leftover: Option<AbortHandle>,
}

/// Tells the overseer when it is dropped.
pub(crate) struct ExitGuard {
    overseer: ActorRef<Overseer>,
    child: Child,
    life: u64,
    /// Set by a child that knows why it ends.
    pub(crate) reason: Option<ExitReason>,
    /// Set while a cycle runs. It is aborted if the actor ends first.
    pub(crate) leftover: Option<AbortHandle>,
}

impl ExitGuard {
    pub(crate) fn new(overseer: ActorRef<Overseer>, child: Child, life: u64) -> Self {
        Self { overseer, child, life, reason: None, leftover: None }
    }
}

impl Drop for ExitGuard {
    fn drop(&mut self) {
        let unforeseen = if std::thread::panicking() {
            ExitReason::Panicked("in its actor".to_owned())
        } else {
            ExitReason::Vanished
        };
        let leftover = self.leftover.take();
        if let Some(cycle) = &leftover {
            cycle.abort();
        }
        let reason = self.reason.take().unwrap_or(unforeseen);
        let exit = Exit { child: self.child, life: self.life, reason, leftover };
        self.overseer.command(OverseerMsg::Exit(exit));
    }
}

/// An error with its causes, in one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// What a panic said.
pub(crate) fn panic_text(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "(no message)".to_owned())
}
