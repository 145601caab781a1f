//! reporting: logs backlogs, placements, routes, pools and the broker at intervals, for metrics pipelines.
//!
//! Backlogs are read by bounded queries over live rows; a database that cannot be read is left out, and said so. What is
//! counted in this process is told for the interval since the last such record; the last one comes with the drain, so that
//! the records of one process add up to all it did. `docs/logs.md` describes each record.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use runherd_actors::runtime::backoff::worth_a_line;
use runherd_actors::runtime::report::{CycleReport, StageError};
use runherd_actors::runtime::stage::{CycleContext, Stage, StageSpec};
use slog::{info, warn};

use super::Shared;
use crate::broker::{BrokerCounts, BrokerState, Publisher};
use crate::config::CONTROL;
use crate::store::{Database, StoreError, reporting};
use crate::telemetry::{Maybe, error_chain, field, millis};

/// The key of what [`Reporting::backlog`] could not read; no database has this name.
const BACKLOG: &str = "";

pub(super) const NAME: &str = "reporting";

struct Reporting {
    shared: Arc<Shared>,
    publishers: Vec<Publisher>,
    /// When the counts were last told. It outlives the stage, as the counts do.
    told: Arc<Mutex<Instant>>,
    /// Databases that could not be read, and how often in a row; the control database's backlog as [`BACKLOG`].
    unread: HashMap<String, u32>,
}

impl Reporting {
    async fn backlog(&mut self) {
        let log = &self.shared.log;
        match reporting::backlog(self.shared.router.control()).await {
            Ok(backlog) => info!(log, "backlog";
                field::DISPATCH_BACKLOG => backlog.dispatch_backlog,
                field::DISPATCH_CURSORS => backlog.dispatch_cursors,
                field::CREATING_RUNS => backlog.creating_runs,
                field::FINALIZATION_BACKLOG => backlog.finalization_backlog,
                field::FINALIZATION_LAG_MS => backlog.finalization_lag_ms,
                field::OLDEST_UNSEEDED_MS => backlog.oldest_unseeded_ms,
                field::OLDEST_UNDISPATCHED_MS => backlog.oldest_undispatched_ms,
                field::OLDEST_UNFINALIZED_MS => backlog.oldest_unfinalized_ms),
            Err(error) => return self.cannot_read(BACKLOG, CONTROL, &error),
        }
        self.unread.remove(BACKLOG);
    }

    async fn placement(&mut self, database: &Database) {
        let log = &self.shared.log;
        match reporting::placement(database).await {
            Ok(waiting) => info!(log, "placement"; field::PLACEMENT => database.name(),
                field::OUTBOX_BACKLOG => waiting.outbox_backlog,
                field::OUTBOX_PARKED => waiting.outbox_parked,
                field::OUTBOX_LAG_MS => waiting.outbox_lag_ms,
                field::CHUNKS_IN_FLIGHT => waiting.chunks_in_flight,
                field::CHUNKS_LEASED => waiting.chunks_leased,
                field::OLDEST_UNLEASED_MS => waiting.oldest_unleased_ms),
            Err(error) => return self.cannot_read(database.name(), database.name(), &error),
        }
        self.unread.remove(database.name());
    }

    fn cannot_read(&mut self, what: &str, database: &str, error: &StoreError) {
        let in_row = self.unread.entry(what.to_owned()).or_default();
        *in_row = in_row.saturating_add(1);
        if worth_a_line(*in_row) {
            warn!(self.shared.log, "backlog cannot be read"; field::PLACEMENT => database,
                field::ERROR => error_chain(error), field::IN_ROW => *in_row);
        }
    }

    /// What was counted in this process since it was last told.
    fn counts(&self) {
        let interval =
            std::mem::replace(&mut *self.told.lock().unwrap_or_else(PoisonError::into_inner), Instant::now());
        let interval = interval.elapsed();
        for database in self.shared.router.open_databases() {
            self.pool(&database, interval);
        }
        self.route(interval);
        self.broker(interval);
    }

    fn pool(&self, database: &Database, interval: Duration) {
        let (times, pool) = (database.acquire_times().take(), database.pool_status());
        info!(self.shared.log, "pool"; field::PLACEMENT => database.name(), field::INTERVAL_MS => millis(interval),
            field::POOL_ACQUISITIONS => times.count, field::POOL_ACQUISITION_US => times.mean_us,
            field::POOL_ACQUISITION_MAX_US => times.max_us, field::POOL_ACQUISITION_TIMEOUTS => times.timeouts,
            field::POOL_SIZE => pool.size, field::POOL_CONNECTIONS => pool.connections,
            field::POOL_IN_USE => pool.in_use, field::POOL_WAITING => pool.waiting,
            Maybe(field::BLOCKED_BY, database.circuit_open()));
    }

    fn route(&self, interval: Duration) {
        let times = self.shared.router.take_resolution_times();
        info!(self.shared.log, "route"; field::INTERVAL_MS => millis(interval), field::ROUTE_RESOLUTIONS => times.count,
            field::ROUTE_RESOLUTION_US => times.mean_us, field::ROUTE_RESOLUTION_MAX_US => times.max_us);
    }

    /// All publishers together.
    fn broker(&self, interval: Duration) {
        let counts: BrokerCounts = self.publishers.iter().map(Publisher::take_counts).sum();
        let states: Vec<BrokerState> =
            self.publishers.iter().map(|publisher| publisher.state().borrow().clone()).collect();
        let blocked = states.iter().filter(|state| matches!(state, BrokerState::Blocked { .. })).count();
        let obstacles: Vec<String> = states.iter().filter_map(BrokerState::obstacle).collect();
        info!(self.shared.log, "broker"; field::INTERVAL_MS => millis(interval), field::PUBLISHERS => states.len(),
            field::PUBLISHERS_READY => states.len() - obstacles.len(), field::PUBLISHERS_BLOCKED => blocked,
            field::MESSAGES_SENT => counts.sent, field::MESSAGES_CONFIRMED => counts.confirmed,
            field::MESSAGES_RETURNED => counts.returned, field::MESSAGES_NACKED => counts.nacked,
            field::MESSAGES_UNKNOWN => counts.unknown, field::RECONNECTS => counts.reconnects,
            Maybe(field::BLOCKED_BY, obstacles.first()));
    }
}

#[async_trait]
impl Stage for Reporting {
    async fn run_cycle(&mut self, _: &CycleContext) -> Result<CycleReport, StageError> {
        self.counts();
        self.backlog().await;
        for database in self.shared.router.open_databases() {
            self.placement(&database).await;
        }
        Ok(CycleReport::default())
    }

    async fn drain(&mut self) {
        self.counts();
    }
}

pub(super) fn spec(shared: &Arc<Shared>, publishers: &[Publisher]) -> StageSpec {
    let owned = Arc::clone(shared);
    let publishers = publishers.to_vec();
    let told = Arc::new(Mutex::new(Instant::now()));
    let purpose = "logs backlogs, placements, routes, pools and the broker, for metrics pipelines";
    StageSpec::new(NAME, purpose, move || Reporting {
        shared: Arc::clone(&owned),
        publishers: publishers.clone(),
        told: Arc::clone(&told),
        unread: HashMap::new(),
    })
    .every(shared.config.runtime.report_interval)
    .deadline(shared.config.cycle.deadline)
}
