//! overdue_runs: warns when a run is older than a limit, once for each run.
//!
//! What it remembers is only whom it has told of: after a restart it tells again.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use runherd::coordinator::Services;
use runherd::store::{Database, Query};
use runherd::telemetry::field;
use runherd_actors::runtime::report::{CycleReport, StageError};
use runherd_actors::runtime::stage::{CycleContext, Stage, StageSpec};
use serde::Deserialize;
use slog::{Logger, o, warn};

/// The stage's name, in the log and as the section `[stages.overdue_runs]`.
pub const NAME: &str = "overdue_runs";

const LIST: Query = Query { name: "overdue_runs/list", text: include_str!("../sql/list.sql") };

/// The section `[stages.overdue_runs]`. (`period` and `deadline` are the runtime's, for every stage.)
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// A run that is older, and has not ended, is overdue.
    #[serde(with = "humantime_serde")]
    pub limit: Duration,
    /// The most runs looked at in one cycle, the oldest first.
    pub batch: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self { limit: Duration::from_secs(24 * 3600), batch: 100 }
    }
}

struct OverdueRuns {
    control: Database,
    log: Logger,
    settings: Settings,
    told: BTreeSet<String>,
}

#[async_trait]
impl Stage for OverdueRuns {
    async fn run_cycle(&mut self, _: &CycleContext) -> Result<CycleReport, StageError> {
        let limit_ms = i64::try_from(self.settings.limit.as_millis()).unwrap_or(i64::MAX);
        // A database that is down makes the stage back off: `?` turns the error into the right StageError.
        let rows = self.control.query(&LIST, &[&limit_ms, &i64::from(self.settings.batch)]).await?;
        let mut report = CycleReport::default();
        let mut overdue = BTreeSet::new();
        for row in &rows {
            let run: String = row.get("run_id");
            if !self.told.contains(&run) {
                warn!(self.log, "run is overdue"; field::RUN_ID => &run, field::QUEUE => row.get::<_, &str>("queue"),
                    "status" => row.get::<_, &str>("status"), "age_s" => row.get::<_, i64>("age_s"));
                report.count("overdue", 1);
            }
            overdue.insert(run);
        }
        self.told = overdue;
        Ok(report)
    }
}

/// The stage as the coordinator gets it. Nobody needs it so much that its end should be the coordinator's.
pub fn spec(services: &Services, settings: Settings) -> StageSpec {
    let control = services.control.clone();
    let log = services.log.new(o!(field::STAGE => NAME));
    StageSpec::new(NAME, "warns when a run is older than a limit", move || OverdueRuns {
        control: control.clone(),
        log: log.clone(),
        settings,
        told: BTreeSet::new(),
    })
    .every(Duration::from_secs(10))
    .deadline(Duration::from_secs(30))
    .inessential()
}
