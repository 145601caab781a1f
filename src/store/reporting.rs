//! reporting's adapter: backlogs, by bounded queries over live rows.

use super::query::{Query, query};
use super::{Database, StoreError, count};

const BACKLOG: Query = query!("reporting/backlog");
const PLACEMENT: Query = query!("reporting/placement");

/// Rows of one kind beyond which it is not counted on.
const LIMIT: i64 = 1_000_000;

/// What waits in the control database. Of each kind at most a million rows are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Chunks seeded and not handed out.
    pub dispatch_backlog: u64,
    /// Cursors with such chunks.
    pub dispatch_cursors: u64,
    /// Runs being created.
    pub creating_runs: u64,
    /// Runs that are due for the finalizer.
    pub finalization_backlog: u64,
    /// For how long the oldest of them has been, in milliseconds.
    pub finalization_lag_ms: u64,
    /// For how long the oldest sealed run has waited to be seeded, in milliseconds.
    pub oldest_unseeded_ms: u64,
    /// For how long the oldest due cursor of a run that is not held has waited, in milliseconds.
    pub oldest_undispatched_ms: u64,
    /// For how long the oldest run has waited for a look that is due, the application of an intent, or the closing of its
    /// guards after its end, in milliseconds.
    pub oldest_unfinalized_ms: u64,
}

/// What waits on one placement. Of each kind at most a million rows are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Rows of the delivery queue.
    pub outbox_backlog: u64,
    /// Parked ones among them.
    pub outbox_parked: u64,
    /// For how long the oldest due one has waited, in milliseconds.
    pub outbox_lag_ms: u64,
    /// Chunks that are handed out and not finished.
    pub chunks_in_flight: u64,
    /// Those that are leased.
    pub chunks_leased: u64,
    /// For how long the oldest of the others has been ready, in milliseconds.
    pub oldest_unleased_ms: u64,
}

/// Reads the control database's backlogs.
///
/// # Errors
/// See [`StoreError`].
pub async fn backlog(control: &Database) -> Result<Backlog, StoreError> {
    let row = control.query_one(&BACKLOG, &[&LIMIT]).await?;
    Ok(Backlog {
        dispatch_backlog: count(&row, "dispatch_backlog"),
        dispatch_cursors: count(&row, "dispatch_cursors"),
        creating_runs: count(&row, "creating_runs"),
        finalization_backlog: count(&row, "finalization_backlog"),
        finalization_lag_ms: count(&row, "finalization_lag_ms"),
        oldest_unseeded_ms: count(&row, "oldest_unseeded_ms"),
        oldest_undispatched_ms: count(&row, "oldest_undispatched_ms"),
        oldest_unfinalized_ms: count(&row, "oldest_unfinalized_ms"),
    })
}

/// Reads what waits on one placement.
///
/// # Errors
/// See [`StoreError`].
pub async fn placement(database: &Database) -> Result<Waiting, StoreError> {
    let row = database.query_one(&PLACEMENT, &[&LIMIT]).await?;
    Ok(Waiting {
        outbox_backlog: count(&row, "outbox_backlog"),
        outbox_parked: count(&row, "outbox_parked"),
        outbox_lag_ms: count(&row, "outbox_lag_ms"),
        chunks_in_flight: count(&row, "chunks_in_flight"),
        chunks_leased: count(&row, "chunks_leased"),
        oldest_unleased_ms: count(&row, "oldest_unleased_ms"),
    })
}
