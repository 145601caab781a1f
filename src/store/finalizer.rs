//! finalizer's adapter.

use std::time::Duration;

use async_trait::async_trait;
use runherd_actors::model::{ChunkNo, ClaimToken, PlacementId, RunId, RunShard, RunStatus, ShardKey, Totals};
use runherd_actors::runtime::report::StageError;
use runherd_actors::stages::finalizer::{ExhaustedCursor, FinalizerPort, Marks, RunView};
use runherd_actors::stages::shard_dispatcher::Position;
use tokio_postgres::Row;
use uuid::Uuid;

use super::query::{Query, query};
use super::shard_dispatcher::{advance_low, read_position};
use super::{count, millis, routes_placements, status, totals};
use crate::router::SharedRouter;

const DROP_STALE_INTENTS: Query = query!("finalizer/drop_stale_intents");
const CLAIM_RUNS: Query = query!("finalizer/claim_runs");
const RENEW: Query = query!("finalizer/renew");
const YIELD_RUN: Query = query!("finalizer/yield_run");
const READ_RUN: Query = query!("finalizer/read_run");
const APPLY_INTENTS: Query = query!("finalizer/apply_intents");
const WRITE_INTENT: Query = query!("finalizer/write_intent");
const RESTATE_INTENT: Query = query!("shard_dispatcher/restate_intent");
const RUN_PLACEMENTS: Query = query!("finalizer/run_placements");
const COUNT_FAILED: Query = query!("finalizer/count_failed");
const EXHAUSTED_CURSORS: Query = query!("finalizer/exhausted_cursors");
const MARK_DRAINED: Query = query!("finalizer/mark_drained");
const DRAIN_CURSOR: Query = query!("finalizer/drain_cursor");
const REOPEN_CURSOR: Query = query!("finalizer/reopen_cursor");
const UNDRAIN_CURSORS: Query = query!("finalizer/undrain_cursors");
const ASK_RESEED: Query = query!("finalizer/ask_reseed");
const EXPECTED_MARKS: Query = query!("finalizer/expected_marks");
const READ_MARKS: Query = query!("finalizer/read_marks");
const LOCK_RUN: Query = query!("finalizer/lock_run");
const FINISH_RUN: Query = query!("finalizer/finish_run");
const CANCEL_GUARD: Query = query!("finalizer/cancel_guard");
const UNSWEPT_SHARDS: Query = query!("finalizer/unswept_shards");
const SWEEP_SHARD: Query = query!("finalizer/sweep_shard");
const PASS_SWEPT: Query = query!("finalizer/pass_swept");
const SWEPT_TOTALS: Query = query!("finalizer/swept_totals");
const FINISH_STOPPED_RUN: Query = query!("finalizer/finish_stopped_run");
const CLOSE_GUARD: Query = query!("finalizer/close_guard");
const DELETE_SEEDS: Query = query!("finalizer/delete_seeds");
const MARK_GUARDS_CLOSED: Query = query!("finalizer/mark_guards_closed");
const OPEN_GUARDS: Query = query!("finalizer/open_guards");
const KNOWN_RUNS: Query = query!("finalizer/known_runs");

/// Seed parts deleted in one statement.
const SEEDS_AT_A_TIME: i64 = 500;
/// Guards looked at for orphans in one pass of one placement.
const GUARDS_AT_A_TIME: i64 = 500;

/// Ends runs in PostgreSQL.
#[derive(Debug)]
pub struct FinalizerStore {
    /// Routes.
    pub router: SharedRouter,
    /// How long a claim of a run lasts.
    pub lease: Duration,
    /// Chunks swept in one statement.
    pub sweep_batch: u32,
    /// How old a guard without a run must be.
    pub orphan_grace: Duration,
}

routes_placements!(FinalizerStore);

#[async_trait]
impl FinalizerPort for FinalizerStore {
    async fn drop_stale_intents(&self) -> Result<(), StageError> {
        self.router.control().query(&DROP_STALE_INTENTS, &[]).await?;
        Ok(())
    }

    async fn claim_runs(&self, token: ClaimToken, limit: u32) -> Result<Vec<RunId>, StageError> {
        let (lease, limit) = (millis(self.lease), i64::from(limit));
        let rows = self.router.control().query(&CLAIM_RUNS, &[&token.0, &lease, &limit]).await?;
        Ok(rows.iter().map(run_id).collect())
    }

    async fn renew(&self, run_id: RunId, token: ClaimToken) -> Result<bool, StageError> {
        let lease = millis(self.lease);
        Ok(self.router.control().query_opt(&RENEW, &[&run_id.0, &token.0, &lease]).await?.is_some())
    }

    async fn yield_run(&self, run_id: RunId, token: ClaimToken, delay: Duration) -> Result<(), StageError> {
        self.router.control().query(&YIELD_RUN, &[&run_id.0, &token.0, &millis(delay)]).await?;
        Ok(())
    }

