//! Sorts messages into the lanes of their placements.
//!
//! Promises that no announcement is acknowledged unread: what this worker has no placement for goes back to the queue, after a
//! pause, so that it does not spin. Only what is no announcement at all is acknowledged, with an error in the log: the ledger
//! keeps every event, and a chunk that was announced in vain is announced again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use slog::{error, warn};
use tokio::sync::mpsc::{Receiver, UnboundedSender};

use super::core::Core;
use super::event::{ChunkReady, Range};
use super::pace::RateLimit;
use crate::broker::Delivery;
use crate::telemetry::field;

/// How long a message for another placement is held before it goes back.
const PAUSE: Duration = Duration::from_secs(5);

pub(super) struct Intake {
    pub(super) core: Arc<Core>,
    /// By the placement's name.
    pub(super) lanes: HashMap<String, UnboundedSender<Range>>,
}

impl Intake {
    pub(super) async fn run(self, mut deliveries: Receiver<Delivery>) {
        let strangers = RateLimit::new();
        loop {
            let delivery = tokio::select! {
                biased;
                () = self.core.drain.cancelled() => break,
                delivery = deliveries.recv() => delivery,
            };
            let Some(delivery) = delivery else { break };
            let event = match ChunkReady::parse(&delivery.body) {
                Ok(event) => event,
                Err(why) => {
                    error!(self.core.log, "a message in the queue announces no chunks, it is dropped"; field::ERROR => why,
                        field::DEDUPE_KEY => delivery.message_id.clone());
                    delivery.ack();
                    continue;
                }
            };
            match self.lanes.get(&event.placement) {
                // A lane that has ended is draining: dropping the range gives the message back.
                Some(lane) => drop(lane.send(Range::new(event, delivery.handle))),
                None => self.give_back(&event.placement, delivery, &strangers),
            }
        }
    }

    fn give_back(&self, placement: &str, delivery: Delivery, strangers: &RateLimit) {
        if strangers.allows() {
            warn!(self.core.log, "a placement is not configured for this worker, its chunks go back to the queue";
                field::PLACEMENT => placement, field::RETRY_IN_MS => PAUSE.as_millis());
        }
        let core = self.core.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = core.drain.cancelled() => {}
                () = core.abandon.cancelled() => {}
                () = tokio::time::sleep(PAUSE) => {}
            }
            delivery.requeue();
        });
    }
}
