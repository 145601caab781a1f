//! PostgreSQL: one [`Database`] for each database, and one file for each stage's adapter.
//!
//! Every statement runs through [`Database`]: sessions that bound themselves, connections that prove which database they
//! reached, and the one place that retries deadlocks and serialization failures. No transaction crosses a call to another
//! database, and nobody here holds two connections.

pub mod client;
pub mod creation_recovery;
pub mod error;
pub mod explain;
pub mod finalizer;
pub mod lease_recovery;
pub mod migrate;
pub mod outbox_publisher;
pub mod pool;
pub mod presence;
pub mod query;
pub mod reporting;
pub mod results;
pub mod session;
pub mod shard_dispatcher;

use std::time::Duration;

use runherd_actors::model::{RunStatus, Totals};
use runherd_actors::runtime::report::StageError;
pub mod verify;
pub mod worker;

pub use error::StoreError;
pub use pool::{Database, Identity};
pub use query::Query;
pub use session::SessionSettings;
pub use tokio_postgres::Row;

/// Has an adapter list its placements through its router.
macro_rules! routes_placements {
    ($adapter:ty) => {
        #[async_trait::async_trait]
        impl runherd_actors::stages::placements::PlacementSource for $adapter {
            async fn placements(
                &self,
            ) -> Result<runherd_actors::stages::placements::Placements, runherd_actors::runtime::report::StageError>
            {
                self.router.placements().await
            }
        }
    };
}
use routes_placements;

/// A duration as a statement's parameter, in milliseconds.
fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// A column that counts something.
fn count(row: &Row, column: &str) -> u64 {
    row.get::<_, i64>(column).max(0).unsigned_abs()
}

/// The four columns that count how chunks ended.
fn totals(row: &Row) -> Totals {
    Totals {
        succeeded: row.get("succeeded"),
        failed: row.get("failed"),
        cancelled: row.get("cancelled"),
        lost: row.get("lost"),
    }
}

/// A column that holds a run's status.
fn status(row: &Row, column: &str) -> Result<RunStatus, StageError> {
    row.get::<_, &str>(column).parse().map_err(|error| StageError::failed("reading a run's status", error))
}
