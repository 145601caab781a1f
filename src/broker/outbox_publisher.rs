//! outbox_publisher's adapter to the broker: declares a queue before the first event for it, and publishes.
//!
//! An event that finds no queue is returned, and pays an attempt; the queue is declared again before its next one, so that a
//! queue or a binding that was deleted comes back without an operator.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use runherd_actors::runtime::backoff::worth_a_line;
use runherd_actors::stages::outbox_publisher::{Message, PublishOutcome, PublishPort};
use slog::{Logger, warn};

use super::Publisher;
use super::topology::queue_of_chunk_ready_key;
use crate::telemetry::{error_chain, field};

/// One publisher's connection, as its stage uses it.
pub struct BrokerPort {
    publisher: Publisher,
    log: Logger,
    declared: Mutex<HashSet<String>>,
    /// Declarations in a row that failed.
    failed_in_row: AtomicU32,
}

impl BrokerPort {
    /// A port over a publisher, which other instances of the stage may share after a restart.
    #[must_use]
    pub fn new(publisher: Publisher, log: Logger) -> Self {
        Self { publisher, log, declared: Mutex::default(), failed_in_row: AtomicU32::new(0) }
    }

    /// Declares the queues that this batch is the first to need. A queue that the broker refuses to declare may still be there
    /// and bound, with other arguments: the events are published all the same, and returned if they find no way.
    async fn declare_new_queues(&self, batch: &[Message]) {
        let new: Vec<String> = {
            let declared = self.declared.lock().unwrap_or_else(PoisonError::into_inner);
            let queues = batch.iter().filter_map(|message| queue_of_chunk_ready_key(&message.routing_key));
            let new: HashSet<&str> = queues.filter(|queue| !declared.contains(*queue)).collect();
            new.into_iter().map(str::to_owned).collect()
        };
        if new.is_empty() {
            return;
        }
        match self.publisher.declare_queues(new.clone()).await {
            Ok(()) => {
                self.failed_in_row.store(0, Ordering::Relaxed);
                self.declared.lock().unwrap_or_else(PoisonError::into_inner).extend(new);
            }
            Err(error) => {
                let in_row = self.failed_in_row.fetch_add(1, Ordering::Relaxed).saturating_add(1);
                if worth_a_line(in_row) {
                    warn!(self.log, "queues cannot be declared"; field::QUEUES => new.join(","),
                        field::ERROR => error_chain(&error), field::IN_ROW => in_row);
                }
            }
        }
    }

    fn forget_lost_queues(&self, keys: &[String], outcomes: &[PublishOutcome]) {
        let mut declared = self.declared.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, outcome) in keys.iter().zip(outcomes) {
            if let (Some(queue), PublishOutcome::Unroutable { .. }) = (queue_of_chunk_ready_key(key), outcome) {
                declared.remove(queue);
            }
        }
    }
}

impl std::fmt::Debug for BrokerPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BrokerPort").finish_non_exhaustive()
    }
}

#[async_trait]
impl PublishPort for BrokerPort {
    async fn publish(&self, batch: Vec<Message>) -> Vec<PublishOutcome> {
        self.declare_new_queues(&batch).await;
        let keys: Vec<String> = batch.iter().map(|message| message.routing_key.clone()).collect();
        let outcomes = self.publisher.publish(batch).await;
        self.forget_lost_queues(&keys, &outcomes);
        outcomes
    }

    fn blocked(&self) -> Option<String> {
        self.publisher.state().borrow().obstacle()
    }
}
