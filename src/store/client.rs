//! What a client does with runs: begin, append, seal, give up, cancel, pause, resume, list and read.
//!
//! Writes go through the client's SQL functions alone, each atomic by itself; a refusal is [`StoreError::Refused`] in the
//! function's own words. Reading takes no lock. Nothing here knows where chunks come from or how anything is shown.

mod append;
mod view;

use std::time::Duration;

use runherd_actors::model::{ClaimToken, RunId, RunStatus, UnknownStatus};
use serde_json::Value;
use tokio_postgres::Row;
use uuid::Uuid;

pub use self::append::PartAppender;
pub use self::view::{IntentView, PlacementProgress, PlacementView, RunSummary, RunView};
use super::query::{Query, query};
use super::{Database, StoreError, millis};

const BEGIN_RUN: Query = query!("client/begin_run");
const SEAL_RUN: Query = query!("client/seal_run");
const ABORT_RUN: Query = query!("client/abort_run");
const CANCEL_RUN: Query = query!("client/cancel_run");
const PAUSE_RUN: Query = query!("client/pause_run");
const RESUME_RUN: Query = query!("client/resume_run");
const FIND_RUNS: Query = query!("client/find_runs");
const LIST_RUNS: Query = query!("client/list_runs");
const READ_RUN: Query = query!("client/read_run");
const RUN_PLACEMENTS: Query = query!("client/run_placements");
const PLACEMENT_PROGRESS: Query = query!("client/placement_progress");

/// What a client may do, on the control database. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ClientStore {
    control: Database,
}

/// The answer to [`ClientStore::begin_run`].
#[derive(Clone, Debug)]
pub struct Begun {
    /// The run.
    pub run_id: RunId,
    /// What every part must restate; `None` for a run that takes no more parts.
    pub token: Option<ClaimToken>,
    /// Whether this call made the run.
    pub created: bool,
    /// Whether the run is sealed.
    pub sealed: bool,
    /// Where the run stands.
    pub status: RunStatus,
    /// Its shards: part `p` belongs to shard `p mod shards`.
    pub shards: u32,
    /// Parts that are there.
    pub parts_present: u32,
    /// Chunks in them.
    pub chunks_present: u64,
    /// The digest of their chain; empty where there are none.
    pub parts_digest: Vec<u8>,
}

/// Which runs to list.
#[derive(Clone, Debug, Default)]
pub struct RunFilter {
    /// The most runs.
    pub limit: u32,
    /// Only runs in one of these statuses; empty for all.
    pub statuses: Vec<RunStatus>,
    /// Only runs of this queue.
    pub queue: Option<String>,
}

impl ClientStore {
    /// Over the control database.
    #[must_use]
    pub fn new(control: Database) -> Self {
        Self { control }
    }

    /// The control database.
    #[must_use]
    pub fn database(&self) -> &Database {
        &self.control
    }

    /// Begins a run, or takes up the one that this key began; an earlier holder's token is lost then.
    ///
    /// # Errors
    /// Refused: a bad header (`RH400`), or a key that belongs to a run with another header or to one that was given up
    /// (`RH409`). See [`StoreError`].
    pub async fn begin_run(&self, header: &Value, key: &str, lease: Duration) -> Result<Begun, StoreError> {
        let row = self.control.query_one(&BEGIN_RUN, &[&header.to_string(), &key, &millis(lease)]).await?;
        Ok(Begun {
            run_id: RunId(row.get("run_id")),
            token: row.get::<_, Option<Uuid>>("creation_token").map(ClaimToken),
            created: row.get("created"),
            sealed: row.get("sealed"),
            status: self.status(&row, BEGIN_RUN.name)?,
            shards: row.get::<_, i32>("shard_count").unsigned_abs(),
            parts_present: row.get::<_, i32>("parts_present").unsigned_abs(),
            chunks_present: row.get::<_, i64>("chunks_present").unsigned_abs(),
            parts_digest: row.get("parts_digest"),
        })
    }

