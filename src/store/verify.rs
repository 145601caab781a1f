//! What `runherd verify` reads: facts of runs, shards and outboxes, counted where they lie.
//!
//! Every fact of one database comes from one statement or one REPEATABLE READ, READ ONLY transaction, so that nothing in it is
//! a transition. Answers are bounded by what was asked for: a page of runs, a page of shards, a few groups of events. What the
//! facts mean is not known here; that is [`crate::verify`].

use std::collections::BTreeMap;

use tokio_postgres::{IsolationLevel, Row};
use uuid::Uuid;

use super::query::{Query, query};
use super::{Database, Identity, SessionSettings, StoreError};
use crate::config::CONTROL;
use runherd_actors::model::Totals;

const PLACEMENTS: Query = query!("verify/placements");
const RUNS: Query = query!("verify/runs");
const CURSORS: Query = query!("verify/cursors");
const SHARDS: Query = query!("verify/shards");
const OUTBOX: Query = query!("verify/outbox");
const OUTBOX_OF_RUN: Query = query!("verify/outbox_of_run");

/// Every database of one installation, each under the identity that the control database gives it.
#[derive(Debug)]
pub struct Installation {
    /// The control database.
    pub control: Database,
    /// The placements that the control database knows, the control database among them.
    pub placements: Vec<Placement>,
    /// Placements that are configured, and that the control database does not know.
    pub unregistered: Vec<String>,
}

/// One placement.
#[derive(Debug)]
pub struct Placement {
    /// Its number.
    pub placement_id: i32,
    /// Its name.
    pub name: String,
    /// `active`, `draining` or `offline`.
    pub state: String,
    /// Its database; `None` where the configuration does not say how to reach it.
    pub database: Option<Database>,
}

impl Installation {
    /// Asks the control database which placements there are. `databases` are those of the configuration, control first.
    ///
    /// # Errors
    /// The control database cannot be reached or has no schema.
    pub async fn open(
        databases: &[(String, tokio_postgres::Config)],
        settings: &SessionSettings,
    ) -> Result<Self, StoreError> {
        let mut connections: BTreeMap<&str, &tokio_postgres::Config> =
            databases.iter().map(|(name, connection)| (name.as_str(), connection)).collect();
        let connection = connections.get(CONTROL).copied().cloned().unwrap_or_default();
        let control = Database::new(CONTROL, connection, settings, None)?;
        let mut placements = Vec::new();
        for row in control.query(&PLACEMENTS, &[]).await? {
            let (placement_id, name): (i32, String) = (row.get("placement_id"), row.get("name"));
            let identity = Identity { installation_id: row.get("installation_id"), placement_id };
            let connection = connections.remove(name.as_str());
            let open = |connection: &tokio_postgres::Config| {
                Database::new(&name, connection.clone(), settings, Some(identity))
            };
            let database = connection.map(open).transpose()?;
            placements.push(Placement { placement_id, name, state: row.get("state"), database });
        }
        let unregistered = connections.into_keys().map(str::to_owned).collect();
        Ok(Self { control, placements, unregistered })
    }
}

/// What the control database says of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunFacts {
    /// The run.
    pub run_id: Uuid,
    /// Its status, by name.
    pub status: String,
    /// Whether its client sealed it.
    pub sealed: bool,
    /// The shards it was submitted with.
    pub shard_count: i32,
    /// The chunks it was sealed with.
    pub chunk_count: Option<i64>,
    /// The totals stored when it ended.
    pub totals: Totals,
    /// Placements that it is recorded on, with the chunks that each must hold.
    pub expected: BTreeMap<i32, i64>,
    /// How many of these are not recorded as seeded.
    pub unseeded: i64,
    /// Finished events in the ledger.
    pub finished_events: i64,
    /// Its cursors by shard.
    pub cursors: BTreeMap<i32, CursorFacts>,
}

impl RunFacts {
    /// Whether the run has ended.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        matches!(self.status.as_str(), "succeeded" | "failed" | "cancelled")
    }
}

/// What the control database says of one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CursorFacts {
    /// Where its chunks are.
    pub placement_id: i32,
    /// How many it has.
    pub chunk_count: i64,
    /// Its placement was given up: all its chunks are lost.
    pub given_up: bool,
}

/// Some chunks of a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many.
    pub count: i64,
    /// The lowest number among them.
    pub first: Option<i64>,
}

/// What a placement says of one shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardFacts {
    /// The run.
    pub run_id: Uuid,
    /// The shard.
    pub run_shard: i32,
    /// The run's guard here.
    pub guard: Option<String>,
    /// The guard's window.
    pub window: Option<i32>,
    /// Whether any shard of the run has a position here.
    pub run_has_positions: bool,
    /// Chunks in the parts that are recorded here.
    pub part_chunks: i64,
    /// Chunks by the shard's position; `None` without a position.
    pub chunk_count: Option<i64>,
    /// Chunks handed out.
    pub next_chunk_no: i64,
    /// Chunks known to be finished.
    pub low_chunk_no: i64,
    /// The position's totals.
    pub low_totals: Totals,
    /// Chunk rows below the low mark, by how they ended.
    pub counted: Totals,
    /// Chunk rows.
    pub chunks: i64,
    /// Whether they are numbered from 0 without a gap.
    pub numbered: bool,
    /// Chunk rows by how they ended.
    pub totals: Totals,
    /// Open chunks.
    pub open: Tally,
    /// Open chunks below the position without an active row.
    pub forgotten: Tally,
    /// Open chunks with an active row that were not handed out.
    pub early: Tally,
    /// Finished chunks with an active row.
    pub undead: Tally,
    /// Chunks whose fields do not go with their status.
    pub wrong_fields: Tally,
    /// Active rows.
    pub active: Tally,
    /// Active rows without a chunk.
    pub stray: Tally,
}

