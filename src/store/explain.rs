//! What `runherd explain` reads: the facts of one run, from every database that has something of it.
//!
//! Every statement is bounded by the run: its row, its cursors, its chunks in flight. Times are milliseconds from now by the
//! clock of the database they are stored in. A placement that cannot be read is a fact, not an error. What the facts mean is not
//! known here; that is [`crate::explain`].

use tokio_postgres::Row;
use uuid::Uuid;

use super::query::{Query, query};
use super::verify::Installation;
use super::{Database, StoreError};
use crate::telemetry::error_chain;
use runherd_actors::model::Totals;

const RUN: Query = query!("explain/run");
const INTENTS: Query = query!("explain/intents");
const COORDINATORS: Query = query!("explain/coordinators");
const PLACEMENTS: Query = query!("explain/placements");
const RUN_EVENTS: Query = query!("explain/run_events");
const PLACEMENT: Query = query!("explain/placement");
const FULL_SHARDS: Query = query!("explain/full_shards");
const EVENTS: Query = query!("explain/events");

/// A coordinator that was not seen for longer counts as dead.
pub const COORDINATOR_ALIVE_MS: i64 = 30_000;

/// The facts of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The run's row.
    pub run: RunRow,
    /// What was asked for and is not applied.
    pub intents: Vec<Intent>,
    /// Who coordinates.
    pub coordinators: Coordinators,
    /// Where the run is.
    pub placements: Vec<PlacementRow>,
    /// The run's own events.
    pub run_events: Events,
}

/// What the control database says of the run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the columns of runherd.runs, under their names")]
pub struct RunRow {
    pub run_id: Uuid,
    pub name: String,
    pub queue: String,
    pub status: String,
    pub paused: bool,
    pub reason: Option<String>,
    pub sealed: bool,
    pub shard_count: i32,
    pub chunk_count: Option<i64>,
    pub tolerated_failures: Option<i64>,
    pub totals: Totals,
    pub created_ms_ago: i64,
    pub finished_ms_ago: Option<i64>,
    pub finished_at: Option<String>,
    /// Until the creation lease expires; negative when it has.
    pub creation_lease_ms: i64,
    pub deadline_in_ms: Option<i64>,
    /// Parts and chunks that an unsealed run has so far.
    pub parts: i64,
    pub part_chunks: i64,
    /// Until the finalizer looks at the run again; negative when it is late, `None` when it waits for a signal.
    pub look_in_ms: Option<i64>,
    /// A finalizer holds the run for so long.
    pub finalizer_lease_ms: Option<i64>,
}

/// Something that was asked for a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the columns of runherd.run_intents, under their names")]
pub struct Intent {
    pub intent: String,
    pub requested_by: String,
    pub reason: Option<String>,
    pub ms_ago: i64,
}

/// Who coordinates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coordinators {
    /// Coordinators that registered.
    pub known: i64,
    /// Those that were seen within [`COORDINATOR_ALIVE_MS`].
    pub alive: i64,
    /// When the last one was seen.
    pub last_seen_ms_ago: Option<i64>,
    /// On which host.
    pub last_host: Option<String>,
}

/// One placement of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementRow {
    /// Its name.
    pub name: String,
    /// `active`, `draining` or `offline`.
    pub state: String,
    /// Whether it is recorded as seeded.
    pub seeded: bool,
    /// Chunks that it must hold.
    pub expected_chunks: i64,
    /// Seeding it again was asked for, so long ago.
    pub reseed_ms_ago: Option<i64>,
    /// Cursors with chunks to hand out.
    pub open: i64,
    /// Cursors that are handed out and not marked drained.
    pub exhausted: i64,
    /// Cursors of which every chunk is finished.
    pub drained: i64,
    /// Chunks to hand out.
    pub to_hand_out: i64,
    /// Cursors that a dispatcher holds.
    pub claimed: i64,
    /// Cursors that are due and that no dispatcher holds, and for how long the first of them has been.
    pub due: i64,
    /// See `due`.
    pub due_for_ms: Option<i64>,
    /// What the placement itself says, or why it cannot be read.
    pub here: Result<Here, Unreadable>,
    /// Changes whenever a cursor moves.
    pub progress: String,
}

/// Why a placement cannot be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Unreadable {
    /// This configuration does not say where it is.
    #[default]
    NotConfigured,
    /// It cannot be reached from here, or is not what it should be.
    Unreachable(String),
}

