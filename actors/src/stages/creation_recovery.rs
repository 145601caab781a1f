//! creation_recovery: takes sealed runs from `creating` to `pending`.
//!
//! Every run passes through here, whether its client lived or died: sealing makes the creation lease expire. Parts are seeded
//! in order and idempotently; cursors are opened only once every placement is recorded as seeded. Whoever lost the creation
//! token changes nothing any more.

use std::time::Duration;

use async_trait::async_trait;

use super::placements::{PlacementSource, Placements};
use super::shard_dispatcher::Position;
use super::{finalizer, outbox_publisher, shard_dispatcher};
use crate::model::{ChunkNo, ClaimToken, PlacementId, RunId, RunShard, RunStatus, ShardKey};
use crate::runtime::report::{CycleReport, StageError};
use crate::runtime::stage::{CycleContext, Stage};

/// The stage's name.
pub const NAME: &str = "creation_recovery";

/// Parts read and seeded between two renewals of the creation lease.
const PARTS_AT_A_TIME: u32 = 16;
/// The time that these may need.
const STEP: Duration = Duration::from_secs(5);
/// How long a run waits whose placement cannot be reached.
const UNREACHABLE_DELAY: Duration = Duration::from_secs(2);
/// How long a run waits whose seed does not add up.
const BROKEN_DELAY: Duration = Duration::from_secs(60);

/// A run whose creation token this pass holds.
#[derive(Clone, Debug, PartialEq)]
pub struct CreatingRun {
    /// The run.
    pub run_id: RunId,
    /// False: no client came back to seal it.
    pub sealed: bool,
    /// Its queue.
    pub queue: String,
    /// What its client asked for; the adapter completes it with the defaults of this coordinator.
    pub policy: serde_json::Value,
    /// It is open already, and a placement lost some of it.
    pub reseed: bool,
}

/// A placement of a run that is not seeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnseededPlacement {
    /// The placement.
    pub placement: PlacementId,
    /// The chunks that it must hold in the end.
    pub expected_chunks: i64,
}

/// One part of a run's seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeedPart {
    /// Numbered over the whole run.
    pub part_no: i32,
    /// Its shard.
    pub run_shard: RunShard,
    /// The number of its first chunk in the shard.
    pub first_chunk_no: ChunkNo,
    /// How many chunks it describes.
    pub chunk_count: i32,
    /// JSON: an array of payloads, or a range.
    pub body: String,
}

/// What seeding a part found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeedResult {
    /// It is there now.
    Seeded,
    /// It was there before.
    Present,
    /// The guard is not open: the run was stopped, and nothing was written.
    Closed,
}

/// What opening a run found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenResult {
    /// It is pending now, with this many cursors.
    Opened(u64),
    /// A placement is not recorded as seeded.
    NotSeeded,
    /// The token was lost, or the run was stopped.
    Lost,
}