    async fn read_run(&self, run_id: RunId) -> Result<Option<RunView>, StageError> {
        let Some(row) = self.router.control().query_opt(&READ_RUN, &[&run_id.0]).await? else { return Ok(None) };
        Ok(Some(RunView {
            status: status(&row, "status")?,
            tolerated_failures: row.get("tolerated_failures"),
            deadline_in_ms: row.get("deadline_in_ms"),
            has_intent: row.get("has_intent"),
            has_open: row.get("has_open"),
            has_exhausted: row.get("has_exhausted"),
        }))
    }

    async fn apply_intents(&self, run_id: RunId) -> Result<Option<RunStatus>, StageError> {
        let row = self.router.control().query_opt(&APPLY_INTENTS, &[&run_id.0]).await?;
        row.map(|row| status(&row, "status")).transpose()
    }

    async fn write_intent(&self, run_id: RunId, reason: &str) -> Result<(), StageError> {
        self.router.control().query(&WRITE_INTENT, &[&run_id.0, &reason]).await?;
        Ok(())
    }

    async fn restate_intent(&self, run_id: RunId, outcome: RunStatus) -> Result<(), StageError> {
        self.router.control().query(&RESTATE_INTENT, &[&run_id.0, &outcome.as_str()]).await?;
        Ok(())
    }

    async fn run_placements(&self, run_id: RunId) -> Result<Vec<PlacementId>, StageError> {
        let rows = self.router.control().query(&RUN_PLACEMENTS, &[&run_id.0]).await?;
        Ok(rows.iter().map(|row| row.get("placement_id")).collect())
    }

    async fn count_failed(&self, placement: PlacementId, run_id: RunId, limit: i64) -> Result<i64, StageError> {
        Ok(self.router.route(placement)?.query_one(&COUNT_FAILED, &[&run_id.0, &limit]).await?.get("failed"))
    }

    async fn exhausted_cursors(&self, run_id: RunId, limit: u32) -> Result<Vec<ExhaustedCursor>, StageError> {
        let rows = self.router.control().query(&EXHAUSTED_CURSORS, &[&run_id.0, &i64::from(limit)]).await?;
        let read = |row: &Row| ExhaustedCursor {
            run_shard: row.get("run_shard"),
            placement: row.get("placement_id"),
            chunk_count: row.get("chunk_count"),
        };
        Ok(rows.iter().map(read).collect())
    }

    async fn read_position(&self, placement: PlacementId, shard: ShardKey) -> Result<Position, StageError> {
        Ok(read_position(&self.router.route(placement)?, shard).await?)
    }

    async fn advance_low(&self, placement: PlacementId, shard: ShardKey, most: i64) -> Result<(), StageError> {
        Ok(advance_low(&self.router.route(placement)?, shard, most).await?)
    }

    async fn mark_drained(
        &self,
        placement: PlacementId,
        shard: ShardKey,
        chunk_count: ChunkNo,
    ) -> Result<Option<Totals>, StageError> {
        let database = self.router.route(placement)?;
        let row = database.query_opt(&MARK_DRAINED, &[&shard.run_id.0, &shard.run_shard, &chunk_count]).await?;
        Ok(row.as_ref().map(totals))
    }

    async fn drain_cursor(&self, shard: ShardKey, totals: Totals) -> Result<(), StageError> {
        let Totals { succeeded, failed, cancelled, lost } = totals;
        self.router
            .control()
            .query(&DRAIN_CURSOR, &[&shard.run_id.0, &shard.run_shard, &succeeded, &failed, &cancelled, &lost])
            .await?;
        Ok(())
    }

    async fn reopen_cursor(&self, shard: ShardKey, position: ChunkNo) -> Result<(), StageError> {
        self.router.control().query(&REOPEN_CURSOR, &[&shard.run_id.0, &shard.run_shard, &position]).await?;
        Ok(())
    }

    async fn undrain_cursors(&self, run_id: RunId, placement: PlacementId) -> Result<(), StageError> {
        self.router.control().query(&UNDRAIN_CURSORS, &[&run_id.0, &placement]).await?;
        Ok(())
    }

    async fn ask_reseed(&self, run_id: RunId, placement: PlacementId) -> Result<(), StageError> {
        self.router.control().query(&ASK_RESEED, &[&run_id.0, &placement]).await?;
        Ok(())
    }

    async fn expected_marks(&self, run_id: RunId) -> Result<Vec<(PlacementId, Marks)>, StageError> {
        let rows = self.router.control().query(&EXPECTED_MARKS, &[&run_id.0]).await?;
        Ok(rows.iter().map(|row| (row.get("placement_id"), marks(row))).collect())
    }

