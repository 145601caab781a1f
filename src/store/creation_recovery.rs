//! creation_recovery's adapter.

use std::time::Duration;

use async_trait::async_trait;
use runherd_actors::model::{ClaimToken, PlacementId, RunId, RunStatus, ShardKey};
use runherd_actors::runtime::report::StageError;
use runherd_actors::stages::creation_recovery::{
    CreatingRun, CreationRecoveryPort, OpenResult, SeedPart, SeedResult, UnseededPlacement,
};
use runherd_actors::stages::shard_dispatcher::Position;

use super::pool::Tx;
use super::query::{Query, query};
use super::shard_dispatcher::read_position;
use super::{StoreError, millis, routes_placements};
use crate::policy::{Policy, PolicyOverrides};
use crate::router::SharedRouter;

const CLAIM_RUNS: Query = query!("creation_recovery/claim_runs");
const CLAIM_RESEEDS: Query = query!("creation_recovery/claim_reseeds");
const UNSEEDED_PLACEMENTS: Query = query!("creation_recovery/unseeded_placements");
const SEEDED_UP_TO: Query = query!("creation_recovery/seeded_up_to");
const NEXT_PARTS: Query = query!("creation_recovery/next_parts");
const SEED_PART: Query = query!("creation_recovery/seed_part");
const SEEDED_CHUNKS: Query = query!("creation_recovery/seeded_chunks");
const RENEW: Query = query!("creation_recovery/renew");
const YIELD_RUN: Query = query!("creation_recovery/yield_run");
const RECORD_PLACEMENT: Query = query!("creation_recovery/record_placement");
const LOCK_RUN: Query = query!("creation_recovery/lock_run");
const INSERT_CURSORS: Query = query!("creation_recovery/insert_cursors");
const MARK_PENDING: Query = query!("creation_recovery/mark_pending");
const ABANDON: Query = query!("creation_recovery/abandon");
const RESTATE_INTENT: Query = query!("shard_dispatcher/restate_intent");

/// Creates runs in PostgreSQL.
#[derive(Debug)]
pub struct CreationRecoveryStore {
    /// Routes.
    pub router: SharedRouter,
    /// How long a claim lasts.
    pub lease: Duration,
    /// When an unsealed run counts as abandoned.
    pub abandon_after: Duration,
    /// Completes the policies that runs left open.
    pub policy: Policy,
}

routes_placements!(CreationRecoveryStore);

impl CreationRecoveryStore {
    fn complete(&self, run: &CreatingRun) -> Result<serde_json::Value, StageError> {
        let overrides: PolicyOverrides = serde_json::from_value(run.policy.clone())
            .map_err(|error| StageError::failed(format!("reading the policy of run {}", run.run_id), error))?;
        Ok(self.policy.merged_with(&overrides).to_json())
    }
}

#[async_trait]
impl CreationRecoveryPort for CreationRecoveryStore {
    async fn claim_runs(&self, token: ClaimToken, limit: u32) -> Result<Vec<CreatingRun>, StageError> {
        let control = self.router.control();
        let (lease, abandon_after, limit) = (millis(self.lease), millis(self.abandon_after), i64::from(limit));
        let created = control.query(&CLAIM_RUNS, &[&token.0, &lease, &abandon_after, &limit]).await?;
        let reseeds = control.query(&CLAIM_RESEEDS, &[&token.0, &lease, &limit]).await?;
        let created = created.iter().map(|row| CreatingRun {
            run_id: RunId(row.get("run_id")),
            sealed: row.get("sealed"),
            queue: row.get("queue"),
            policy: row.get("policy"),
            reseed: false,
        });
        let reseeds = reseeds.iter().map(|row| CreatingRun {
            run_id: RunId(row.get("run_id")),
            sealed: true,
            queue: row.get("queue"),
            policy: row.get("policy"),
            reseed: true,
        });
        Ok(created.chain(reseeds).collect())
    }

    async fn unseeded_placements(&self, run_id: RunId) -> Result<Vec<UnseededPlacement>, StageError> {
        let rows = self.router.control().query(&UNSEEDED_PLACEMENTS, &[&run_id.0]).await?;
        let read = |row: &tokio_postgres::Row| UnseededPlacement {
            placement: row.get("placement_id"),
            expected_chunks: row.get("expected_chunks"),
        };
        Ok(rows.iter().map(read).collect())
    }

