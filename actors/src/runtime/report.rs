//! What a cycle says when it ends: what it did, what it wants next, or why it could not go on.

use std::error::Error as StdError;
use std::time::Duration;

/// The outcome of one cycle that ran to its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CycleReport {
    /// What was done, as (unit, how many); what was not done is not in it. Units are log field names.
    pub counts: Vec<(&'static str, u64)>,
    /// There is more to do at once: the scheduler ticks again without waiting for the period.
    pub more: bool,
    /// Something becomes due after this long, sooner than the period: the scheduler ticks again then.
    pub due_in: Option<Duration>,
    /// Stage families that have work because of this cycle (`outbox_publisher` wakes every instance of it).
    pub wakes: Vec<&'static str>,
    /// What kept this cycle from doing all it wanted (a placement that is down, a blocked broker), for status and logs.
    pub blocked_by: Vec<String>,
}

impl CycleReport {
    /// Adds `n` to the count of `unit`.
    pub fn count(&mut self, unit: &'static str, n: u64) {
        if n == 0 {
            return;
        }
        match self.counts.iter_mut().find(|(name, _)| *name == unit) {
            Some((_, total)) => *total += n,
            None => self.counts.push((unit, n)),
        }
    }

    /// The count of `unit`, 0 where it was never counted.
    #[must_use]
    pub fn counted(&self, unit: &str) -> u64 {
        self.counts.iter().find(|(name, _)| *name == unit).map_or(0, |(_, n)| *n)
    }

    /// Asks for a tick of `family` because of what this cycle did.
    pub fn wake(&mut self, family: &'static str) {
        if !self.wakes.contains(&family) {
            self.wakes.push(family);
        }
    }

    /// Asks for another tick after `delay` at the latest; the shortest wish wins.
    pub fn due_in(&mut self, delay: Duration) {
        self.due_in = Some(self.due_in.map_or(delay, |now| now.min(delay)));
    }

    /// Whether the cycle did anything worth a log line.
    #[must_use]
    pub fn did_something(&self) -> bool {
        !self.counts.is_empty()
    }
}

/// Why a cycle could not go on, and with that what the supervisor does about it.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// A dependency is down or slow. The stage backs off and tries again; it is **never restarted** for this.
    #[error("{doing}")]
    Transient {
        /// What was being done, to what.
        doing: String,
        /// Why it did not work.
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    /// The cycle failed in a way that a fresh start may mend. The stage is restarted after several in a row.
    #[error("{doing}")]
    Failed {
        /// What was being done, to what.
        doing: String,
        /// Why it did not work.
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    /// The stage's state cannot be trusted any more. It is restarted now.
    #[error("{doing}")]
    Fatal {
        /// What was being done, to what.
        doing: String,
        /// Why it did not work.
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
}

impl StageError {
    /// A [`StageError::Transient`].
    pub fn transient(doing: impl Into<String>, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::Transient { doing: doing.into(), source: source.into() }
    }

    /// A [`StageError::Failed`].
    pub fn failed(doing: impl Into<String>, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::Failed { doing: doing.into(), source: source.into() }
    }

    /// A [`StageError::Fatal`].
    pub fn fatal(doing: impl Into<String>, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::Fatal { doing: doing.into(), source: source.into() }
    }
}