    async fn read_marks(&self, placement: PlacementId, run_id: RunId) -> Result<Marks, StageError> {
        Ok(marks(&self.router.route(placement)?.query_one(&READ_MARKS, &[&run_id.0]).await?))
    }

    async fn finish_run(&self, run_id: RunId, token: ClaimToken) -> Result<Option<RunStatus>, StageError> {
        let finished = self.router.control().run_tx("finalizer/finish_run", move |tx| {
            Box::pin(async move {
                if tx.query_opt(&LOCK_RUN, &[&run_id.0, &token.0]).await?.is_none() {
                    return Ok(None);
                }
                tx.query_opt(&FINISH_RUN, &[&run_id.0]).await
            })
        });
        finished.await?.map(|row| status(&row, "status")).transpose()
    }

    async fn cancel_guard(&self, placement: PlacementId, run_id: RunId, outcome: RunStatus) -> Result<(), StageError> {
        self.router.route(placement)?.query(&CANCEL_GUARD, &[&run_id.0, &outcome.as_str()]).await?;
        Ok(())
    }

    async fn unswept_shards(&self, placement: PlacementId, run_id: RunId) -> Result<Vec<RunShard>, StageError> {
        let rows = self.router.route(placement)?.query(&UNSWEPT_SHARDS, &[&run_id.0, &1_i64]).await?;
        Ok(rows.iter().map(|row| row.get("run_shard")).collect())
    }

    async fn sweep_shard(&self, placement: PlacementId, shard: ShardKey) -> Result<u64, StageError> {
        let database = self.router.route(placement)?;
        let batch = i64::from(self.sweep_batch);
        let row = database.query_one(&SWEEP_SHARD, &[&shard.run_id.0, &shard.run_shard, &batch]).await?;
        // The stretch is counted in a snapshot of its own, which sees what the sweep waited for.
        database.query(&PASS_SWEPT, &[&shard.run_id.0, &shard.run_shard, &batch]).await?;
        Ok(count(&row, "cancelled"))
    }

    async fn swept_totals(&self, placement: PlacementId, run_id: RunId) -> Result<Option<Totals>, StageError> {
        let row = self.router.route(placement)?.query_one(&SWEPT_TOTALS, &[&run_id.0]).await?;
        Ok(row.get::<_, bool>("swept").then(|| totals(&row)))
    }

    async fn finish_stopped_run(
        &self,
        run_id: RunId,
        token: ClaimToken,
        totals: Totals,
    ) -> Result<Option<RunStatus>, StageError> {
        let finished = self.router.control().run_tx("finalizer/finish_stopped_run", move |tx| {
            Box::pin(async move {
                if tx.query_opt(&LOCK_RUN, &[&run_id.0, &token.0]).await?.is_none() {
                    return Ok(None);
                }
                let Totals { succeeded, failed, cancelled, lost } = totals;
                tx.query_opt(&FINISH_STOPPED_RUN, &[&run_id.0, &succeeded, &failed, &cancelled, &lost]).await
            })
        });
        finished.await?.map(|row| status(&row, "status")).transpose()
    }

    async fn close_guard(&self, placement: PlacementId, run_id: RunId) -> Result<(), StageError> {
        self.router.route(placement)?.query(&CLOSE_GUARD, &[&run_id.0]).await?;
        Ok(())
    }

    async fn delete_seeds(&self, run_id: RunId) -> Result<bool, StageError> {
        let deleted = self.router.control().execute(&DELETE_SEEDS, &[&run_id.0, &SEEDS_AT_A_TIME]).await?;
        Ok(i64::try_from(deleted).unwrap_or(i64::MAX) < SEEDS_AT_A_TIME)
    }

    async fn mark_guards_closed(&self, run_id: RunId) -> Result<(), StageError> {
        self.router.control().query(&MARK_GUARDS_CLOSED, &[&run_id.0]).await?;
        Ok(())
    }

    async fn open_guards(&self, placement: PlacementId, after: RunId) -> Result<Vec<RunId>, StageError> {
        let grace = millis(self.orphan_grace);
        let rows = self.router.route(placement)?.query(&OPEN_GUARDS, &[&after.0, &grace, &GUARDS_AT_A_TIME]).await?;
        Ok(rows.iter().map(run_id).collect())
    }

    async fn known_runs(&self, runs: &[RunId]) -> Result<Vec<RunId>, StageError> {
        let ids: Vec<Uuid> = runs.iter().map(|run| run.0).collect();
        let rows = self.router.control().query(&KNOWN_RUNS, &[&ids]).await?;
        Ok(rows.iter().map(run_id).collect())
    }
}

fn run_id(row: &Row) -> RunId {
    RunId(row.get("run_id"))
}

fn marks(row: &Row) -> Marks {
    Marks { shards: row.get("shards"), chunks: row.get("chunks") }
}
