//! How a worker is set up.

use std::time::Duration;

use slog::Logger;

use super::chunk::Handler;
use super::core::Settings;
use super::{Progress, Worker};
use crate::broker::{BrokerError, BrokerSettings, topology};
use crate::store::Database;

/// The shortest lease: below it, renewing is all that a worker would do.
const LEASE_TTL_MIN: Duration = Duration::from_millis(100);
/// The most handlers at once, and the largest batch.
const CONCURRENCY_MAX: usize = 10_000;

/// Why a worker cannot begin, or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The queue's name cannot be used.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// A setting cannot be used.
    #[error("{0}")]
    Setting(String),
    /// A part of the worker panicked; the log says which. What was in progress was ended in order.
    #[error("a part of the worker died; this is an error in runherd, the log says more")]
    Died,
}

/// Sets a [`Worker`] up.
#[must_use]
pub struct Builder {
    broker: BrokerSettings,
    queue: String,
    placements: Vec<Database>,
    concurrency: usize,
    batch: Option<usize>,
    lease_ttl: Duration,
    worker_id: Option<String>,
    grace: Duration,
    cancel_grace: Duration,
    settle_limit: Duration,
    log: Logger,
}

impl Builder {
    pub(super) fn new(broker: BrokerSettings, queue: &str) -> Self {
        Self {
            broker,
            queue: queue.to_owned(),
            placements: Vec::new(),
            concurrency: 1,
            batch: None,
            lease_ttl: Duration::from_secs(60),
            worker_id: None,
            grace: Duration::from_secs(10),
            cancel_grace: Duration::from_secs(5),
            settle_limit: Duration::from_secs(15),
            log: crate::broker::silent(),
        }
    }

    /// Adds a placement, under the database's own name. A worker needs every placement that holds chunks of its queue: messages
    /// of others are given back to the queue, slowly and loudly.
    pub fn placement(mut self, database: Database) -> Self {
        self.placements.retain(|known| known.name() != database.name());
        self.placements.push(database);
        self
    }

    /// Adds several placements.
    pub fn placements(self, databases: impl IntoIterator<Item = Database>) -> Self {
        databases.into_iter().fold(self, Self::placement)
    }

    /// The most handlers that run at once (1 to 10,000). Default 1.
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// The most chunks that are leased in one call, and ahead of the free slots (1 to 10,000). Default: the concurrency.
    ///
    /// Chunks of a few milliseconds want some hundreds: they are leased and finished together. Long ones want few, since what
    /// is taken ahead here is missing elsewhere. The broker is asked for this many messages ahead, twice.
    pub fn batch(mut self, batch: usize) -> Self {
        self.batch = Some(batch);
        self
    }

    /// The lease that is asked for; a run's policy may grant less. It is renewed when a third of it has passed. Default 60 s.
    pub fn lease_ttl(mut self, ttl: Duration) -> Self {
        self.lease_ttl = ttl;
        self
    }

    /// Names the worker in leases. Default: host, process and a random part.
    pub fn worker_id(mut self, worker_id: impl Into<String>) -> Self {
        self.worker_id = Some(worker_id.into());
        self
    }

    /// How long running handlers may go on when the worker drains. Default 10 s.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// How long a cancelled handler may take to end before it is dropped. Default 5 s.
    pub fn cancel_grace(mut self, grace: Duration) -> Self {
        self.cancel_grace = grace;
        self
    }

    /// How long a worker that has drained tries to commit what has ended, while a database is away. Default 15 s.
    pub fn settle_limit(mut self, limit: Duration) -> Self {
        self.settle_limit = limit;
        self
    }

    /// Where to log. Default: nowhere.
    pub fn log(mut self, log: &Logger) -> Self {
        self.log = log.clone();
        self
    }

    /// The worker, with the handler that works on its chunks. Nothing is connected yet.
    ///
    /// # Errors
    /// A setting is out of range, or there is no placement.
    pub fn build<H: Handler>(self, handler: H) -> Result<Worker<H>, WorkerError> {
        topology::check_queue_name(&self.queue)?;
        let refuse = |reason: String| Err(WorkerError::Setting(reason));
        if self.placements.is_empty() {
            return refuse("a worker needs at least one placement".to_owned());
        }
        let batch = self.batch.unwrap_or(self.concurrency);
        for (name, value) in [("concurrency", self.concurrency), ("batch", batch)] {
            if !(1..=CONCURRENCY_MAX).contains(&value) {
                return refuse(format!("{name} = {value}: out of range; allowed: 1 to {CONCURRENCY_MAX}"));
            }
        }
        if self.lease_ttl < LEASE_TTL_MIN {
            let (ttl, min) = (humantime::format_duration(self.lease_ttl), humantime::format_duration(LEASE_TTL_MIN));
            return refuse(format!("lease ttl = {ttl}: too short; at least {min}"));
        }
        let settings = Settings {
            concurrency: self.concurrency,
            batch,
            lease_ttl: self.lease_ttl,
            worker_id: self.worker_id.unwrap_or_else(default_worker_id),
            grace: self.grace,
            cancel_grace: self.cancel_grace,
            settle_limit: self.settle_limit,
        };
        // One batch at work or waiting, and one whose end is being committed.
        let prefetch = u16::try_from(self.concurrency + 2 * batch).unwrap_or(u16::MAX);
        Ok(Worker {
            broker: self.broker,
            queue: self.queue,
            placements: self.placements,
            settings,
            prefetch,
            handler,
            progress: std::sync::Arc::new(Progress::default()),
            log: self.log,
        })
    }
}

fn default_worker_id() -> String {
    let host = crate::process::host_name();
    format!("{host}-{}-{:08x}", std::process::id(), rand::random::<u32>())
}
