//! Workers: they take announced chunks from a queue, lease them, let a [`Handler`] work on them, and commit how they ended.
//!
//! A [`Worker`] promises that a chunk's outcome is committed once, whoever else works on it; that a message is acknowledged
//! only when all its chunks have ended and the last end is committed; that every lease it holds is renewed in time; and that
//! neither an outage of PostgreSQL nor one of RabbitMQ loses work: what is in progress goes on, and is committed when the
//! database is back. At most `concurrency` handlers run at once, and at most one batch more is leased ahead of them. It does
//! not promise that a chunk is worked on only once: a worker that stops for longer than its lease is taken for dead.
//!
//! ```no_run
//! use runherd::broker::BrokerSettings;
//! use runherd::store::Database;
//! use runherd::worker::{Chunk, ChunkError, Handler, Outcome, Worker};
//! use tokio_util::sync::CancellationToken;
//!
//! struct Squares;
//!
//! impl Handler for Squares {
//!     async fn handle(&self, chunk: Chunk) -> Result<Outcome, ChunkError> {
//!         let n: i64 = chunk.payload_as()?;
//!         Ok(Outcome::of(&(n * n))?)
//!     }
//! }
//!
//! # async fn example(broker: BrokerSettings, database: Database) -> Result<(), Box<dyn std::error::Error>> {
//! let worker = Worker::builder(broker, "squares").placement(database).concurrency(8).build(Squares)?;
//! let drain = CancellationToken::new();
//! let totals = worker.run(drain.clone()).await?;
//! println!("{} chunks succeeded", totals.succeeded);
//! # Ok(())
//! # }
//! ```
//!
//! The parts: `intake` sorts messages by placement, a `lane` leases, `work` runs the handler, `settle` commits, `leases` is the
//! heartbeat. [`command`] is the handler that runs a command for each chunk.

mod builder;
mod chunk;
pub mod command;
mod core;
mod event;
mod intake;
mod lane;
mod leases;
pub(crate) mod pace;
mod progress;
mod settle;
mod work;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slog::{Logger, info, warn};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

pub use self::builder::{Builder, WorkerError};
pub use self::chunk::{Chunk, ChunkError, Handler, Outcome};
pub use self::progress::{Progress, Totals};

use self::core::{Core, Placement, Settings};
use self::intake::Intake;
use self::lane::Lane;
use crate::broker::{BrokerSettings, BrokerState, Consumer, Delivery};
use crate::store::Database;
use crate::store::worker::WorkerStore;
use crate::telemetry::field;

/// How often progress is logged, when there was any.
const SUMMARY: Duration = Duration::from_secs(30);

/// A worker that is set up and has not begun.
pub struct Worker<H> {
    broker: BrokerSettings,
    queue: String,
    placements: Vec<Database>,
    settings: Settings,
    prefetch: u16,
    handler: H,
    progress: Arc<Progress>,
    log: Logger,
}

impl Worker<()> {
    /// Begins a worker for the runs of this queue name.
    pub fn builder(broker: BrokerSettings, queue: &str) -> Builder {
        Builder::new(broker, queue)
    }
}

impl<H: Handler> Worker<H> {
    /// Its counters, to be watched while it works.
    pub fn progress(&self) -> Arc<Progress> {
        self.progress.clone()
    }

    /// The name under which it holds leases.
    pub fn worker_id(&self) -> &str {
        &self.settings.worker_id
    }

    /// Works until `drain` is cancelled; then takes nothing more, gives running handlers the grace, cancels those that are
    /// left, gives back what was not finished, and ends.
    ///
    /// Servers that cannot be reached are waited for. Dropping the future stops everything at once: leases then expire, and
    /// messages go back to the queue.
    ///
    /// # Errors
    /// [`WorkerError::Broker`] before anything has begun; [`WorkerError::Died`] if a part of the worker panicked.
    pub async fn run(self, drain: CancellationToken) -> Result<Totals, WorkerError> {
        let log = self
            .log
            .new(slog::o!(field::QUEUE => self.queue.clone(), field::WORKER_ID => self.settings.worker_id.clone()));
        let (consumer, deliveries) = Consumer::start(self.broker, &self.queue, self.prefetch, &log)?;
        let mut core = Core::new(self.settings, self.placements.len(), drain, log);
        core.progress = self.progress;
        let core = Arc::new(core);
        let _abandon = core.abandon.clone().drop_guard();
        let mut parts = Parts::start(&core, Arc::new(self.handler), self.placements, deliveries);
        let died = watch(&core, &consumer, &mut parts).await;
        let begun = Instant::now();
        info!(core.log, "draining"; "grace_ms" => millis(core.settings.grace));
        core.drain.cancel();
        core.slots.close();
        let limit = core.settings.grace + core.settings.cancel_grace + core.settings.settle_limit;
        let closing = tokio::spawn(consumer.close(limit));
        wind_up(&core, &mut parts).await;
        // The broker has had what we have to say, or is away; either way there is nothing more to do about it.
        let _ = timeout(Duration::from_secs(5), closing).await;
        let totals = core.progress.totals();
        summarise(&core.log, "worker ended", totals, Totals::default(), begun.elapsed());
        if died { Err(WorkerError::Died) } else { Ok(totals) }
    }
}

