//! RabbitMQ, as the rest of the program sees it: an async face before threads that block.
//!
//! Promises that no call here blocks its thread or lasts longer than the settings say, and that no type of the AMQP
//! library leaves this folder. A [`Publisher`] promises of each message one [`PublishOutcome`], and never `Confirmed`
//! for what the broker did not confirm. Does not know the ledger, nor what a chunk is.
//!
//! `publishing` is what a publisher's thread does, `consuming` what a consumer's does, `amqp_thread` the life of both,
//! `socket` the connection and the watchdog that cuts it.

mod acks;
mod amqp_thread;
mod confirms;
mod consumer;
mod consuming;
mod counts;
mod error;
mod message;
pub mod outbox_publisher;
mod publishing;
mod settings;
mod socket;
pub mod topology;

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use runherd_actors::stages::outbox_publisher::{Message, PublishOutcome};
use slog::Logger;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::timeout;

pub use amqp_thread::BrokerState;
pub use consumer::{AckHandle, Consumer, Delivery};
pub use counts::BrokerCounts;
pub use error::BrokerError;
pub use settings::{BrokerSettings, BrokerUrl};
pub use topology::Topology;

pub use crate::config::QueueType;

use counts::Counter;
use publishing::{Batch, Command, Publishing};

/// A log that goes nowhere, for embedders and tests that keep none.
pub fn silent() -> Logger {
    Logger::root(slog::Discard, slog::o!())
}

/// How many commands may wait for the thread.
const QUEUE: usize = 16;
/// What the thread may be late by after a deadline: it cuts the connection, collects what is known and answers.
const MARGIN: Duration = Duration::from_secs(1);

/// Publishes messages and declares queues, on one connection of its own.
///
/// Clones share the connection. It ends when [`Publisher::close`] is called or the last clone is dropped.
#[derive(Clone)]
pub struct Publisher {
    inner: Arc<Inner>,
}

struct Inner {
    commands: Sender<Command>,
    /// One permit for each place in the command queue, so that sending into it never waits.
    places: Arc<Semaphore>,
    state: watch::Receiver<BrokerState>,
    counter: Arc<Counter>,
    /// Dropped to end the thread.
    alive: Mutex<Option<Sender<Infallible>>>,
    settings: BrokerSettings,
}

impl Publisher {
    /// Starts a publisher. Returns at once; connecting goes on in a thread, for as long as it takes.
    ///
    /// `name` tells publishers apart in logs and thread names.
    pub fn start(settings: BrokerSettings, name: &str, log: &Logger) -> Self {
        let (commands, received) = crossbeam_channel::bounded(QUEUE);
        let (alive, stop) = crossbeam_channel::bounded(0);
        let counter = Arc::new(Counter::default());
        let duty = Publishing::new(received, stop, settings.window(), Arc::clone(&counter));
        let state = amqp_thread::start(settings.clone(), name, log, duty);
        let places = Arc::new(Semaphore::new(QUEUE));
        let alive = Mutex::new(Some(alive));
        Self { inner: Arc::new(Inner { commands, places, state, counter, alive, settings }) }
    }

    /// The connection's state, as it changes. While it is not `Connected`, publishing answers `NotSent` at once.
    pub fn state(&self) -> watch::Receiver<BrokerState> {
        self.inner.state.clone()
    }

    /// What was counted since the last reading; clones share the counts.
    #[must_use]
    pub fn take_counts(&self) -> BrokerCounts {
        self.inner.counter.take()
    }

    /// Publishes a batch and waits for what becomes of it: one outcome for each message, in the batch's order.
    ///
    /// Messages are persistent and mandatory. At most `publish_parallelism` are unconfirmed at a time; batches of one
    /// publisher are published one after the other. The answer comes within `confirm_deadline` and a second, whatever
    /// the broker does. Dropping the future leaves unsent what was not begun; what was begun goes on.
    pub async fn publish(&self, batch: Vec<Message>) -> Vec<PublishOutcome> {
        let refused = |m: &Message| message::check(m).err().map(PublishOutcome::Refused);
        let outcomes: Vec<Option<PublishOutcome>> = batch.iter().map(refused).collect();
        if outcomes.iter().all(Option::is_some) {
            return outcomes.into_iter().flatten().collect();
        }
        let started = Instant::now();
        match self.place(self.patience() / 2).await {
            Ok(permit) => self.publish_checked(batch, outcomes, permit, started).await,
            Err(why) => fill(outcomes, PublishOutcome::NotSent(why)),
        }
    }

