//! reporting: logs backlogs, routes, pools and the broker at intervals, for metrics pipelines.
//!
//! Backlogs are read by bounded queries over live rows; a database that cannot be read is left out, and said so.

use std::sync::Arc;

use async_trait::async_trait;
use runherd_actors::runtime::report::{CycleReport, StageError};
use runherd_actors::runtime::stage::{CycleContext, Stage, StageSpec};
use slog::{info, warn};

use super::Shared;
use crate::broker::Publisher;
use crate::store::{Database, reporting};
use crate::telemetry::{error_chain, field};

pub(super) const NAME: &str = "reporting";

struct Reporting {
    shared: Arc<Shared>,
    publishers: Vec<Publisher>,
}

impl Reporting {
    async fn backlog(&self) {
        let log = &self.shared.log;
        match reporting::backlog(self.shared.router.control()).await {
            Ok(backlog) => info!(log, "backlog";
                field::DISPATCH_BACKLOG => backlog.dispatch_backlog, "dispatch_cursors" => backlog.dispatch_cursors,
                "creating_runs" => backlog.creating_runs, field::FINALIZATION_BACKLOG => backlog.finalization_backlog,
                field::FINALIZATION_LAG_MS => backlog.finalization_lag_ms),
            Err(error) => warn!(log, "backlog cannot be read"; field::ERROR => error_chain(&error)),
        }
    }

    async fn database(&self, database: &Database) {
        let log = &self.shared.log;
        match reporting::outbox(database).await {
            Ok(outbox) => info!(log, "outbox"; field::PLACEMENT => database.name(),
                field::OUTBOX_BACKLOG => outbox.outbox_backlog, field::OUTBOX_PARKED => outbox.outbox_parked,
                field::OUTBOX_LAG_MS => outbox.outbox_lag_ms),
            Err(error) => warn!(log, "outbox cannot be read"; field::PLACEMENT => database.name(),
                field::ERROR => error_chain(&error)),
        }
        let times = database.acquire_times().take();
        let (size, most) = database.pool_size();
        info!(log, "pool"; field::PLACEMENT => database.name(), "acquisitions" => times.count,
            field::POOL_ACQUISITION_US => times.mean_us, "pool_acquisition_max_us" => times.max_us,
            "pool_connections" => size, "pool_size" => most);
    }

    fn route(&self) {
        let times = self.shared.router.take_resolution_times();
        info!(self.shared.log, "route"; "resolutions" => times.count, field::ROUTE_RESOLUTION_US => times.mean_us,
            "route_resolution_max_us" => times.max_us);
    }

    fn broker(&self) {
        let obstacles: Vec<String> =
            self.publishers.iter().filter_map(|publisher| publisher.state().borrow().obstacle()).collect();
        info!(self.shared.log, "broker"; "publishers" => self.publishers.len(),
            "connected" => self.publishers.len() - obstacles.len(), field::BLOCKED_BY => obstacles.first());
    }
}

#[async_trait]
impl Stage for Reporting {
    async fn run_cycle(&mut self, _: &CycleContext) -> Result<CycleReport, StageError> {
        self.backlog().await;
        for database in self.shared.router.open_databases() {
            self.database(&database).await;
        }
        self.route();
        self.broker();
        Ok(CycleReport::default())
    }
}

pub(super) fn spec(shared: &Arc<Shared>, publishers: &[Publisher]) -> StageSpec {
    let owned = Arc::clone(shared);
    let publishers = publishers.to_vec();
    StageSpec::new(NAME, "logs backlogs, routes, pools and the broker, for metrics pipelines", move || Reporting {
        shared: Arc::clone(&owned),
        publishers: publishers.clone(),
    })
    .every(shared.config.runtime.report_interval)
    .deadline(shared.config.cycle.deadline)
}