/// The tasks of a worker, apart from its handlers. Dropping it ends them.
struct Parts {
    /// They end when no lease is left.
    settlers: JoinSet<()>,
    /// They end by themselves only when the worker drains.
    others: JoinSet<()>,
}

impl Parts {
    fn start<H: Handler>(
        core: &Arc<Core>,
        handler: Arc<H>,
        databases: Vec<Database>,
        deliveries: mpsc::Receiver<Delivery>,
    ) -> Self {
        let (mut settlers, mut others) = (JoinSet::new(), JoinSet::new());
        let mut lanes = HashMap::new();
        for database in databases {
            let placement = Arc::new(Placement::new(WorkerStore::new(database), core));
            let (announce, incoming) = mpsc::unbounded_channel();
            let (ends, ended) = mpsc::unbounded_channel();
            lanes.insert(placement.store.placement().to_owned(), announce);
            let (core, handler) = (core.clone(), handler.clone());
            settlers.spawn(settle::settle(core.clone(), placement.clone(), ended));
            let (renewing, ttl) = (placement.clone(), core.settings.lease_ttl);
            let heartbeat = async move {
                leases::heartbeat(&renewing.leases, &renewing.store, ttl, &renewing.log).await;
            };
            // Never ends by itself: it is dropped with the rest.
            others.spawn(heartbeat);
            others.spawn(Lane { core, handler, placement, incoming, ends, waiting: Default::default() }.run());
        }
        others.spawn(Intake { core: core.clone(), lanes }.run(deliveries));
        Self { settlers, others }
    }
}

/// Waits for the order to drain, and says what goes on meanwhile; true if a part of the worker has died.
async fn watch(core: &Core, consumer: &Consumer, parts: &mut Parts) -> bool {
    let mut broker = consumer.state();
    let mut ready = false;
    let mut summary = interval(SUMMARY);
    summary.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = Totals::default();
    loop {
        let now = broker.borrow_and_update().clone();
        if !ready && now == BrokerState::Connected {
            info!(core.log, "ready for chunks"; "concurrency" => core.settings.concurrency,
                "lease_ttl_ms" => millis(core.settings.lease_ttl));
            ready = true;
        }
        tokio::select! {
            biased;
            () = core.drain.cancelled() => return false,
            ended = parts.others.join_next() => return !core.drain.is_cancelled() && died(core, ended),
            ended = parts.settlers.join_next() => return !core.drain.is_cancelled() && died(core, ended),
            changed = broker.changed(), if now != BrokerState::Closed => {
                if changed.is_err() {
                    return died(core, None);
                }
            }
            _ = summary.tick() => {
                let totals = core.progress.totals();
                if totals.ended() > last.ended() {
                    summarise(&core.log, "worked", totals, last, SUMMARY);
                }
                last = totals;
            }
        }
    }
}

fn died(core: &Core, ended: Option<Result<(), tokio::task::JoinError>>) -> bool {
    let why = match ended {
        Some(Err(error)) => error.to_string(),
        Some(Ok(())) | None => "it ended without being asked to".to_owned(),
    };
    warn!(core.log, "a part of the worker has died, draining"; field::ERROR => why);
    true
}

/// Waits for the end of all work: with patience first, then by cancelling it, then by leaving it.
async fn wind_up(core: &Core, parts: &mut Parts) {
    let settings = &core.settings;
    if timeout(settings.grace, all_ended(&mut parts.settlers)).await.is_ok() {
        return;
    }
    info!(core.log, "the grace is over, cancelling what still runs");
    core.cancel.cancel();
    if timeout(settings.cancel_grace + settings.settle_limit, all_ended(&mut parts.settlers)).await.is_ok() {
        return;
    }
    warn!(core.log, "the ends of some chunks could not be committed: their leases will expire");
    core.give_up.cancel();
    // What is left are calls that end by their own time-outs; they may be dropped.
    let _ = timeout(settings.cancel_grace, all_ended(&mut parts.settlers)).await;
}

async fn all_ended(tasks: &mut JoinSet<()>) {
    while tasks.join_next().await.is_some() {}
}

fn summarise(log: &Logger, message: &'static str, totals: Totals, last: Totals, over: Duration) {
    let ended = totals.ended() - last.ended();
    let rate = if last == totals { 0.0 } else { ended as f64 / over.as_secs_f64().max(0.001) };
    info!(log, "{}", message; "succeeded" => totals.succeeded, "failed" => totals.failed, "retried" => totals.retried,
        "released" => totals.released, "lost" => totals.lost, "refused" => totals.refused,
        "chunks_per_second" => (rate * 10.0).round() / 10.0);
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