/// A group of ledger events or queue rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventGroup {
    /// What is wrong with them; `None` when nothing is.
    pub fault: Option<String>,
    /// Which of the groups of this fault it is.
    pub bucket: i64,
    /// How many.
    pub events: i64,
    /// How many of them are published.
    pub published: i64,
    /// The dedupe key of one of them, the lowest.
    pub first_name: String,
}

/// Reads a page of runs after `after` with their cursors, in one snapshot; with `only`, those runs and no others.
///
/// # Errors
/// See [`StoreError`].
pub async fn read_runs(
    control: &Database,
    after: Uuid,
    limit: i64,
    only: Option<&[Uuid]>,
) -> Result<Vec<RunFacts>, StoreError> {
    let sort = |error| StoreError::from_driver(control.name(), RUNS.name, error);
    let mut client = control.client(RUNS.name).await?;
    let snapshot = client.build_transaction().isolation_level(IsolationLevel::RepeatableRead).read_only(true);
    let tx = snapshot.start().await.map_err(sort)?;
    let statement = tx.prepare_cached(RUNS.text).await.map_err(sort)?;
    let rows = tx.query(&statement, &[&after, &limit, &only]).await.map_err(sort)?;
    let mut runs: Vec<RunFacts> = rows.iter().map(run_facts).collect();
    let ids: Vec<Uuid> = runs.iter().map(|run| run.run_id).collect();
    let statement = tx.prepare_cached(CURSORS.text).await.map_err(sort)?;
    let cursors = tx.query(&statement, &[&ids]).await.map_err(sort)?;
    tx.commit().await.map_err(sort)?;
    for row in &cursors {
        // The runs are in the order of their identifiers.
        let Ok(at) = ids.binary_search(&row.get("run_id")) else { continue };
        let cursor = CursorFacts {
            placement_id: row.get("placement_id"),
            chunk_count: row.get("chunk_count"),
            given_up: row.get("given_up"),
        };
        runs[at].cursors.insert(row.get("run_shard"), cursor);
    }
    Ok(runs)
}

/// Counts these shards on a placement: one answer for each.
///
/// # Errors
/// See [`StoreError`].
pub async fn read_shards(placement: &Database, keys: &[(Uuid, i32)]) -> Result<Vec<ShardFacts>, StoreError> {
    let (runs, shards): (Vec<Uuid>, Vec<i32>) = keys.iter().copied().unzip();
    let rows = placement.query(&SHARDS, &[&runs, &shards]).await?;
    Ok(rows.iter().map(shard_facts).collect())
}

/// Compares the ledger with the delivery queue; of one run only, if asked.
///
/// # Errors
/// See [`StoreError`].
pub async fn read_outbox(database: &Database, run: Option<Uuid>) -> Result<Vec<EventGroup>, StoreError> {
    let rows = match run {
        Some(run) => database.query(&OUTBOX_OF_RUN, &[&run]).await?,
        None => database.query(&OUTBOX, &[]).await?,
    };
    Ok(rows.iter().map(event_group).collect())
}

fn run_facts(row: &Row) -> RunFacts {
    let placements: Vec<i32> = row.get("placement_ids");
    let expected: Vec<i64> = row.get("expected_chunks");
    RunFacts {
        run_id: row.get("run_id"),
        status: row.get("status"),
        sealed: row.get("sealed"),
        shard_count: row.get("shard_count"),
        chunk_count: row.get("chunk_count"),
        totals: totals(row, ""),
        expected: placements.into_iter().zip(expected).collect(),
        unseeded: row.get("unseeded"),
        finished_events: row.get("finished_events"),
        cursors: BTreeMap::new(),
    }
}

fn shard_facts(row: &Row) -> ShardFacts {
    ShardFacts {
        run_id: row.get("run_id"),
        run_shard: row.get("run_shard"),
        guard: row.get("guard_status"),
        window: row.get("dispatch_window"),
        run_has_positions: row.get("has_positions"),
        part_chunks: row.get("part_chunks"),
        chunk_count: row.get("chunk_count"),
        next_chunk_no: row.get("next_chunk_no"),
        low_chunk_no: row.get("low_chunk_no"),
        low_totals: totals(row, "low_"),
        counted: totals(row, "counted_"),
        chunks: row.get("chunks"),
        numbered: row.get("numbered"),
        totals: totals(row, ""),
        open: tally(row, "open"),
        forgotten: tally(row, "forgotten"),
        early: tally(row, "early"),
        undead: tally(row, "undead"),
        wrong_fields: tally(row, "wrong_fields"),
        active: tally(row, "active"),
        stray: tally(row, "stray"),
    }
}

fn event_group(row: &Row) -> EventGroup {
    EventGroup {
        fault: row.get("fault"),
        bucket: row.get("bucket"),
        events: row.get("events"),
        published: row.get("published"),
        first_name: row.get("first_name"),
    }
}

fn totals(row: &Row, prefix: &str) -> Totals {
    let of = |name: &str| row.get(format!("{prefix}{name}").as_str());
    Totals { succeeded: of("succeeded"), failed: of("failed"), cancelled: of("cancelled"), lost: of("lost") }
}

fn tally(row: &Row, name: &str) -> Tally {
    Tally { count: row.get(name), first: row.get(format!("first_{name}").as_str()) }
}
