//! shard_dispatcher: hands out bounded windows of chunks, one shard partition at a time.
//!
//! Ownership is the cursor's lease in the control database; the truth of how far a shard has come is its position on the
//! placement, which moves by compare and set. A dispatcher that lost its lease therefore hands nothing out twice.

use std::time::Duration;

use async_trait::async_trait;

use super::placements::{PlacementSource, Placements};
use super::{finalizer, outbox_publisher};
use crate::model::{ChunkNo, ClaimToken, PlacementId, RunId, RunStatus, ShardKey};
use crate::runtime::report::{CycleReport, StageError};
use crate::runtime::stage::{CycleContext, Stage};

/// The stage's name.
pub const NAME: &str = "shard_dispatcher";

/// The most chunks that one statement hands out; larger windows take several.
const HAND_OUT_MAX: i64 = 5_000;
/// The most finished chunks that one visit counts.
const ADVANCE_MAX: i64 = 20_000;
/// The time that one cursor may need.
const STEP: Duration = Duration::from_secs(2);

/// A cursor whose lease this dispatcher holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimedCursor {
    /// The shard.
    pub shard: ShardKey,
    /// Where its chunks are.
    pub placement: PlacementId,
    /// How many chunks it has.
    pub chunk_count: ChunkNo,
    /// The run's status when the cursor was claimed.
    pub run_status: RunStatus,
}

/// A shard as its placement shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// The guard is open.
    Open {
        /// The most chunks that may be in flight.
        window: i64,
        /// How many chunks the placement holds.
        chunk_count: ChunkNo,
        /// The next chunk to hand out.
        next_chunk_no: ChunkNo,
        /// Handed out and not finished.
        in_flight: i64,
    },
    /// The guard is not open; the run is meant to end as this.
    Closed {
        /// `cancelled` or `failed`.
        outcome: RunStatus,
    },
    /// The placement knows no guard or no position for it: a failover lost them.
    Missing,
}

/// What a hand-out did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandedOut {
    /// The position after it.
    pub next_chunk_no: ChunkNo,
    /// Events that were emitted.
    pub events: u64,
}

/// What the stage needs. Each method is one transition in one database.
#[async_trait]
pub trait ShardDispatcherPort: PlacementSource {
    /// Claims up to `limit` due cursors on the given placements.
    async fn claim_cursors(
        &self,
        token: ClaimToken,
        limit: u32,
        reachable: &[PlacementId],
    ) -> Result<Vec<ClaimedCursor>, StageError>;
    /// pending → running; false when the run was not pending any more.
    async fn start_run(&self, run_id: RunId) -> Result<bool, StageError>;
    /// Counts finished chunks at the low end of the shard, at most `most`.
    async fn advance_low(&self, placement: PlacementId, shard: ShardKey, most: i64) -> Result<(), StageError>;
    /// Reads the shard's position.
    async fn read_position(&self, placement: PlacementId, shard: ShardKey) -> Result<Position, StageError>;
    /// Hands out `count` chunks from exactly the position that was read; `None` when it has moved or the guard is closed.
    async fn hand_out(
        &self,
        placement: PlacementId,
        shard: ShardKey,
        from: ChunkNo,
        count: i64,
    ) -> Result<Option<HandedOut>, StageError>;
    /// Copies the position to the cursor and gives it back; false when the lease was lost.
    async fn move_cursor(
        &self,
        shard: ShardKey,
        token: ClaimToken,
        position: ChunkNo,
        delay: Duration,
    ) -> Result<bool, StageError>;
    /// Writes the intent that a closed guard remembers under a live run.
    async fn restate_intent(&self, run_id: RunId, outcome: RunStatus) -> Result<(), StageError>;
    /// Asks creation_recovery to seed the placement of a run again.
    async fn ask_reseed(&self, run_id: RunId, placement: PlacementId) -> Result<(), StageError>;
    /// Gives back every cursor that the token still holds, due again after `delay`.
    async fn yield_cursors(&self, token: ClaimToken, delay: Duration) -> Result<(), StageError>;
}

/// The stage's knobs.
#[derive(Clone, Copy, Debug)]
pub struct ShardDispatcherSettings {
    /// Cursors claimed at a time.
    pub cursors_per_pass: u32,
    /// How long a cursor whose window is full waits before it is looked at again.
    pub full_delay: Duration,
}

/// The stage: one of several instances in a process.
pub struct ShardDispatcher<P> {
    port: P,
    settings: ShardDispatcherSettings,
}