    /// A connection of its own that appends parts to a run, several in flight.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn appender(
        &self,
        run_id: RunId,
        token: ClaimToken,
        lease: Duration,
    ) -> Result<PartAppender, StoreError> {
        PartAppender::open(&self.control, run_id, token, millis(lease)).await
    }

    /// Seals a run with exactly `parts` parts; answers how many chunks it holds. Sealing again succeeds again.
    ///
    /// # Errors
    /// Refused: other content (`RH409`), or the token was lost (`RH410`). See [`StoreError`].
    pub async fn seal_run(
        &self,
        run_id: RunId,
        token: ClaimToken,
        parts: u32,
        parts_digest: &[u8],
    ) -> Result<u64, StoreError> {
        let parts = i32::try_from(parts).unwrap_or(i32::MAX);
        let row = self.control.query_one(&SEAL_RUN, &[&run_id.0, &token.0, &parts, &parts_digest]).await?;
        Ok(row.get::<_, i64>("chunks").unsigned_abs())
    }

    /// Gives up a run that is not sealed: the finalizer fails it with this reason, and nothing is handed out.
    ///
    /// # Errors
    /// Refused: the token was lost, or the run is sealed (`RH410`). See [`StoreError`].
    pub async fn abort_run(&self, run_id: RunId, token: ClaimToken, reason: &str) -> Result<(), StoreError> {
        self.control.query(&ABORT_RUN, &[&run_id.0, &token.0, &reason]).await.map(drop)
    }

    /// Asks for a run to be cancelled; answers the status that it had then.
    ///
    /// # Errors
    /// Refused: no such run (`RH404`), or it has ended (`RH409`). See [`StoreError`].
    pub async fn cancel_run(&self, run_id: RunId, reason: Option<&str>) -> Result<RunStatus, StoreError> {
        let row = self.control.query_one(&CANCEL_RUN, &[&run_id.0, &reason]).await?;
        self.status(&row, CANCEL_RUN.name)
    }

    /// Asks for the hand-out of a run to stop; answers the status that it had then.
    ///
    /// # Errors
    /// Refused: no such run (`RH404`), or it is stopping or has ended (`RH409`). See [`StoreError`].
    pub async fn pause_run(&self, run_id: RunId) -> Result<RunStatus, StoreError> {
        let row = self.control.query_one(&PAUSE_RUN, &[&run_id.0]).await?;
        self.status(&row, PAUSE_RUN.name)
    }

    /// Takes a pause back; answers the status of the run.
    ///
    /// # Errors
    /// Refused: no such run (`RH404`), or it is not paused (`RH409`). See [`StoreError`].
    pub async fn resume_run(&self, run_id: RunId) -> Result<RunStatus, StoreError> {
        let row = self.control.query_one(&RESUME_RUN, &[&run_id.0]).await?;
        self.status(&row, RESUME_RUN.name)
    }

    /// Up to three runs whose identifiers lie in a span.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn find_runs(&self, lowest: Uuid, highest: Uuid) -> Result<Vec<RunId>, StoreError> {
        let rows = self.control.query(&FIND_RUNS, &[&lowest, &highest]).await?;
        Ok(rows.iter().map(|row| RunId(row.get("run_id"))).collect())
    }

    /// The newest runs first.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn list_runs(&self, filter: &RunFilter) -> Result<Vec<RunSummary>, StoreError> {
        let statuses: Vec<&str> = filter.statuses.iter().map(|status| status.as_str()).collect();
        let statuses = Some(statuses).filter(|statuses| !statuses.is_empty());
        let limit = i64::from(filter.limit);
        let rows = self.control.query(&LIST_RUNS, &[&limit, &statuses, &filter.queue]).await?;
        rows.iter().map(|row| Ok(RunSummary::new(row, self.status(row, LIST_RUNS.name)?))).collect()
    }

    /// One run as the control database knows it; `None` where there is none.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn read_run(&self, run_id: RunId) -> Result<Option<RunView>, StoreError> {
        let Some(row) = self.control.query_opt(&READ_RUN, &[&run_id.0]).await? else { return Ok(None) };
        let status = self.status(&row, READ_RUN.name)?;
        let placements = self.control.query(&RUN_PLACEMENTS, &[&run_id.0]).await?;
        Ok(Some(RunView::new(&row, status, placements.iter().map(PlacementView::new).collect())))
    }

    fn status(&self, row: &Row, doing: &str) -> Result<RunStatus, StoreError> {
        row.get::<_, &str>("status").parse().map_err(|error: UnknownStatus| StoreError::Failed {
            database: self.control.name().to_owned(),
            doing: doing.to_owned(),
            source: error.into(),
        })
    }
}

/// How far a run has come on one placement.
///
/// # Errors
/// See [`StoreError`].
pub async fn placement_progress(placement: &Database, run_id: RunId) -> Result<PlacementProgress, StoreError> {
    let row = placement.query_one(&PLACEMENT_PROGRESS, &[&run_id.0]).await?;
    Ok(PlacementProgress::new(&row))
}
