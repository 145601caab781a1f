//! Which sent messages still wait for the broker's word, and what its words mean.
//!
//! Promises that every message is settled once, by the first confirm that covers it, whatever the order of confirms and
//! however many one confirm covers; and that a message which was returned is never called confirmed. Pure bookkeeping:
//! knows no sockets and no clocks. The caller hands over all returns it has received before it hands over a confirm.
//!
//! It exists because amiquip's own `ConfirmSmoother` reports a nack that a multiple-ack follows as acked.

use std::collections::{HashMap, VecDeque};

use runherd_actors::stages::outbox_publisher::PublishOutcome;

/// The messages sent on one channel and not yet settled.
pub(super) struct Window {
    /// The tag of the first entry. Tags count from 1 on each channel.
    first_tag: u64,
    /// From the oldest unsettled message to the newest sent; `None` where settled out of order.
    entries: VecDeque<Option<Sent>>,
    tags: HashMap<String, u64>,
}

struct Sent {
    /// The message's place in its batch.
    index: usize,
    id: String,
    returned: Option<(u16, String)>,
}

impl Window {
    /// The window of a fresh channel on which confirms were just turned on.
    pub(super) fn new() -> Self {
        Self { first_tag: 1, entries: VecDeque::new(), tags: HashMap::new() }
    }

    /// How many messages are unsettled.
    pub(super) fn len(&self) -> usize {
        self.tags.len()
    }

    /// Whether a message with this id is unsettled: a second one would make returns ambiguous.
    pub(super) fn contains(&self, id: &str) -> bool {
        self.tags.contains_key(id)
    }

    /// Notes that a message was sent. It gets the channel's next tag.
    pub(super) fn sent(&mut self, index: usize, id: &str) {
        let tag = self.first_tag + self.entries.len() as u64;
        self.entries.push_back(Some(Sent { index, id: id.to_owned(), returned: None }));
        self.tags.insert(id.to_owned(), tag);
    }

    /// Notes that the broker returned a message. False if no unsettled message has this id.
    pub(super) fn returned(&mut self, id: &str, code: u16, text: &str) -> bool {
        let Some(&tag) = self.tags.get(id) else { return false };
        if let Some(Some(sent)) = self.entries.get_mut((tag - self.first_tag) as usize) {
            sent.returned = Some((code, text.to_owned()));
        }
        true
    }

    /// Applies one confirm and tells `settle` the place and outcome of every message that it settles.
    ///
    /// `multiple` covers all unsettled messages up to and including `tag`; with tag 0, all there are.
    pub(super) fn confirm(
        &mut self,
        tag: u64,
        multiple: bool,
        ack: bool,
        mut settle: impl FnMut(usize, PublishOutcome),
    ) {
        let end = match (tag, multiple) {
            (0, true) => self.entries.len(),
            _ => (tag + 1).saturating_sub(self.first_tag).min(self.entries.len() as u64) as usize,
        };
        // A single confirm beyond what was sent would otherwise settle the last message in its place.
        let in_range = tag >= self.first_tag && tag < self.first_tag + self.entries.len() as u64;
        let start = match (multiple, in_range) {
            (true, _) => 0,
            (false, true) => end - 1,
            (false, false) => end,
        };
        for entry in self.entries.range_mut(start..end) {
            if let Some(sent) = entry.take() {
                self.tags.remove(&sent.id);
                settle(sent.index, sent.outcome(ack));
            }
        }
        while let Some(None) = self.entries.front() {
            self.entries.pop_front();
            self.first_tag += 1;
        }
    }

    /// Gives up on whatever is unsettled: the channel is gone. Returns the places, oldest first.
    pub(super) fn abandon(&mut self) -> Vec<usize> {
        self.tags.clear();
        self.first_tag += self.entries.len() as u64;
        self.entries.drain(..).flatten().map(|sent| sent.index).collect()
    }
}

impl Sent {
    fn outcome(self, ack: bool) -> PublishOutcome {
        match (self.returned, ack) {
            // The broker acks what it returns: nobody else will ever see that message.
            (Some((code, text)), _) => PublishOutcome::Unroutable { code, text },
            (None, true) => PublishOutcome::Confirmed,
            (None, false) => PublishOutcome::Nacked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(count: usize) -> Window {
        let mut window = Window::new();
        (0..count).for_each(|i| window.sent(i, &format!("m{i}")));
        window
    }

    fn confirm(window: &mut Window, tag: u64, multiple: bool, ack: bool) -> Vec<(usize, PublishOutcome)> {
        let mut settled = Vec::new();
        window.confirm(tag, multiple, ack, |index, outcome| settled.push((index, outcome)));
        settled
    }

    use PublishOutcome::{Confirmed, Nacked, Unroutable};

    #[test]
    fn a_nack_stays_a_nack_when_a_multiple_ack_follows() {
        let mut w = window(4);
        assert_eq!(confirm(&mut w, 2, false, false), [(1, Nacked)]);
        assert_eq!(confirm(&mut w, 4, true, true), [(0, Confirmed), (2, Confirmed), (3, Confirmed)]);
        assert_eq!(w.len(), 0);
    }

    #[test]
    fn an_ack_stays_an_ack_when_a_multiple_nack_follows() {
        let mut w = window(3);
        assert_eq!(confirm(&mut w, 1, false, true), [(0, Confirmed)]);
        assert_eq!(confirm(&mut w, 3, true, false), [(1, Nacked), (2, Nacked)]);
    }

    #[test]
    fn any_order_settles_each_once() {
        let mut w = window(5);
        assert_eq!(confirm(&mut w, 5, false, true), [(4, Confirmed)]);
        assert_eq!(confirm(&mut w, 3, false, true), [(2, Confirmed)]);
        assert_eq!(confirm(&mut w, 3, false, false), []);
        assert_eq!(confirm(&mut w, 1, false, true), [(0, Confirmed)]);
        assert_eq!(confirm(&mut w, 1, false, true), []);
        w.sent(5, "m5");
        assert_eq!(confirm(&mut w, 6, true, true), [(1, Confirmed), (3, Confirmed), (5, Confirmed)]);
        assert_eq!(w.len(), 0);
    }

    #[test]
    fn a_returned_message_is_unroutable_though_it_is_acked() {
        let mut w = window(3);
        assert!(w.returned("m1", 312, "NO_ROUTE"));
        assert!(!w.returned("m9", 312, "NO_ROUTE"));
        let unroutable = Unroutable { code: 312, text: "NO_ROUTE".to_owned() };
        assert_eq!(confirm(&mut w, 3, true, true), [(0, Confirmed), (1, unroutable), (2, Confirmed)]);
        assert!(!w.returned("m1", 312, "NO_ROUTE"), "it was settled");
    }

    #[test]
    fn tag_zero_covers_all_and_tags_never_sent_cover_nothing() {
        let mut w = window(2);
        assert_eq!(confirm(&mut w, 3, false, true), []);
        assert_eq!(confirm(&mut w, 0, false, true), []);
        assert_eq!(confirm(&mut w, u64::from(u32::MAX), false, false), []);
        assert_eq!(confirm(&mut w, 0, true, true), [(0, Confirmed), (1, Confirmed)]);
        assert_eq!(confirm(&mut w, 2, true, true), []);
    }

    #[test]
    fn abandoned_messages_are_those_unsettled() {
        let mut w = window(4);
        confirm(&mut w, 2, false, true);
        assert!(w.contains("m0") && !w.contains("m1"));
        assert_eq!(w.abandon(), [0, 2, 3]);
        assert_eq!((w.len(), w.contains("m0")), (0, false));
    }
}
