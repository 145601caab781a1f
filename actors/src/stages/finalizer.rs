//! finalizer: ends runs, and is the only one that does.
//!
//! Under a lease of its own it applies intents, turns deadlines and tolerated failures into intents, marks shards drained,
//! reopens what a failover lost, finishes runs, sweeps stopped ones and closes their guards. A run that is not ready is
//! looked at again after an adaptive delay.

mod stopping;

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;

use super::placements::{PlacementSource, Placements};
use super::shard_dispatcher::Position;
use super::{creation_recovery, outbox_publisher, shard_dispatcher};
use crate::model::{ChunkNo, ClaimToken, PlacementId, RunId, RunShard, RunStatus, ShardKey, Totals};
use crate::runtime::report::{CycleReport, StageError};
use crate::runtime::stage::{CycleContext, Stage};

/// The stage's name.
pub const NAME: &str = "finalizer";

/// Shards of one run examined in a pass.
const SHARDS_AT_A_TIME: u32 = 256;
/// The most finished chunks that one statement counts.
const ADVANCE_MAX: i64 = 50_000;
/// The time that one run's step may need.
const STEP: Duration = Duration::from_secs(5);
/// How often a run is looked at that gives no reason to.
const IDLE_LOOK: Duration = Duration::from_secs(60);
/// How often a run with a limit on failures is looked at while it is being handed out.
const FAILURES_LOOK: Duration = Duration::from_secs(1);
/// How long a run waits whose placement cannot be reached.
const UNREACHABLE_DELAY: Duration = Duration::from_secs(2);

/// What the finalizer reads of a run before it decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunView {
    /// Where it stands.
    pub status: RunStatus,
    /// Failures beyond this number stop it early.
    pub tolerated_failures: Option<i64>,
    /// Until its deadline; negative when that has passed.
    pub deadline_in_ms: Option<i64>,
    /// Somebody asked for something.
    pub has_intent: bool,
    /// A cursor has chunks to hand out.
    pub has_open: bool,
    /// A cursor is handed out and not marked drained.
    pub has_exhausted: bool,
}

/// A shard that is handed out and not marked drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExhaustedCursor {
    /// The shard.
    pub run_shard: RunShard,
    /// Where its chunks are.
    pub placement: PlacementId,
    /// How many it has.
    pub chunk_count: ChunkNo,
}

/// Drained marks: how many shards, and how many chunks these hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Shards.
    pub shards: i64,
    /// Chunks.
    pub chunks: i64,
}

/// What the stage needs. Each method is one transition in one database.
#[async_trait]
pub trait FinalizerPort: PlacementSource {
    /// Drops intents for runs that have ended.
    async fn drop_stale_intents(&self) -> Result<(), StageError>;
    /// Claims up to `limit` runs that are due.
    async fn claim_runs(&self, token: ClaimToken, limit: u32) -> Result<Vec<RunId>, StageError>;
    /// Renews the lease on a run; false when it was lost.
    async fn renew(&self, run_id: RunId, token: ClaimToken) -> Result<bool, StageError>;
    /// Gives a run back, to be looked at after `delay` or at an earlier signal.
    async fn yield_run(&self, run_id: RunId, token: ClaimToken, delay: Duration) -> Result<(), StageError>;
    /// Reads a run.
    async fn read_run(&self, run_id: RunId) -> Result<Option<RunView>, StageError>;
    /// Applies the run's intents; answers its status where that changed something.
    async fn apply_intents(&self, run_id: RunId) -> Result<Option<RunStatus>, StageError>;
    /// Asks for the run to be failed, for this reason.
    async fn write_intent(&self, run_id: RunId, reason: &str) -> Result<(), StageError>;
    /// Writes the intent that a closed guard remembers under a live run.
    async fn restate_intent(&self, run_id: RunId, outcome: RunStatus) -> Result<(), StageError>;
    /// The placements that may hold something of the run.
    async fn run_placements(&self, run_id: RunId) -> Result<Vec<PlacementId>, StageError>;
    /// Counts failed chunks on a placement, up to `limit`.
    async fn count_failed(&self, placement: PlacementId, run_id: RunId, limit: i64) -> Result<i64, StageError>;