/// What the stage needs. Each method is one transition in one database.
#[async_trait]
pub trait CreationRecoveryPort: PlacementSource {
    /// Claims up to `limit` runs to create or to seed again.
    async fn claim_runs(&self, token: ClaimToken, limit: u32) -> Result<Vec<CreatingRun>, StageError>;
    /// The placements of the run that still have to be seeded.
    async fn unseeded_placements(&self, run_id: RunId) -> Result<Vec<UnseededPlacement>, StageError>;
    /// The highest part that the placement holds, -1 for none.
    async fn seeded_up_to(&self, placement: PlacementId, run_id: RunId) -> Result<i32, StageError>;
    /// The next parts for the placement after `after`.
    async fn next_parts(
        &self,
        run_id: RunId,
        placement: PlacementId,
        after: i32,
        limit: u32,
    ) -> Result<Vec<SeedPart>, StageError>;
    /// Seeds one part.
    async fn seed_part(
        &self,
        placement: PlacementId,
        run: &CreatingRun,
        part: &SeedPart,
    ) -> Result<SeedResult, StageError>;
    /// How many chunks the parts on the placement hold.
    async fn seeded_chunks(&self, placement: PlacementId, run_id: RunId) -> Result<i64, StageError>;
    /// Renews the creation lease; false when the token was lost.
    async fn renew(&self, run_id: RunId, token: ClaimToken) -> Result<bool, StageError>;
    /// Gives the creation lease back, to be claimed again after `delay`.
    async fn yield_run(&self, run_id: RunId, token: ClaimToken, delay: Duration) -> Result<(), StageError>;
    /// Records the placement as seeded; false when the token was lost.
    async fn record_placement(
        &self,
        run_id: RunId,
        token: ClaimToken,
        placement: PlacementId,
    ) -> Result<bool, StageError>;
    /// Opens every cursor of the run and makes it pending.
    async fn open_run(&self, run_id: RunId, token: ClaimToken) -> Result<OpenResult, StageError>;
    /// Asks for an unsealed run to be failed.
    async fn abandon(&self, run_id: RunId) -> Result<(), StageError>;
    /// Reads a shard's position, and with it what the run's guard says.
    async fn read_position(&self, placement: PlacementId, shard: ShardKey) -> Result<Position, StageError>;
    /// Writes the intent that a closed guard remembers under a live run.
    async fn restate_intent(&self, run_id: RunId, outcome: RunStatus) -> Result<(), StageError>;
}

/// The stage's knobs.
#[derive(Clone, Copy, Debug)]
pub struct CreationRecoverySettings {
    /// Runs claimed in a pass.
    pub batch: u32,
    /// Parts seeded in a pass, over all its runs.
    pub parts_per_pass: u32,
}

/// How far one placement of a run came in this pass.
enum Progress {
    Recorded,
    OutOfBudget,
    Lost,
}

/// The stage.
pub struct CreationRecovery<P> {
    port: P,
    settings: CreationRecoverySettings,
}

impl<P: CreationRecoveryPort> CreationRecovery<P> {
    /// The stage, without state of its own.
    pub fn new(port: P, settings: CreationRecoverySettings) -> Self {
        Self { port, settings }
    }

    /// Seeds one placement of a run, within a budget of parts.
    async fn seed_placement(
        &self,
        cx: &CycleContext,
        run: &CreatingRun,
        token: ClaimToken,
        target: UnseededPlacement,
        budget: &mut u32,
        report: &mut CycleReport,
    ) -> Result<Progress, StageError> {
        let placement = target.placement;
        let mut after = self.port.seeded_up_to(placement, run.run_id).await?;
        loop {
            if *budget == 0 || cx.should_return(STEP) {
                return Ok(Progress::OutOfBudget);
            }
            let limit = PARTS_AT_A_TIME.min(*budget);
            let parts = self.port.next_parts(run.run_id, placement, after, limit).await?;
            let Some(last) = parts.last() else { break };
            after = last.part_no;
            *budget = budget.saturating_sub(parts.len() as u32);
            for part in &parts {
                match self.port.seed_part(placement, run, part).await? {
                    SeedResult::Closed => {
                        self.heed_guard(placement, run.run_id, part.run_shard, report).await?;
                        return Ok(Progress::Lost);
                    }
                    SeedResult::Present => {}
                    SeedResult::Seeded => {
                        report.count("parts", 1);
                        report.count("chunks", part.chunk_count.unsigned_abs().into());
                    }
                }
            }
            if !self.port.renew(run.run_id, token).await? {
                return Ok(Progress::Lost);
            }
        }
        let seeded = self.port.seeded_chunks(placement, run.run_id).await?;
        if seeded != target.expected_chunks {
            return Err(StageError::failed(
                format!("seeding run {} on placement {placement}", run.run_id),
                format!("it holds {seeded} chunks where {} are expected", target.expected_chunks),
            ));
        }
        if !self.port.record_placement(run.run_id, token, placement).await? {
            return Ok(Progress::Lost);
        }
        report.count("placements", 1);
        Ok(Progress::Recorded)
    }

