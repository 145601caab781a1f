//! What a client reads of runs: plain data, as the databases gave it.

use std::time::{Duration, SystemTime};

use runherd_actors::model::{RunId, RunStatus, Totals};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_postgres::Row;
use tokio_postgres::types::Json;

use crate::store::totals;

/// One line of the list of runs.
#[derive(Clone, Debug, Serialize)]
pub struct RunSummary {
    /// The run.
    pub run_id: RunId,
    /// What its client called it.
    pub name: String,
    /// Its queue.
    pub queue: String,
    /// Where it stands.
    pub status: RunStatus,
    /// Whether hand-out is stopped.
    pub paused: bool,
    /// What was asked for and is not applied yet: `cancel`, `fail`, `pause`.
    pub intents: Vec<String>,
    /// Higher goes first.
    pub priority: i32,
    /// Its chunks; `None` until it is sealed.
    pub chunks: Option<i64>,
    /// Chunks that were handed out, as the cursors know.
    pub handed_out: i64,
    /// The final totals; zeros until the run has ended.
    pub totals: Totals,
    /// Why it failed or was cancelled.
    pub reason: Option<String>,
    /// When it was begun.
    #[serde(with = "humantime_serde")]
    pub created_at: SystemTime,
    /// When its first chunk was handed out.
    #[serde(with = "humantime_serde")]
    pub started_at: Option<SystemTime>,
    /// When it ended.
    #[serde(with = "humantime_serde")]
    pub finished_at: Option<SystemTime>,
    /// When it fails if it has not ended by then.
    #[serde(with = "humantime_serde")]
    pub deadline_at: Option<SystemTime>,
    /// How long ago it was begun, by the database's clock.
    #[serde(skip)]
    pub age: Duration,
}

impl RunSummary {
    pub(super) fn new(row: &Row, status: RunStatus) -> Self {
        Self {
            run_id: RunId(row.get("run_id")),
            name: row.get("name"),
            queue: row.get("queue"),
            status,
            paused: row.get("paused"),
            intents: row.get("intents"),
            priority: row.get("priority"),
            chunks: row.get("chunk_count"),
            handed_out: row.get("handed_out"),
            totals: totals(row),
            reason: row.get("reason"),
            created_at: row.get("created_at"),
            started_at: row.get("started_at"),
            finished_at: row.get("finished_at"),
            deadline_at: row.get("deadline_at"),
            age: duration(row.get("age_ms")),
        }
    }
}

/// Something that was asked of a run and is not applied yet.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct IntentView {
    /// `cancel`, `fail` or `pause`.
    pub intent: String,
    /// The database role, or the stage.
    pub requested_by: String,
    /// Why.
    pub reason: Option<String>,
    /// How long it has waited, in milliseconds.
    pub waiting_ms: i64,
}

/// One run, as the control database knows it.
#[derive(Clone, Debug, Serialize)]
pub struct RunView {
    /// The run.
    pub run_id: RunId,
    /// The key it was submitted under.
    pub idempotency_key: Option<String>,
    /// What its client called it.
    pub name: String,
    /// Its queue.
    pub queue: String,
    /// Where it stands.
    pub status: RunStatus,
    /// Why it failed or was cancelled.
    pub reason: Option<String>,
    /// Whether hand-out is stopped.
    pub paused: bool,
    /// What was asked for and is not applied yet.
    pub intents: Vec<IntentView>,
    /// Higher goes first.
    pub priority: i32,
    /// What the run states about its own treatment.
    pub policy: Value,
    /// The most failed chunks with which it still succeeds; one more stops it. `None`: it goes on to its end, and any failed chunk
    /// makes it fail then.
    pub tolerated_failures: Option<i64>,
    /// Its shards.
    pub shards: i32,
    /// Its parts; `None` until it is sealed.
    pub parts: Option<i32>,
    /// Its chunks; `None` until it is sealed.
    pub chunks: Option<i64>,
    /// When it was begun.
    #[serde(with = "humantime_serde")]
    pub created_at: SystemTime,
    /// When its list of chunks was complete.
    #[serde(with = "humantime_serde")]
    pub sealed_at: Option<SystemTime>,
    /// When its first chunk was handed out.
    #[serde(with = "humantime_serde")]
    pub started_at: Option<SystemTime>,
    /// When it ended.
    #[serde(with = "humantime_serde")]
    pub finished_at: Option<SystemTime>,
    /// When it fails if it has not ended by then.
    #[serde(with = "humantime_serde")]
    pub deadline_at: Option<SystemTime>,
    /// From its start to its end, or to now, in milliseconds by the database's clock.
    pub running_ms: Option<i64>,
    /// The final totals; zeros until the run has ended.
    pub totals: Totals,
    /// Its placements, by name.
    pub placements: Vec<PlacementView>,
}