    /// Shards handed out and not marked drained.
    async fn exhausted_cursors(&self, run_id: RunId, limit: u32) -> Result<Vec<ExhaustedCursor>, StageError>;
    /// Reads a shard's position.
    async fn read_position(&self, placement: PlacementId, shard: ShardKey) -> Result<Position, StageError>;
    /// Counts finished chunks at the low end of the shard, at most `most`.
    async fn advance_low(&self, placement: PlacementId, shard: ShardKey, most: i64) -> Result<(), StageError>;
    /// Marks a shard drained on its placement; `None` when it is not.
    async fn mark_drained(
        &self,
        placement: PlacementId,
        shard: ShardKey,
        chunk_count: ChunkNo,
    ) -> Result<Option<Totals>, StageError>;
    /// Copies a drained mark to the cursor.
    async fn drain_cursor(&self, shard: ShardKey, totals: Totals) -> Result<(), StageError>;
    /// Reopens a cursor at the position that its placement shows.
    async fn reopen_cursor(&self, shard: ShardKey, position: ChunkNo) -> Result<(), StageError>;
    /// Has every drained shard on a placement examined again.
    async fn undrain_cursors(&self, run_id: RunId, placement: PlacementId) -> Result<(), StageError>;
    /// Asks creation_recovery to seed the placement again.
    async fn ask_reseed(&self, run_id: RunId, placement: PlacementId) -> Result<(), StageError>;
    /// The marks that each placement must show.
    async fn expected_marks(&self, run_id: RunId) -> Result<Vec<(PlacementId, Marks)>, StageError>;
    /// The marks that a placement shows.
    async fn read_marks(&self, placement: PlacementId, run_id: RunId) -> Result<Marks, StageError>;
    /// Ends a run that is drained; `None` when the lease was lost or the run is not ready after all.
    async fn finish_run(&self, run_id: RunId, token: ClaimToken) -> Result<Option<RunStatus>, StageError>;

    /// Closes a placement to a stopped run.
    async fn cancel_guard(&self, placement: PlacementId, run_id: RunId, outcome: RunStatus) -> Result<(), StageError>;
    /// Shards of a stopped run that are not swept.
    async fn unswept_shards(&self, placement: PlacementId, run_id: RunId) -> Result<Vec<RunShard>, StageError>;
    /// Cancels open chunks in the next stretch of a shard and counts the stretch; answers how many were cancelled.
    async fn sweep_shard(&self, placement: PlacementId, shard: ShardKey) -> Result<u64, StageError>;
    /// Totals of a stopped run on a placement, once it is swept clean.
    async fn swept_totals(&self, placement: PlacementId, run_id: RunId) -> Result<Option<Totals>, StageError>;
    /// Ends a stopped run; `None` when the lease was lost.
    async fn finish_stopped_run(
        &self,
        run_id: RunId,
        token: ClaimToken,
        totals: Totals,
    ) -> Result<Option<RunStatus>, StageError>;

    /// Closes a placement to a run that has ended.
    async fn close_guard(&self, placement: PlacementId, run_id: RunId) -> Result<(), StageError>;
    /// Deletes seeds of a terminal run; true when none is left.
    async fn delete_seeds(&self, run_id: RunId) -> Result<bool, StageError>;
    /// Records that every guard is closed.
    async fn mark_guards_closed(&self, run_id: RunId) -> Result<(), StageError>;

    /// The next guards on a placement, after a run, that are older than the grace for orphans.
    async fn open_guards(&self, placement: PlacementId, after: RunId) -> Result<Vec<RunId>, StageError>;
    /// Which of these runs the control database knows.
    async fn known_runs(&self, runs: &[RunId]) -> Result<Vec<RunId>, StageError>;
}

/// The stage's knobs.
#[derive(Clone, Copy, Debug)]
pub struct FinalizerSettings {
    /// Runs claimed in a pass.
    pub batch: u32,
    /// The first delay before a run that is not ready is looked at again.
    pub look_delay_min: Duration,
    /// The longest such delay.
    pub look_delay_max: Duration,
}

/// What one look at a run leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Something changed: look again at once, in this very pass.
    Again,
    /// Look again after this long.
    After(Duration),
    /// Not ready; look again after the adaptive delay. True: something moved, so begin with the shortest.
    NotReady(bool),
    /// Nothing is left to do for this run.
    Done,
}

/// The stage. Its state is only how patient it is with each run, and where it looks for orphans.
pub struct Finalizer<P> {
    port: P,
    settings: FinalizerSettings,
    patience: HashMap<RunId, Duration>,
    orphans_from: HashMap<PlacementId, RunId>,
}

impl<P: FinalizerPort> Finalizer<P> {
    /// The stage, with no memory of any run.
    pub fn new(port: P, settings: FinalizerSettings) -> Self {
        Self { port, settings, patience: HashMap::new(), orphans_from: HashMap::new() }
    }

