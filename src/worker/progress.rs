//! What a worker has done so far.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::store::worker::{LeaseRefusal, Next};

/// Counters of a worker, alive while it works.
#[derive(Debug, Default)]
pub struct Progress {
    leased: AtomicU64,
    succeeded: AtomicU64,
    failed: AtomicU64,
    retried: AtomicU64,
    released: AtomicU64,
    lost: AtomicU64,
    refused: AtomicU64,
}

/// A reading of [`Progress`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Chunks that were leased.
    pub leased: u64,
    /// Chunks that succeeded.
    pub succeeded: u64,
    /// Chunks that failed for good.
    pub failed: u64,
    /// Attempts that failed and are followed by another.
    pub retried: u64,
    /// Chunks that were given back.
    pub released: u64,
    /// Chunks whose lease was lost, or whose run was closed, before their end was committed; what was done was discarded.
    pub lost: u64,
    /// Announced chunks that were finished already, held by somebody, or otherwise not to be had.
    pub refused: u64,
}

impl Progress {
    /// The counters now.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Totals {
            leased: read(&self.leased),
            succeeded: read(&self.succeeded),
            failed: read(&self.failed),
            retried: read(&self.retried),
            released: read(&self.released),
            lost: read(&self.lost),
            refused: read(&self.refused),
        }
    }

    pub(super) fn leased(&self) {
        add(&self.leased);
    }

    pub(super) fn ended(&self, next: Next) {
        add(match next {
            Next::Succeeded => &self.succeeded,
            Next::Failed => &self.failed,
            Next::Retry => &self.retried,
            Next::Release => &self.released,
        });
    }

    pub(super) fn lost(&self) {
        add(&self.lost);
    }

    pub(super) fn refused(&self, _refusal: LeaseRefusal) {
        add(&self.refused);
    }
}

impl Totals {
    /// Attempts that have ended in any way.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.succeeded + self.failed + self.retried + self.released + self.lost
    }
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