    /// A guard was closed: somebody stopped the run. If the control database lost that, it learns it again from the guard.
    async fn heed_guard(
        &self,
        placement: PlacementId,
        run_id: RunId,
        run_shard: RunShard,
        report: &mut CycleReport,
    ) -> Result<(), StageError> {
        report.count("closed_guards", 1);
        if let Position::Closed { outcome } = self.port.read_position(placement, ShardKey { run_id, run_shard }).await?
        {
            self.port.restate_intent(run_id, outcome).await?;
            report.wake(finalizer::NAME);
        }
        Ok(())
    }

    /// Takes one run as far as it comes in this pass, and gives it back if that is not the end.
    async fn create(
        &self,
        cx: &CycleContext,
        run: &CreatingRun,
        token: ClaimToken,
        placements: &Placements,
        mut budget: u32,
        report: &mut CycleReport,
    ) -> Result<(), StageError> {
        if !run.sealed {
            report.count("abandoned", 1);
            report.wake(finalizer::NAME);
            return self.port.abandon(run.run_id).await;
        }
        let reachable = placements.reachable_ids();
        let mut delay = None;
        for target in self.port.unseeded_placements(run.run_id).await? {
            if !reachable.contains(&target.placement) {
                delay = Some(UNREACHABLE_DELAY);
                continue;
            }
            match self.seed_placement(cx, run, token, target, &mut budget, report).await {
                Ok(Progress::Recorded) => {}
                Ok(Progress::Lost) => return Ok(()),
                Ok(Progress::OutOfBudget) => {
                    report.more = true;
                    delay = delay.or(Some(Duration::ZERO));
                    break;
                }
                Err(StageError::Transient { doing, source }) => {
                    report.blocked_by.push(format!("placement {}: {doing}: {source}", target.placement));
                    delay = Some(UNREACHABLE_DELAY);
                }
                Err(StageError::Failed { doing, source }) => {
                    // One run whose seed contradicts itself must not hold up the others.
                    report.count("broken", 1);
                    report.blocked_by.push(format!("{doing}: {source}"));
                    delay = Some(BROKEN_DELAY);
                }
                Err(error) => return Err(error),
            }
        }
        if let Some(delay) = delay {
            return self.port.yield_run(run.run_id, token, delay).await;
        }
        if run.reseed {
            report.count("reseeded", 1);
            report.wake(finalizer::NAME);
            return self.port.yield_run(run.run_id, token, Duration::ZERO).await;
        }
        match self.port.open_run(run.run_id, token).await? {
            OpenResult::Opened(cursors) => {
                report.count("runs_opened", 1);
                report.count("cursors", cursors);
                report.wake(shard_dispatcher::NAME);
                report.wake(finalizer::NAME);
                report.wake(outbox_publisher::NAME);
                Ok(())
            }
            OpenResult::NotSeeded => self.port.yield_run(run.run_id, token, Duration::ZERO).await,
            OpenResult::Lost => Ok(()),
        }
    }
}

#[async_trait]
impl<P: CreationRecoveryPort + 'static> Stage for CreationRecovery<P> {
    async fn run_cycle(&mut self, cx: &CycleContext) -> Result<CycleReport, StageError> {
        let mut report = CycleReport::default();
        let placements = self.port.placements().await?;
        placements.report_skipped(&mut report);
        let token = ClaimToken::fresh();
        let runs = self.port.claim_runs(token, self.settings.batch).await?;
        report.more = runs.len() >= self.settings.batch as usize;
        // Every run gets its share, so that a huge one does not hold up a small one.
        let share = (self.settings.parts_per_pass / runs.len().max(1) as u32).max(1);
        for run in &runs {
            if cx.should_return(STEP) {
                self.port.yield_run(run.run_id, token, Duration::ZERO).await?;
                report.more = true;
                continue;
            }
            self.create(cx, run, token, &placements, share, &mut report).await?;
        }
        Ok(report)
    }
}