    async fn publish_checked(
        &self,
        messages: Vec<Message>,
        outcomes: Vec<Option<PublishOutcome>>,
        permit: OwnedSemaphorePermit,
        started: Instant,
    ) -> Vec<PublishOutcome> {
        let fallback = outcomes.clone();
        let taken = Arc::new(AtomicBool::new(false));
        let (reply, mut answer) = oneshot::channel();
        let deadline = started + self.patience();
        let batch = Batch { messages, outcomes, deadline, taken: taken.clone(), reply, permit };
        if self.inner.commands.try_send(Command::Publish(batch)).is_err() {
            return fill(fallback, PublishOutcome::NotSent("the publisher's thread has ended".to_owned()));
        }
        // A batch that starts late would meet its deadline through no fault of the broker's.
        let latest_start = (started + self.patience() / 2).saturating_duration_since(Instant::now());
        let answered = match timeout(latest_start, &mut answer).await {
            Ok(answered) => answered.ok(),
            Err(_) if !taken.swap(true, Ordering::AcqRel) => {
                let why = "the publisher was busy with other batches".to_owned();
                return fill(fallback, PublishOutcome::NotSent(why));
            }
            Err(_) => {
                let rest = (deadline + MARGIN).saturating_duration_since(Instant::now());
                timeout(rest, answer).await.ok().and_then(Result::ok)
            }
        };
        let unknown = || PublishOutcome::Unknown("the publisher's thread gave no answer".to_owned());
        answered.unwrap_or_else(|| fill(fallback, unknown()))
    }

    /// Declares the queues of runs with these queue names, and binds them. Declaring again is harmless and cheap.
    ///
    /// The names are remembered, also after an error, and declared anew on every new connection.
    ///
    /// # Errors
    ///
    /// [`BrokerError::BadQueueName`] before anything is declared; [`BrokerError::DeclareRefused`] for the first queue
    /// that the broker refuses (the others are declared); [`BrokerError::NotConnected`].
    pub async fn declare_queues(&self, names: Vec<String>) -> Result<(), BrokerError> {
        names.iter().try_for_each(|name| topology::check_queue_name(name))?;
        let permit = self.inner.places.clone().acquire_owned();
        let no_answer = |_| BrokerError::NotConnected("the publisher's thread gave no answer in time".to_owned());
        let ended = || BrokerError::NotConnected("the publisher's thread has ended".to_owned());
        let limit = self.patience() + MARGIN;
        let permit = timeout(limit, permit).await.map_err(no_answer)?.map_err(|_| ended())?;
        let (reply, answer) = oneshot::channel();
        let command = Command::Declare { names, reply, permit };
        self.inner.commands.try_send(command).map_err(|_| ended())?;
        timeout(limit, answer).await.map_err(no_answer)?.unwrap_or_else(|_| Err(ended()))
    }

    /// Closes the connection, after the batch in flight; batches that wait are not sent. Idempotent.
    ///
    /// Waits for at most the confirm deadline, a goodbye and a second. Later calls answer `NotSent`.
    pub async fn close(&self) {
        drop(self.inner.alive.lock().unwrap_or_else(PoisonError::into_inner).take());
        let mut state = self.state();
        let closed = state.wait_for(|state| *state == BrokerState::Closed);
        // An error means that the thread has ended, which is as good.
        let _ = timeout(self.patience() + self.inner.settings.connect_timeout + 3 * MARGIN, closed).await;
    }

    fn patience(&self) -> Duration {
        self.inner.settings.confirm_deadline
    }

    /// A place in the command queue, or why there is none.
    async fn place(&self, limit: Duration) -> Result<OwnedSemaphorePermit, String> {
        if let Some(obstacle) = self.inner.state.borrow().obstacle() {
            return Err(obstacle);
        }
        let busy = || "the publisher was busy with other batches".to_owned();
        timeout(limit, self.inner.places.clone().acquire_owned()).await.map_err(|_| busy())?.map_err(|_| busy())
    }
}

fn fill(outcomes: Vec<Option<PublishOutcome>>, rest: PublishOutcome) -> Vec<PublishOutcome> {
    outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(|| rest.clone())).collect()
}
