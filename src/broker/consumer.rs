//! Consuming, as a worker sees it.
//!
//! Promises that acknowledging never waits, that at most `prefetch` deliveries are unsettled on the broker, and that a
//! delivery dropped without a word goes back to the queue. Does not know what is in a message.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::Sender;
use slog::Logger;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::amqp_thread::{self, BrokerState};
use super::consuming::{Consuming, Settle};
use super::error::BrokerError;
use super::settings::BrokerSettings;
use super::topology;

/// Receives the chunk messages of one queue name, on one connection of its own.
///
/// Dropping it ends the connection: what is unsettled goes back to the queue. [`Consumer::close`] is the polite way.
pub struct Consumer {
    /// How long to wait for unsettled deliveries; dropped without a word, not at all.
    stop: Sender<Duration>,
    state: watch::Receiver<BrokerState>,
}

impl Consumer {
    /// Starts a consumer. Returns at once; connecting goes on in a thread, for as long as it takes.
    ///
    /// `queue` is a run's queue name. The queue is declared first, as a coordinator would, so that a worker may start
    /// before it. `prefetch` is the most deliveries that are unsettled at a time. After a lost connection, deliveries
    /// that were already handed out come again: see [`Delivery::is_current`].
    ///
    /// # Errors
    ///
    /// [`BrokerError::BadQueueName`] and [`BrokerError::NoPrefetch`].
    pub fn start(
        settings: BrokerSettings,
        queue: &str,
        prefetch: u16,
        log: &Logger,
    ) -> Result<(Self, mpsc::Receiver<Delivery>), BrokerError> {
        topology::check_queue_name(queue)?;
        if prefetch == 0 {
            return Err(BrokerError::NoPrefetch);
        }
        let (deliver, deliveries) = mpsc::channel(usize::from(prefetch));
        let (stop, stopped) = crossbeam_channel::bounded(1);
        let duty = Consuming::new(queue, prefetch, deliver, stopped);
        let state = amqp_thread::start(settings, &format!("consume-{queue}"), log, duty);
        Ok((Self { stop, state }, deliveries))
    }

    /// The connection's state, as it changes.
    pub fn state(&self) -> watch::Receiver<BrokerState> {
        self.state.clone()
    }

    /// Stops deliveries, waits up to `drain` for those handed out to be settled, sends what is left to send, and closes.
    ///
    /// The receiver ends after what is already in it. What is unsettled then goes back to the queue.
    pub async fn close(self, drain: Duration) {
        // An error means that the thread has ended.
        let _ = self.stop.try_send(drain);
        let mut state = self.state.clone();
        let closed = state.wait_for(|state| *state == BrokerState::Closed);
        let _ = timeout(drain + Duration::from_secs(15), closed).await;
    }
}

/// One message, handed to a worker.
#[derive(Debug)]
pub struct Delivery {
    /// The body.
    pub body: Vec<u8>,
    /// The AMQP message id: the event's dedupe key.
    pub message_id: Option<String>,
    /// The AMQP type: the event's kind.
    pub kind: Option<String>,
    /// Whether the broker has delivered it before.
    pub redelivered: bool,
    /// Its headers; values that are neither strings nor integers are left out.
    pub headers: serde_json::Map<String, serde_json::Value>,
    /// What settles it. Dropped without a word, it gives the message back to the queue.
    pub handle: AckHandle,
}

impl Delivery {
    /// Acknowledges the message: it is done with. Never waits. See [`AckHandle::ack`].
    pub fn ack(self) {
        self.handle.ack();
    }

    /// Gives the message back to the queue. Never waits. See [`AckHandle::requeue`].
    pub fn requeue(self) {
        self.handle.requeue();
    }

    /// Whether the connection that brought it still stands. If not, its ack goes nowhere, and the message comes again.
    pub fn is_current(&self) -> bool {
        self.handle.is_current()
    }
}

/// What settles one delivery.
#[derive(Debug)]
pub struct AckHandle {
    pub(super) generation: u64,
    pub(super) tag: u64,
    /// `None` once it has spoken.
    pub(super) settle: Option<Sender<Settle>>,
    pub(super) current: Arc<AtomicU64>,
}

impl AckHandle {
    /// Acknowledges. Many acks travel as one; an ack whose connection is gone is dropped silently.
    pub fn ack(mut self) {
        self.say(true);
    }

    /// Gives the message back, to be delivered again. A quorum queue may count how often.
    pub fn requeue(mut self) {
        self.say(false);
    }

    /// Whether the connection that brought the delivery still stands.
    pub fn is_current(&self) -> bool {
        self.current.load(Ordering::Acquire) == self.generation
    }

    fn say(&mut self, ack: bool) {
        if let Some(settle) = self.settle.take() {
            // Without a thread there is no connection, and the broker has taken the message back.
            let _ = settle.send(Settle { generation: self.generation, tag: self.tag, ack });
        }
    }
}

impl Drop for AckHandle {
    fn drop(&mut self) {
        self.say(false);
    }
}
