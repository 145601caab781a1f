//! lease_recovery's adapter.

use std::time::Duration;

use async_trait::async_trait;
use runherd_actors::model::{ChunkKey, PlacementId, RunId};
use runherd_actors::runtime::report::StageError;
use runherd_actors::stages::lease_recovery::{ExpiredSweep, LeaseRecoveryPort, UnleasedSweep};
use tokio_postgres::Row;

use super::query::{Query, query};
use super::{count, millis, routes_placements};
use crate::router::SharedRouter;

const SWEEP_EXPIRED: Query = query!("lease_recovery/sweep_expired");
const SWEEP_UNLEASED: Query = query!("lease_recovery/sweep_unleased");

/// Recovers leases in PostgreSQL.
#[derive(Debug)]
pub struct LeaseRecoveryStore {
    /// Routes.
    pub router: SharedRouter,
    /// Expired leases (and overdue events) taken up in a sweep.
    pub batch: u32,
    /// Active chunks looked at in a sweep.
    pub scan_rows: u32,
    /// The time over which recovered chunks are announced.
    pub spread: Duration,
}

routes_placements!(LeaseRecoveryStore);

#[async_trait]
impl LeaseRecoveryPort for LeaseRecoveryStore {
    async fn sweep_expired(&self, placement: PlacementId, from: ChunkKey) -> Result<ExpiredSweep, StageError> {
        let (rows, batch, spread) = (i64::from(self.scan_rows), i64::from(self.batch), millis(self.spread));
        let database = self.router.route(placement)?;
        let row = database
            .query_one(&SWEEP_EXPIRED, &[&from.run_shard, &from.run_id.0, &from.chunk_no, &rows, &batch, &spread])
            .await?;
        Ok(ExpiredSweep {
            due: count(&row, "due"),
            requeued: count(&row, "requeued"),
            failed: count(&row, "failed"),
            next: last_key(&row),
        })
    }

    async fn sweep_unleased(&self, placement: PlacementId, from: ChunkKey) -> Result<UnleasedSweep, StageError> {
        let (rows, batch) = (i64::from(self.scan_rows), i64::from(self.batch));
        let database = self.router.route(placement)?;
        let row = database
            .query_one(&SWEEP_UNLEASED, &[&from.run_shard, &from.run_id.0, &from.chunk_no, &rows, &batch])
            .await?;
        Ok(UnleasedSweep { redelivered: count(&row, "redelivered"), next: last_key(&row) })
    }
}

fn last_key(row: &Row) -> Option<ChunkKey> {
    let run_shard: Option<i32> = row.get("run_shard");
    run_shard.map(|run_shard| ChunkKey { run_id: RunId(row.get("run_id")), run_shard, chunk_no: row.get("chunk_no") })
}