    /// Looks at a claimed run until it is done or has to wait, and gives it back.
    async fn finalize(
        &mut self,
        cx: &CycleContext,
        run_id: RunId,
        token: ClaimToken,
        placements: &Placements,
        report: &mut CycleReport,
    ) -> Result<(), StageError> {
        let delay = loop {
            let next = match self.look(run_id, token, placements, report).await {
                Ok(next) => next,
                Err(StageError::Transient { doing, source }) => {
                    report.blocked_by.push(format!("run {run_id}: {doing}: {source}"));
                    Next::After(UNREACHABLE_DELAY)
                }
                Err(StageError::Failed { doing, source }) => {
                    // Rows that contradict each other in one run must not keep the others from ending.
                    report.count("broken", 1);
                    report.blocked_by.push(format!("run {run_id}: {doing}: {source}"));
                    Next::After(IDLE_LOOK)
                }
                Err(error) => return Err(error),
            };
            match next {
                Next::Again if cx.should_return(STEP) => break Duration::ZERO,
                Next::Again => {
                    if !self.port.renew(run_id, token).await? {
                        return Ok(());
                    }
                }
                Next::After(delay) => break delay,
                Next::NotReady(moved) => break self.patience_with(run_id, moved),
                Next::Done => {
                    self.patience.remove(&run_id);
                    return Ok(());
                }
            }
        };
        report.due_in(delay);
        self.port.yield_run(run_id, token, delay).await
    }

    /// The adaptive delay: it doubles while nothing moves.
    fn patience_with(&mut self, run_id: RunId, moved: bool) -> Duration {
        let min = self.settings.look_delay_min;
        let delay = match self.patience.get(&run_id) {
            Some(last) if !moved => (*last * 2).min(self.settings.look_delay_max),
            _ => min,
        };
        self.patience.insert(run_id, delay);
        delay
    }

    async fn look(
        &mut self,
        run_id: RunId,
        token: ClaimToken,
        placements: &Placements,
        report: &mut CycleReport,
    ) -> Result<Next, StageError> {
        let Some(run) = self.port.read_run(run_id).await? else { return Ok(Next::Done) };
        if run.has_intent {
            if let Some(status) = self.port.apply_intents(run_id).await? {
                report.count("intents", 1);
                count_status(report, status);
            }
            return Ok(Next::Again);
        }
        let live = matches!(run.status, RunStatus::Creating | RunStatus::Pending | RunStatus::Running);
        if live && run.deadline_in_ms.is_some_and(|left| left <= 0) {
            self.port.write_intent(run_id, "its deadline passed").await?;
            return Ok(Next::Again);
        }
        match run.status {
            RunStatus::Creating => Ok(Next::After(deadline_look(&run, IDLE_LOOK))),
            RunStatus::Pending | RunStatus::Running => self.look_at_live(run_id, token, &run, placements, report).await,
            RunStatus::Cancelling | RunStatus::Failing => {
                self.look_at_stopping(run_id, token, run.status, placements, report).await
            }
            RunStatus::Succeeded | RunStatus::Failed | RunStatus::Cancelled => {
                self.close_guards(run_id, placements, report).await
            }
        }
    }

    async fn look_at_live(
        &mut self,
        run_id: RunId,
        token: ClaimToken,
        run: &RunView,
        placements: &Placements,
        report: &mut CycleReport,
    ) -> Result<Next, StageError> {
        if let Some(tolerated) = run.tolerated_failures
            && self.failed_more_than(run_id, tolerated, placements).await?
        {
            let reason = format!("more than {tolerated} chunks failed");
            self.port.write_intent(run_id, &reason).await?;
            return Ok(Next::Again);
        }
        let mut moved = false;
        let mut waiting = false;
        if run.has_exhausted {
            for cursor in self.port.exhausted_cursors(run_id, SHARDS_AT_A_TIME).await? {
                if !placements.reachable_ids().contains(&cursor.placement) {
                    waiting = true;
                    continue;
                }
                if self.drain_shard(run_id, &cursor, report).await? { moved = true } else { waiting = true }
            }
        }
        if waiting {
            return Ok(Next::NotReady(moved));
        }
        if moved {
            return Ok(Next::Again);
        }
        if run.has_open {
            let idle = if run.tolerated_failures.is_some() { FAILURES_LOOK } else { IDLE_LOOK };
            return Ok(Next::After(deadline_look(run, idle)));
        }
        self.finish(run_id, token, placements, report).await
    }

