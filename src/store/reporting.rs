//! reporting's adapter: backlogs, by bounded queries over live rows.

use super::query::{Query, query};
use super::{Database, StoreError, count};

const BACKLOG: Query = query!("reporting/backlog");
const OUTBOX: Query = query!("reporting/outbox");

/// Rows of a delivery queue beyond which it is not counted on.
const OUTBOX_LIMIT: i64 = 1_000_000;

/// What waits in the control database.
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
}

/// What waits in one database's outbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutboxBacklog {
    /// Rows of the delivery queue; at most a million are counted.
    pub outbox_backlog: u64,
    /// Parked ones among them.
    pub outbox_parked: u64,
    /// For how long the oldest due one has waited, in milliseconds.
    pub outbox_lag_ms: u64,
}

/// Reads the control database's backlogs.
///
/// # Errors
/// See [`StoreError`].
pub async fn backlog(control: &Database) -> Result<Backlog, StoreError> {
    let row = control.query_one(&BACKLOG, &[]).await?;
    Ok(Backlog {
        dispatch_backlog: count(&row, "dispatch_backlog"),
        dispatch_cursors: count(&row, "dispatch_cursors"),
        creating_runs: count(&row, "creating_runs"),
        finalization_backlog: count(&row, "finalization_backlog"),
        finalization_lag_ms: count(&row, "finalization_lag_ms"),
    })
}

/// Reads one database's outbox backlog.
///
/// # Errors
/// See [`StoreError`].
pub async fn outbox(database: &Database) -> Result<OutboxBacklog, StoreError> {
    let row = database.query_one(&OUTBOX, &[&OUTBOX_LIMIT]).await?;
    Ok(OutboxBacklog {
        outbox_backlog: count(&row, "outbox_backlog"),
        outbox_parked: count(&row, "outbox_parked"),
        outbox_lag_ms: count(&row, "outbox_lag_ms"),
    })
}
