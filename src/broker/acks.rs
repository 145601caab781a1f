//! Which deliveries still wait for our word, and how to say many words at once.
//!
//! Promises that a multiple-ack is said only when everything before it is settled or is acked with it. Pure bookkeeping,
//! generic over what the AMQP library wants back for an ack.

use std::collections::VecDeque;

/// The deliveries of one channel that are not settled.
pub(super) struct Unsettled<D> {
    /// In the order of their tags. Settled ones stay until all before them are settled too.
    entries: VecDeque<(u64, Word<D>)>,
    /// Acked since the last flush.
    fresh: Vec<u64>,
    open: usize,
}

enum Word<D> {
    /// Nothing was said yet.
    Open(D),
    /// To be acked at the next flush.
    Acked(D),
    /// The broker was told.
    Told,
}

/// What the broker is to be told.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ack<D> {
    /// Ack this one.
    One(D),
    /// Ack this one and all before it.
    UpTo(D),
}

impl<D> Unsettled<D> {
    pub(super) fn new() -> Self {
        Self { entries: VecDeque::new(), fresh: Vec::new(), open: 0 }
    }

    /// Notes a delivery. Tags of one channel only grow.
    pub(super) fn received(&mut self, tag: u64, delivery: D) {
        self.entries.push_back((tag, Word::Open(delivery)));
        self.open += 1;
    }

    /// How many deliveries nothing was said about.
    pub(super) fn open(&self) -> usize {
        self.open
    }

    /// Notes an ack, to be told at the next flush.
    pub(super) fn ack(&mut self, tag: u64) {
        if let Some(delivery) = self.say(tag) {
            self.set(tag, Word::Acked(delivery));
            self.fresh.push(tag);
        }
    }

    /// Takes a delivery out, to be told at once; `None` if its word was said already.
    pub(super) fn take(&mut self, tag: u64) -> Option<D> {
        self.say(tag)
    }

    /// What to tell the broker for all acks since the last flush, in as few words as can be.
    pub(super) fn flush(&mut self) -> Vec<Ack<D>> {
        let mut acks = Vec::new();
        let mut last = None;
        let mut count = 0;
        while let Some((_, Word::Acked(_) | Word::Told)) = self.entries.front() {
            if let Some((_, Word::Acked(delivery))) = self.entries.pop_front() {
                last = Some(delivery);
                count += 1;
            }
        }
        acks.extend(last.map(|delivery| if count > 1 { Ack::UpTo(delivery) } else { Ack::One(delivery) }));
        for tag in std::mem::take(&mut self.fresh) {
            if let Some(index) = self.position(tag)
                && let Word::Acked(delivery) = std::mem::replace(&mut self.entries[index].1, Word::Told)
            {
                acks.push(Ack::One(delivery));
            }
        }
        acks
    }

    fn say(&mut self, tag: u64) -> Option<D> {
        let index = self.position(tag)?;
        match std::mem::replace(&mut self.entries[index].1, Word::Told) {
            Word::Open(delivery) => {
                self.open -= 1;
                Some(delivery)
            }
            said => {
                self.entries[index].1 = said;
                None
            }
        }
    }

    fn set(&mut self, tag: u64, word: Word<D>) {
        if let Some(index) = self.position(tag) {
            self.entries[index].1 = word;
        }
    }

    fn position(&self, tag: u64) -> Option<usize> {
        self.entries.binary_search_by_key(&tag, |(tag, _)| *tag).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(count: u64) -> Unsettled<u64> {
        let mut unsettled = Unsettled::new();
        (1..=count).for_each(|tag| unsettled.received(tag, tag));
        unsettled
    }

    #[test]
    fn a_run_from_the_start_is_one_word() {
        let mut u = received(5);
        [3, 1, 2].into_iter().for_each(|tag| u.ack(tag));
        assert_eq!(u.flush(), [Ack::UpTo(3)]);
        assert_eq!((u.open(), u.flush().len()), (2, 0));
    }

    #[test]
    fn what_an_open_delivery_precedes_is_acked_alone() {
        let mut u = received(5);
        [1, 3, 5].into_iter().for_each(|tag| u.ack(tag));
        assert_eq!(u.flush(), [Ack::One(1), Ack::One(3), Ack::One(5)]);
        [2, 4].into_iter().for_each(|tag| u.ack(tag));
        assert_eq!(u.flush(), [Ack::UpTo(4)], "3 was told before, and the broker minds no repetition");
        assert_eq!(u.open(), 0);
    }

    #[test]
    fn a_requeued_delivery_is_not_acked_and_nothing_is_said_twice() {
        let mut u = received(3);
        assert_eq!(u.take(2), Some(2));
        assert_eq!(u.take(2), None);
        u.ack(2);
        u.ack(1);
        u.ack(1);
        u.ack(9);
        assert_eq!(u.flush(), [Ack::One(1)]);
        u.ack(3);
        assert_eq!(u.flush(), [Ack::One(3)]);
        assert_eq!(u.open(), 0);
    }
}
