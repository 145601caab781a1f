//! shard_dispatcher's adapter.

use std::time::Duration;

use async_trait::async_trait;
use runherd_actors::model::{ChunkNo, ClaimToken, PlacementId, RunId, RunStatus, ShardKey};
use runherd_actors::runtime::report::StageError;
use runherd_actors::stages::shard_dispatcher::{ClaimedCursor, HandedOut, Position, ShardDispatcherPort};
use tokio_postgres::Row;

use super::query::{Query, query};
use super::{Database, StoreError, count, millis, routes_placements, status};
use crate::router::SharedRouter;

const CLAIM_CURSORS: Query = query!("shard_dispatcher/claim_cursors");
const START_RUN: Query = query!("shard_dispatcher/start_run");
const ADVANCE_LOW: Query = query!("shard_dispatcher/advance_low");
const READ_POSITION: Query = query!("shard_dispatcher/read_position");
const HAND_OUT: Query = query!("shard_dispatcher/hand_out");
const MOVE_CURSOR: Query = query!("shard_dispatcher/move_cursor");
const RESTATE_INTENT: Query = query!("shard_dispatcher/restate_intent");
const YIELD_CURSORS: Query = query!("shard_dispatcher/yield_cursors");
const ASK_RESEED: Query = query!("finalizer/ask_reseed");

/// Hands out chunks in PostgreSQL, as dispatcher `instance` of `instances`.
#[derive(Debug)]
pub struct ShardDispatcherStore {
    /// Routes.
    pub router: SharedRouter,
    /// How long a claim of a cursor lasts.
    pub lease: Duration,
    /// How many dispatchers this process has.
    pub instances: i32,
    /// Which of them this is, from 0.
    pub instance: i32,
}

routes_placements!(ShardDispatcherStore);

#[async_trait]
impl ShardDispatcherPort for ShardDispatcherStore {
    async fn claim_cursors(
        &self,
        token: ClaimToken,
        limit: u32,
        reachable: &[PlacementId],
    ) -> Result<Vec<ClaimedCursor>, StageError> {
        let (lease, limit) = (millis(self.lease), i64::from(limit));
        let rows = self
            .router
            .control()
            .query(&CLAIM_CURSORS, &[&token.0, &lease, &limit, &self.instances, &self.instance, &reachable])
            .await?;
        rows.iter().map(claimed_cursor).collect()
    }

    async fn start_run(&self, run_id: RunId) -> Result<bool, StageError> {
        Ok(self.router.control().query_opt(&START_RUN, &[&run_id.0]).await?.is_some())
    }

    async fn advance_low(&self, placement: PlacementId, shard: ShardKey, most: i64) -> Result<(), StageError> {
        Ok(advance_low(&self.router.route(placement)?, shard, most).await?)
    }

    async fn read_position(&self, placement: PlacementId, shard: ShardKey) -> Result<Position, StageError> {
        Ok(read_position(&self.router.route(placement)?, shard).await?)
    }

    async fn hand_out(
        &self,
        placement: PlacementId,
        shard: ShardKey,
        from: ChunkNo,
        chunks: i64,
    ) -> Result<Option<HandedOut>, StageError> {
        let database = self.router.route(placement)?;
        let row = database.query_opt(&HAND_OUT, &[&shard.run_id.0, &shard.run_shard, &from, &chunks]).await?;
        Ok(row.map(|row| HandedOut { next_chunk_no: row.get("next_chunk_no"), events: count(&row, "events") }))
    }

    async fn move_cursor(
        &self,
        shard: ShardKey,
        token: ClaimToken,
        position: ChunkNo,
        delay: Duration,
    ) -> Result<bool, StageError> {
        let row = self
            .router
            .control()
            .query_opt(&MOVE_CURSOR, &[&shard.run_id.0, &shard.run_shard, &token.0, &position, &millis(delay)])
            .await?;
        Ok(row.is_some())
    }

    async fn restate_intent(&self, run_id: RunId, outcome: RunStatus) -> Result<(), StageError> {
        self.router.control().query(&RESTATE_INTENT, &[&run_id.0, &outcome.as_str()]).await?;
        Ok(())
    }

    async fn ask_reseed(&self, run_id: RunId, placement: PlacementId) -> Result<(), StageError> {
        self.router.control().query(&ASK_RESEED, &[&run_id.0, &placement]).await?;
        Ok(())
    }

    async fn yield_cursors(&self, token: ClaimToken, delay: Duration) -> Result<(), StageError> {
        self.router.control().query(&YIELD_CURSORS, &[&token.0, &millis(delay)]).await?;
        Ok(())
    }
}

fn claimed_cursor(row: &Row) -> Result<ClaimedCursor, StageError> {
    Ok(ClaimedCursor {
        shard: ShardKey { run_id: RunId(row.get("run_id")), run_shard: row.get("run_shard") },
        placement: row.get("placement_id"),
        chunk_count: row.get("chunk_count"),
        run_status: status(row, "run_status")?,
    })
}

/// Counts finished chunks at the low end of a shard; the finalizer does it too.
pub(super) async fn advance_low(database: &Database, shard: ShardKey, most: i64) -> Result<(), StoreError> {
    database.query(&ADVANCE_LOW, &[&shard.run_id.0, &shard.run_shard, &most]).await?;
    Ok(())
}

/// Reads a shard's position; the finalizer does it too.
pub(super) async fn read_position(database: &Database, shard: ShardKey) -> Result<Position, StoreError> {
    let row = database.query_one(&READ_POSITION, &[&shard.run_id.0, &shard.run_shard]).await?;
    let guard: Option<&str> = row.get("guard_status");
    let chunk_count: Option<ChunkNo> = row.get("chunk_count");
    Ok(match (guard, chunk_count) {
        (Some("open"), Some(chunk_count)) => Position::Open {
            window: row.get::<_, i32>("dispatch_window").into(),
            chunk_count,
            next_chunk_no: row.get("next_chunk_no"),
            in_flight: row.get("in_flight"),
        },
        (Some("open") | None, _) => Position::Missing,
        (Some(_), _) => {
            let failed = row.get::<_, Option<&str>>("guard_outcome") == Some("failed");
            Position::Closed { outcome: if failed { RunStatus::Failed } else { RunStatus::Cancelled } }
        }
    })
}
