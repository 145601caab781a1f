//! A chunk-ready event, and the message that brought it.
//!
//! Promises that a message is acknowledged when every chunk it announces has come to its end, not sooner and once; and that a
//! message about which nothing was said goes back to the queue. Does not know how chunks end.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use runherd_actors::model::{ChunkKey, ChunkNo, RunId, RunShard};
use serde::Deserialize;

use crate::broker::AckHandle;

/// The most chunks that one event may announce: far above what a run's policy allows.
const CHUNKS_MAX: i64 = 1_000_000;

/// What a chunk-ready event says.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub(super) struct ChunkReady {
    /// The placement that holds the chunks.
    pub(super) placement: String,
    run_id: RunId,
    run_shard: RunShard,
    first_chunk_no: ChunkNo,
    last_chunk_no: ChunkNo,
}

impl ChunkReady {
    /// Reads an event's body; says what is wrong with it if it is none.
    pub(super) fn parse(body: &[u8]) -> Result<Self, String> {
        let event: Self = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        match event.count() {
            1..=CHUNKS_MAX => Ok(event),
            count => Err(format!("it announces {count} chunks")),
        }
    }

    fn count(&self) -> i64 {
        self.last_chunk_no.saturating_sub(self.first_chunk_no).saturating_add(1)
    }
}

/// One message, until all of its chunks have ended.
pub(super) struct Ticket {
    /// Chunks that have not ended.
    left: AtomicI64,
    /// `None` once the broker was told.
    handle: Mutex<Option<AckHandle>>,
}

impl Ticket {
    /// One of its chunks has ended: its end is committed, or it was refused, or its lease is lost.
    pub(super) fn chunk_ended(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(handle) = self.take()
        {
            handle.ack();
        }
    }

    /// Gives the message back, for chunks in it that this worker will not take.
    pub(super) fn requeue(&self) {
        if let Some(handle) = self.take() {
            handle.requeue();
        }
    }

    fn take(&self) -> Option<AckHandle> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn is_current(&self) -> bool {
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        handle.as_ref().is_some_and(AckHandle::is_current)
    }
}

/// The chunks of one message that were not taken yet.
pub(super) struct Range {
    event: ChunkReady,
    next: ChunkNo,
    pub(super) ticket: Arc<Ticket>,
}

impl Range {
    pub(super) fn new(event: ChunkReady, handle: AckHandle) -> Self {
        let ticket = Ticket { left: AtomicI64::new(event.count()), handle: Mutex::new(Some(handle)) };
        Self { next: event.first_chunk_no, event, ticket: Arc::new(ticket) }
    }

    /// Takes the next chunk; `None` when all are taken.
    pub(super) fn take(&mut self) -> Option<ChunkKey> {
        let chunk_no = self.next;
        (chunk_no <= self.event.last_chunk_no).then(|| {
            self.next += 1;
            ChunkKey { run_id: self.event.run_id, run_shard: self.event.run_shard, chunk_no }
        })
    }

    /// How many chunks were not taken yet.
    pub(super) fn remaining(&self) -> usize {
        usize::try_from(self.event.last_chunk_no - self.next + 1).unwrap_or_default()
    }

    /// False if the message is on its way back to the queue, to be delivered again.
    pub(super) fn is_current(&self) -> bool {
        self.ticket.is_current()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = "018f0000-0000-7000-8000-000000000001";

    fn body(first: i64, last: i64) -> String {
        format!(
            r#"{{"placement":"control","run_id":"{RUN}","run_shard":3,"first_chunk_no":{first},"last_chunk_no":{last},"generation":0}}"#
        )
    }

    #[test]
    fn an_event_names_its_range() {
        let event = ChunkReady::parse(body(7, 9).as_bytes()).unwrap();
        assert_eq!((event.placement.as_str(), event.count()), ("control", 3));
    }

    #[test]
    fn what_is_no_event_is_refused_with_a_reason() {
        for (bad, why) in [
            (body(9, 7), "-1 chunks"),
            (body(0, i64::MAX), "chunks"),
            (body(i64::MIN, i64::MAX), "chunks"),
            ("{}".to_owned(), "placement"),
            ("nonsense".to_owned(), "expected"),
        ] {
            let error = ChunkReady::parse(bad.as_bytes()).unwrap_err();
            assert!(error.contains(why), "{bad}: {error}");
        }
    }
}