/// What a placement says of the run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Here {
    /// `open`, `cancelled` or `closed`; `None` without a guard.
    pub guard: Option<String>,
    /// What a cancelled guard means.
    pub guard_outcome: Option<String>,
    /// The window of each shard.
    pub window: i32,
    /// Chunks in the parts that are here.
    pub seeded_chunks: i64,
    /// Chunks by the positions.
    pub chunks: i64,
    /// Of these, handed out.
    pub handed_out: i64,
    /// Of these, counted as finished.
    pub finished: i64,
    /// Shards marked drained.
    pub drained: i64,
    /// Chunks handed out and not finished.
    pub in_flight: i64,
    /// Of these, under a lease; and until when the last one lasts.
    pub leased: i64,
    /// See `leased`.
    pub lease_ms: Option<i64>,
    /// Of these, under a lease that has expired; and since when the first has.
    pub expired: i64,
    /// See `expired`.
    pub expired_for_ms: Option<i64>,
    /// Of these, waiting for a time; and how long the first must wait.
    pub waiting: i64,
    /// See `waiting`.
    pub ready_in_ms: Option<i64>,
    /// Of these, ready and not leased; and for how long the first has been.
    pub unleased: i64,
    /// See `unleased`.
    pub unleased_for_ms: Option<i64>,
    /// A full shard.
    pub full: Option<FullShard>,
    /// The events that announce what is ready and not leased.
    pub events: Events,
    /// Changes whenever a chunk is seeded, handed out, leased, given back or finished.
    pub progress: String,
}

/// The first of the shards whose window is full.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FullShard {
    /// How many are full.
    pub shards: i64,
    /// The first of them.
    pub run_shard: i32,
    /// Its chunks in flight.
    pub in_flight: i64,
    /// Its window.
    pub window: i32,
    /// Its oldest lease.
    pub oldest: Option<Lease>,
}

/// A lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the columns of runherd.active_chunks, under their names")]
pub struct Lease {
    pub chunk_no: i64,
    pub worker_id: String,
    pub held_for_ms: i64,
    /// Negative when it has expired.
    pub lease_ms: i64,
}

/// Events of the run in one database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// To be published.
    pub pending: i64,
    /// Of these and the parked ones, in the hands of a publisher.
    pub claimed: i64,
    /// Given up for now: retried at a slow pace.
    pub parked: i64,
    /// The age of the oldest that is not published.
    pub oldest_ms: Option<i64>,
    /// Published, and their chunks not leased since.
    pub published: i64,
    /// When the first of these was published.
    pub published_ms_ago: Option<i64>,
    /// Why the one that failed most often did.
    pub last_error: Option<String>,
}

impl Facts {
    /// What changes whenever the run moves.
    #[must_use]
    pub fn progress(&self) -> Vec<&str> {
        let mut progress = vec![self.run.status.as_str()];
        for placement in &self.placements {
            progress.push(&placement.progress);
            progress.extend(placement.here.as_ref().ok().map(|here| here.progress.as_str()));
        }
        progress
    }
}

/// Reads the facts of a run; `None` when it is not there.
///
/// # Errors
/// The control database cannot be read.
pub async fn read(installation: &Installation, run: Uuid) -> Result<Option<Facts>, StoreError> {
    let control = &installation.control;
    let Some(row) = control.query_opt(&RUN, &[&run]).await? else { return Ok(None) };
    let coordinators = control.query_one(&COORDINATORS, &[&COORDINATOR_ALIVE_MS]).await?;
    let mut facts = Facts {
        run: run_row(run, &row),
        intents: control.query(&INTENTS, &[&run]).await?.iter().map(intent).collect(),
        coordinators: Coordinators {
            known: coordinators.get("known"),
            alive: coordinators.get("alive"),
            last_seen_ms_ago: coordinators.get("last_seen_ms_ago"),
            last_host: coordinators.get("last_host"),
        },
        placements: Vec::new(),
        run_events: events(&control.query_one(&RUN_EVENTS, &[&run]).await?),
    };
    for row in control.query(&PLACEMENTS, &[&run]).await? {
        let placement_id: i32 = row.get("placement_id");
        let known = installation.placements.iter().find(|placement| placement.placement_id == placement_id);
        let (name, state) =
            known.map_or_else(Default::default, |placement| (placement.name.clone(), placement.state.clone()));
        let here = match known.and_then(|placement| placement.database.as_ref()) {
            Some(database) => here(database, run).await.map_err(|error| Unreadable::Unreachable(error_chain(&error))),
            None => Err(Unreadable::NotConfigured),
        };
        facts.placements.push(placement_row(&row, name, state, here));
    }
    Ok(Some(facts))
}