impl RunView {
    pub(super) fn new(row: &Row, status: RunStatus, placements: Vec<PlacementView>) -> Self {
        let intents: Json<Vec<IntentView>> = row.get("intents");
        Self {
            run_id: RunId(row.get("run_id")),
            idempotency_key: row.get("idempotency_key"),
            name: row.get("name"),
            queue: row.get("queue"),
            status,
            reason: row.get("reason"),
            paused: row.get("paused"),
            intents: intents.0,
            priority: row.get("priority"),
            policy: row.get("policy"),
            tolerated_failures: row.get("tolerated_failures"),
            shards: row.get("shard_count"),
            parts: row.get("part_count"),
            chunks: row.get("chunk_count"),
            created_at: row.get("created_at"),
            sealed_at: row.get("sealed_at"),
            started_at: row.get("started_at"),
            finished_at: row.get("finished_at"),
            deadline_at: row.get("deadline_at"),
            running_ms: row.get("running_ms"),
            totals: totals(row),
            placements,
        }
    }
}

/// One placement of a run, as the control database knows it.
#[derive(Clone, Debug, Serialize)]
pub struct PlacementView {
    /// Its name in the configuration.
    pub name: String,
    /// The run's chunks there.
    pub chunks: i64,
    /// Whether all of them are seeded.
    pub seeded: bool,
    /// Whether a failover lost some of them, and they are to be seeded again.
    pub reseeding: bool,
    /// Its dispatch cursors.
    pub shards: i64,
    /// Those with chunks still to hand out.
    pub open: i64,
    /// Those with everything handed out.
    pub exhausted: i64,
    /// Those with everything finished.
    pub drained: i64,
    /// Chunks handed out, a little behind the placement.
    pub handed_out: i64,
    /// Totals of the drained shards.
    pub totals: Totals,
}

impl PlacementView {
    pub(super) fn new(row: &Row) -> Self {
        Self {
            name: row.get("name"),
            chunks: row.get("chunks"),
            seeded: row.get("seeded"),
            reseeding: row.get("reseeding"),
            shards: row.get("shards"),
            open: row.get("open"),
            exhausted: row.get("exhausted"),
            drained: row.get("drained"),
            handed_out: row.get("handed_out"),
            totals: totals(row),
        }
    }
}

/// How far a run has come on one placement, as the placement knows it.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct PlacementProgress {
    /// Whether the guard is open (or not there yet); false once the run is stopped or over.
    pub guard_open: bool,
    /// Shards with a position.
    pub shards: i64,
    /// Those in which everything is finished.
    pub drained: i64,
    /// Chunks seeded.
    pub seeded: i64,
    /// Chunks handed out.
    pub handed_out: i64,
    /// Chunks handed out and not finished.
    pub in_flight: i64,
    /// Those that a worker holds.
    pub leased: i64,
    /// Chunks finished.
    pub finished: i64,
    /// Of these, failed ones.
    pub failed: i64,
    /// Of these, cancelled ones.
    pub cancelled: i64,
    /// Of these, lost ones.
    pub lost: i64,
}

impl PlacementProgress {
    pub(super) fn new(row: &Row) -> Self {
        Self {
            guard_open: row.get("guard_open"),
            shards: row.get("shards"),
            drained: row.get("drained"),
            seeded: row.get("seeded"),
            handed_out: row.get("handed_out"),
            in_flight: row.get("in_flight"),
            leased: row.get("leased"),
            finished: row.get("finished"),
            failed: row.get("failed"),
            cancelled: row.get("cancelled"),
            lost: row.get("lost"),
        }
    }
}

fn duration(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}