    async fn seeded_up_to(&self, placement: PlacementId, run_id: RunId) -> Result<i32, StageError> {
        Ok(self.router.route(placement)?.query_one(&SEEDED_UP_TO, &[&run_id.0]).await?.get("part_no"))
    }

    async fn next_parts(
        &self,
        run_id: RunId,
        placement: PlacementId,
        after: i32,
        limit: u32,
    ) -> Result<Vec<SeedPart>, StageError> {
        let limit = i64::from(limit);
        let rows = self.router.control().query(&NEXT_PARTS, &[&run_id.0, &placement, &after, &limit]).await?;
        let read = |row: &tokio_postgres::Row| SeedPart {
            part_no: row.get("part_no"),
            run_shard: row.get("run_shard"),
            first_chunk_no: row.get("first_chunk_no"),
            chunk_count: row.get("chunk_count"),
            body: row.get("body"),
        };
        Ok(rows.iter().map(read).collect())
    }

    async fn seed_part(
        &self,
        placement: PlacementId,
        run: &CreatingRun,
        part: &SeedPart,
    ) -> Result<SeedResult, StageError> {
        let policy = self.complete(run)?;
        let row = self
            .router
            .route(placement)?
            .query_one(
                &SEED_PART,
                &[
                    &run.run_id.0,
                    &part.run_shard,
                    &part.part_no,
                    &part.first_chunk_no,
                    &part.chunk_count,
                    &part.body,
                    &run.queue,
                    &policy,
                ],
            )
            .await?;
        match row.get("result") {
            "seeded" => Ok(SeedResult::Seeded),
            "present" => Ok(SeedResult::Present),
            _ => Ok(SeedResult::Closed),
        }
    }

    async fn seeded_chunks(&self, placement: PlacementId, run_id: RunId) -> Result<i64, StageError> {
        Ok(self.router.route(placement)?.query_one(&SEEDED_CHUNKS, &[&run_id.0]).await?.get("chunks"))
    }

    async fn renew(&self, run_id: RunId, token: ClaimToken) -> Result<bool, StageError> {
        let lease = millis(self.lease);
        Ok(self.router.control().query_opt(&RENEW, &[&run_id.0, &token.0, &lease]).await?.is_some())
    }

    async fn yield_run(&self, run_id: RunId, token: ClaimToken, delay: Duration) -> Result<(), StageError> {
        self.router.control().query(&YIELD_RUN, &[&run_id.0, &token.0, &millis(delay)]).await?;
        Ok(())
    }

    async fn record_placement(
        &self,
        run_id: RunId,
        token: ClaimToken,
        placement: PlacementId,
    ) -> Result<bool, StageError> {
        let row = self.router.control().query_opt(&RECORD_PLACEMENT, &[&run_id.0, &token.0, &placement]).await?;
        Ok(row.is_some())
    }

    async fn open_run(&self, run_id: RunId, token: ClaimToken) -> Result<OpenResult, StageError> {
        let opened = self
            .router
            .control()
            .run_tx("creation_recovery/open_run", move |tx| Box::pin(async move { open(tx, run_id, token).await }));
        Ok(opened.await?)
    }

    async fn abandon(&self, run_id: RunId) -> Result<(), StageError> {
        self.router.control().query(&ABANDON, &[&run_id.0]).await?;
        Ok(())
    }

    async fn read_position(&self, placement: PlacementId, shard: ShardKey) -> Result<Position, StageError> {
        Ok(read_position(&self.router.route(placement)?, shard).await?)
    }

    async fn restate_intent(&self, run_id: RunId, outcome: RunStatus) -> Result<(), StageError> {
        self.router.control().query(&RESTATE_INTENT, &[&run_id.0, &outcome.as_str()]).await?;
        Ok(())
    }
}

async fn open(tx: &Tx<'_>, run_id: RunId, token: ClaimToken) -> Result<OpenResult, StoreError> {
    let Some(row) = tx.query_opt(&LOCK_RUN, &[&run_id.0, &token.0]).await? else { return Ok(OpenResult::Lost) };
    if !row.get::<_, bool>("all_seeded") {
        return Ok(OpenResult::NotSeeded);
    }
    let cursors = tx.execute(&INSERT_CURSORS, &[&run_id.0]).await?;
    tx.query(&MARK_PENDING, &[&run_id.0]).await?;
    Ok(OpenResult::Opened(cursors))
}
