//! What became of the messages of one publisher, added up between two readings.

use std::iter::Sum;
use std::ops::Add;
use std::sync::{Mutex, PoisonError};

use runherd_actors::stages::outbox_publisher::PublishOutcome;

/// Counts of one publisher, or of several added up.
///
/// Each message that was sent is counted once more, under what became of it: `sent` is the sum of `confirmed`,
/// `returned`, `nacked` and `unknown`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BrokerCounts {
    /// Messages that were given to the broker.
    pub sent: u64,
    /// Those that it confirmed and did not return.
    pub confirmed: u64,
    /// Those that it returned: no queue is bound for them.
    pub returned: u64,
    /// Those that it refused.
    pub nacked: u64,
    /// Those that it gave no answer to before the connection, the channel or the deadline ended.
    pub unknown: u64,
    /// Connections that took the place of an earlier one.
    pub reconnects: u64,
}

impl BrokerCounts {
    /// The counts of one batch, whose every message has its outcome.
    fn of<'a>(outcomes: impl Iterator<Item = &'a PublishOutcome>) -> Self {
        let mut counts = Self::default();
        for outcome in outcomes {
            let kind = match outcome {
                PublishOutcome::Confirmed => &mut counts.confirmed,
                PublishOutcome::Unroutable { .. } => &mut counts.returned,
                PublishOutcome::Nacked => &mut counts.nacked,
                PublishOutcome::Unknown(_) | PublishOutcome::ClosedByBroker(_) => &mut counts.unknown,
                PublishOutcome::Refused(_) | PublishOutcome::NotSent(_) => continue,
            };
            *kind += 1;
            counts.sent += 1;
        }
        counts
    }
}

impl Add for BrokerCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            sent: self.sent + other.sent,
            confirmed: self.confirmed + other.confirmed,
            returned: self.returned + other.returned,
            nacked: self.nacked + other.nacked,
            unknown: self.unknown + other.unknown,
            reconnects: self.reconnects + other.reconnects,
        }
    }
}

impl Sum for BrokerCounts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), Self::add)
    }
}

/// Where a publisher's thread counts, and its owner reads.
#[derive(Debug, Default)]
pub(super) struct Counter(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    counts: BrokerCounts,
    connected_before: bool,
}

impl Counter {
    /// Counts what became of a batch. A message without an outcome was not sent.
    pub(super) fn published(&self, outcomes: &[Option<PublishOutcome>]) {
        let batch = BrokerCounts::of(outcomes.iter().flatten());
        self.with(|state| state.counts = state.counts + batch);
    }

    /// Counts a connection, unless it is the first.
    pub(super) fn connected(&self) {
        self.with(|state| state.counts.reconnects += u64::from(std::mem::replace(&mut state.connected_before, true)));
    }

    /// Reads the counts and begins anew.
    pub(super) fn take(&self) -> BrokerCounts {
        self.with(|state| std::mem::take(&mut state.counts))
    }

    fn with<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sent_message_is_counted_under_its_outcome_and_reading_begins_anew() {
        let counter = Counter::default();
        let text = || "why".to_owned();
        counter.published(&[
            Some(PublishOutcome::Confirmed),
            Some(PublishOutcome::Unroutable { code: 312, text: text() }),
            Some(PublishOutcome::Nacked),
            Some(PublishOutcome::Unknown(text())),
            Some(PublishOutcome::ClosedByBroker(text())),
            Some(PublishOutcome::Refused(text())),
            Some(PublishOutcome::NotSent(text())),
            None,
        ]);
        counter.connected();
        counter.connected();
        let expected = BrokerCounts { sent: 5, confirmed: 1, returned: 1, nacked: 1, unknown: 2, reconnects: 1 };
        assert_eq!((counter.take(), counter.take()), (expected, BrokerCounts::default()));
        counter.connected();
        assert_eq!(counter.take().reconnects, 1);
    }
}