async fn here(placement: &Database, run: Uuid) -> Result<Here, StoreError> {
    let row = placement.query_one(&PLACEMENT, &[&run]).await?;
    let full = placement.query_opt(&FULL_SHARDS, &[&run]).await?;
    let announced = placement.query_one(&EVENTS, &[&run]).await?;
    Ok(Here {
        guard: row.get("guard_status"),
        guard_outcome: row.get("guard_outcome"),
        window: row.get("dispatch_window"),
        seeded_chunks: row.get("seeded_chunks"),
        chunks: row.get("chunks"),
        handed_out: row.get("handed_out"),
        finished: row.get("finished"),
        drained: row.get("drained"),
        in_flight: row.get("in_flight"),
        leased: row.get("leased"),
        lease_ms: row.get("lease_ms"),
        expired: row.get("expired"),
        expired_for_ms: row.get("expired_for_ms"),
        waiting: row.get("waiting"),
        ready_in_ms: row.get("ready_in_ms"),
        unleased: row.get("unleased"),
        unleased_for_ms: row.get("unleased_for_ms"),
        full: full.as_ref().map(full_shard),
        events: events(&announced),
        progress: row.get("progress"),
    })
}

fn run_row(run_id: Uuid, row: &Row) -> RunRow {
    RunRow {
        run_id,
        name: row.get("name"),
        queue: row.get("queue"),
        status: row.get("status"),
        paused: row.get("paused"),
        reason: row.get("reason"),
        sealed: row.get("sealed"),
        shard_count: row.get("shard_count"),
        chunk_count: row.get("chunk_count"),
        tolerated_failures: row.get("tolerated_failures"),
        totals: Totals {
            succeeded: row.get("succeeded"),
            failed: row.get("failed"),
            cancelled: row.get("cancelled"),
            lost: row.get("lost"),
        },
        created_ms_ago: row.get("created_ms_ago"),
        finished_ms_ago: row.get("finished_ms_ago"),
        finished_at: row.get("finished_at"),
        creation_lease_ms: row.get("creation_lease_ms"),
        deadline_in_ms: row.get("deadline_in_ms"),
        parts: row.get("parts"),
        part_chunks: row.get("part_chunks"),
        look_in_ms: row.get("look_in_ms"),
        finalizer_lease_ms: row.get("finalizer_lease_ms"),
    }
}

fn intent(row: &Row) -> Intent {
    Intent {
        intent: row.get("intent"),
        requested_by: row.get("requested_by"),
        reason: row.get("reason"),
        ms_ago: row.get("ms_ago"),
    }
}

fn placement_row(row: &Row, name: String, state: String, here: Result<Here, Unreadable>) -> PlacementRow {
    PlacementRow {
        name,
        state,
        seeded: row.get("seeded"),
        expected_chunks: row.get("expected_chunks"),
        reseed_ms_ago: row.get("reseed_ms_ago"),
        open: row.get("open"),
        exhausted: row.get("exhausted"),
        drained: row.get("drained"),
        to_hand_out: row.get("to_hand_out"),
        claimed: row.get("claimed"),
        due: row.get("due"),
        due_for_ms: row.get("due_for_ms"),
        here,
        progress: row.get("progress"),
    }
}

fn full_shard(row: &Row) -> FullShard {
    let oldest = row.get::<_, Option<i64>>("chunk_no").map(|chunk_no| Lease {
        chunk_no,
        worker_id: row.get::<_, Option<String>>("worker_id").unwrap_or_default(),
        held_for_ms: row.get::<_, Option<i64>>("held_for_ms").unwrap_or_default(),
        lease_ms: row.get::<_, Option<i64>>("lease_ms").unwrap_or_default(),
    });
    FullShard {
        shards: row.get("full_shards"),
        run_shard: row.get("run_shard"),
        in_flight: row.get("in_flight"),
        window: row.get("dispatch_window"),
        oldest,
    }
}

fn events(row: &Row) -> Events {
    Events {
        pending: row.get("pending"),
        claimed: row.get("claimed"),
        parked: row.get("parked"),
        oldest_ms: row.get("oldest_ms"),
        published: row.get("published"),
        published_ms_ago: row.get("published_ms_ago"),
        last_error: row.get("last_error"),
    }
}