impl<P: ShardDispatcherPort> ShardDispatcher<P> {
    /// A dispatcher; the port knows which part of the shards is its own.
    pub fn new(port: P, settings: ShardDispatcherSettings) -> Self {
        Self { port, settings }
    }

    /// Hands out what fits in the window and gives the cursor back.
    async fn serve(
        &self,
        cursor: &ClaimedCursor,
        token: ClaimToken,
        report: &mut CycleReport,
    ) -> Result<(), StageError> {
        if cursor.run_status == RunStatus::Pending && self.port.start_run(cursor.shard.run_id).await? {
            report.count("runs_started", 1);
            report.wake(outbox_publisher::NAME);
            // While the run was locked to start it, the other dispatchers skipped its cursors.
            report.wake(NAME);
        }
        self.port.advance_low(cursor.placement, cursor.shard, ADVANCE_MAX).await?;
        let (window, chunk_count, next_chunk_no, in_flight) =
            match self.port.read_position(cursor.placement, cursor.shard).await? {
                Position::Open { window, chunk_count, next_chunk_no, in_flight } => {
                    (window, chunk_count, next_chunk_no, in_flight)
                }
                Position::Closed { outcome } => {
                    report.count("closed_guards", 1);
                    report.wake(finalizer::NAME);
                    return self.port.restate_intent(cursor.shard.run_id, outcome).await;
                }
                Position::Missing => {
                    report.count("missing_positions", 1);
                    return self.port.ask_reseed(cursor.shard.run_id, cursor.placement).await;
                }
            };
        if chunk_count < cursor.chunk_count {
            report.count("missing_positions", 1);
            return self.port.ask_reseed(cursor.shard.run_id, cursor.placement).await;
        }
        let room = (window - in_flight).max(0);
        let count = room.min(chunk_count - next_chunk_no).min(HAND_OUT_MAX);
        let mut position = next_chunk_no;
        if count > 0 {
            // A miss means that a zombie or a failover moved the position: the next visit copies what is there then.
            let Some(handed) = self.port.hand_out(cursor.placement, cursor.shard, next_chunk_no, count).await? else {
                report.count("missed", 1);
                return Ok(());
            };
            position = handed.next_chunk_no;
            report.count("chunks", count.unsigned_abs());
            report.count("events", handed.events);
            report.wake(outbox_publisher::NAME);
        }
        let delay = if count == HAND_OUT_MAX { Duration::ZERO } else { self.settings.full_delay };
        if position < chunk_count {
            report.due_in(delay);
        }
        if self.port.move_cursor(cursor.shard, token, position, delay).await? && position >= chunk_count {
            report.count("exhausted", 1);
            report.wake(finalizer::NAME);
        }
        Ok(())
    }

    async fn claim(&self, token: ClaimToken, placements: &Placements) -> Result<Vec<ClaimedCursor>, StageError> {
        if placements.reachable.is_empty() {
            return Ok(Vec::new());
        }
        self.port.claim_cursors(token, self.settings.cursors_per_pass, &placements.reachable_ids()).await
    }
}

#[async_trait]
impl<P: ShardDispatcherPort + 'static> Stage for ShardDispatcher<P> {
    async fn run_cycle(&mut self, cx: &CycleContext) -> Result<CycleReport, StageError> {
        let mut report = CycleReport::default();
        let placements = self.port.placements().await?;
        placements.report_skipped(&mut report);
        let token = ClaimToken::fresh();
        let cursors = self.claim(token, &placements).await?;
        report.count("cursors", cursors.len() as u64);
        report.more = cursors.len() >= self.settings.cursors_per_pass as usize;
        let mut failed_placements: Vec<PlacementId> = Vec::new();
        for cursor in &cursors {
            if cx.should_return(STEP) {
                break;
            }
            if failed_placements.contains(&cursor.placement) {
                continue;
            }
            match self.serve(cursor, token, &mut report).await {
                Ok(()) => {}
                Err(StageError::Transient { doing, source }) => {
                    // One placement that fails delays only what lives on it.
                    failed_placements.push(cursor.placement);
                    report.blocked_by.push(format!("placement {}: {doing}: {source}", cursor.placement));
                }
                Err(error) => return Err(error),
            }
        }
        // Cursors that were not moved (a miss, a closed guard, a placement that failed, no time left).
        self.port.yield_cursors(token, self.settings.full_delay).await?;
        Ok(report)
    }
}