    async fn failed_more_than(
        &self,
        run_id: RunId,
        tolerated: i64,
        placements: &Placements,
    ) -> Result<bool, StageError> {
        let mut failed = 0;
        for placement in self.port.run_placements(run_id).await? {
            if placements.reachable_ids().contains(&placement) {
                failed += self.port.count_failed(placement, run_id, tolerated + 1).await?;
            }
            if failed > tolerated {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Examines one exhausted shard; true when its cursor changed.
    async fn drain_shard(
        &self,
        run_id: RunId,
        cursor: &ExhaustedCursor,
        report: &mut CycleReport,
    ) -> Result<bool, StageError> {
        let shard = ShardKey { run_id, run_shard: cursor.run_shard };
        match self.port.read_position(cursor.placement, shard).await? {
            Position::Closed { outcome } => {
                self.port.restate_intent(run_id, outcome).await?;
                report.count("closed_guards", 1);
                Ok(true)
            }
            Position::Missing => self.reseed(run_id, cursor.placement, report).await,
            Position::Open { chunk_count, .. } if chunk_count < cursor.chunk_count => {
                self.reseed(run_id, cursor.placement, report).await
            }
            Position::Open { next_chunk_no, chunk_count, .. } if next_chunk_no < chunk_count => {
                self.port.reopen_cursor(shard, next_chunk_no).await?;
                report.count("reopened", 1);
                report.wake(shard_dispatcher::NAME);
                Ok(true)
            }
            Position::Open { .. } => {
                self.port.advance_low(cursor.placement, shard, ADVANCE_MAX).await?;
                match self.port.mark_drained(cursor.placement, shard, cursor.chunk_count).await? {
                    None => Ok(false),
                    Some(totals) => {
                        self.port.drain_cursor(shard, totals).await?;
                        report.count("shards_drained", 1);
                        Ok(true)
                    }
                }
            }
        }
    }

    /// Asks for a placement to be seeded again; the shard waits for that.
    async fn reseed(
        &self,
        run_id: RunId,
        placement: PlacementId,
        report: &mut CycleReport,
    ) -> Result<bool, StageError> {
        self.port.ask_reseed(run_id, placement).await?;
        report.count("reseeds_asked", 1);
        report.wake(creation_recovery::NAME);
        Ok(false)
    }

    /// Re-reads every placement's marks and ends the run.
    async fn finish(
        &self,
        run_id: RunId,
        token: ClaimToken,
        placements: &Placements,
        report: &mut CycleReport,
    ) -> Result<Next, StageError> {
        for (placement, expected) in self.port.expected_marks(run_id).await? {
            if !placements.reachable_ids().contains(&placement) {
                return Ok(Next::After(UNREACHABLE_DELAY));
            }
            if self.port.read_marks(placement, run_id).await? != expected {
                self.port.undrain_cursors(run_id, placement).await?;
                report.count("undrained", 1);
                return Ok(Next::Again);
            }
        }
        match self.port.finish_run(run_id, token).await? {
            Some(_) => {
                report.count("runs_finished", 1);
                report.wake(outbox_publisher::NAME);
                Ok(Next::Again)
            }
            None => Ok(Next::NotReady(false)),
        }
    }
}

fn count_status(report: &mut CycleReport, status: RunStatus) {
    match status {
        RunStatus::Cancelling => report.count("cancelling", 1),
        RunStatus::Failing => report.count("failing", 1),
        _ => report.count("paused", 1),
    }
}

/// `idle`, or the time to the deadline where that is shorter.
fn deadline_look(run: &RunView, idle: Duration) -> Duration {
    match run.deadline_in_ms {
        Some(left) => idle.min(Duration::from_millis(left.max(0).unsigned_abs())),
        None => idle,
    }
}

#[async_trait]
impl<P: FinalizerPort + 'static> Stage for Finalizer<P> {
    async fn run_cycle(&mut self, cx: &CycleContext) -> Result<CycleReport, StageError> {
        let mut report = CycleReport::default();
        let placements = self.port.placements().await?;
        placements.report_skipped(&mut report);
        self.port.drop_stale_intents().await?;
        let token = ClaimToken::fresh();
        let runs = self.port.claim_runs(token, self.settings.batch).await?;
        report.more = runs.len() >= self.settings.batch as usize;
        for run_id in runs {
            if cx.should_return(STEP) {
                self.port.yield_run(run_id, token, Duration::ZERO).await?;
                report.more = true;
                continue;
            }
            self.finalize(cx, run_id, token, &placements, &mut report).await?;
        }
        // Runs end; what was remembered of them need not.
        if self.patience.len() > 10_000 {
            self.patience.clear();
        }
        self.look_for_orphans(cx, &placements, &mut report).await?;
        Ok(report)
    }
}
