//! lease_recovery: gives chunks back whose worker died, fails those that kill their workers, and announces again what was
//! lost on the way.
//!
//! A pass looks at a bounded stretch of each placement's active chunks and goes on from there in the next, so that its cost
//! follows neither history nor the number of chunks in flight.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

use super::placements::{PlacementRef, PlacementSource, skip_if_transient};
use super::{outbox_publisher, shard_dispatcher};
use crate::model::{ChunkKey, PlacementId, RunId};
use crate::runtime::report::{CycleReport, StageError};
use crate::runtime::stage::{CycleContext, Stage};

/// The stage's name.
pub const NAME: &str = "lease_recovery";

/// The time that one sweep of a stretch may need.
const STEP: Duration = Duration::from_secs(2);

/// What one sweep for expired leases did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpiredSweep {
    /// Expired leases that the stretch held.
    pub due: u64,
    /// Chunks that were handed out again.
    pub requeued: u64,
    /// Chunks that reached the recovery limit.
    pub failed: u64,
    /// Where the next stretch begins; `None` at the end of the table.
    pub next: Option<ChunkKey>,
}

/// What one sweep for events without effect did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnleasedSweep {
    /// Events that will be published again under the same message id.
    pub redelivered: u64,
    /// Where the next stretch begins; `None` at the end of the table.
    pub next: Option<ChunkKey>,
}

/// What the stage needs. Each method is one transition on one placement.
#[async_trait]
pub trait LeaseRecoveryPort: PlacementSource {
    /// Recovers expired leases in the stretch after `from`.
    async fn sweep_expired(&self, placement: PlacementId, from: ChunkKey) -> Result<ExpiredSweep, StageError>;

    /// Redelivers events in the stretch after `from` that were published long ago without any effect.
    async fn sweep_unleased(&self, placement: PlacementId, from: ChunkKey) -> Result<UnleasedSweep, StageError>;
}

/// The stage. Its only state is where it looks next.
pub struct LeaseRecovery<P> {
    port: P,
    expired_from: HashMap<PlacementId, ChunkKey>,
    unleased_from: HashMap<PlacementId, ChunkKey>,
}

/// Before every chunk.
#[must_use]
pub fn head() -> ChunkKey {
    ChunkKey { run_id: RunId(Uuid::nil()), run_shard: -1, chunk_no: -1 }
}

impl<P: LeaseRecoveryPort> LeaseRecovery<P> {
    /// A stage that begins at the head of every placement.
    pub fn new(port: P) -> Self {
        Self { port, expired_from: HashMap::new(), unleased_from: HashMap::new() }
    }

    async fn recover(&mut self, placement: &PlacementRef, report: &mut CycleReport) -> Result<(), StageError> {
        let from = self.expired_from.get(&placement.id).copied().unwrap_or_else(head);
        let Some(sweep) = skip_if_transient(self.port.sweep_expired(placement.id, from).await, placement, report)?
        else {
            return Ok(());
        };
        report.count("requeued", sweep.requeued);
        report.count("failed", sweep.failed);
        if sweep.requeued > 0 {
            report.wake(outbox_publisher::NAME);
        }
        // What the batch limit (or another sweeper's lock) left behind is met again before the stretch is passed.
        let left_behind = sweep.due > sweep.requeued + sweep.failed;
        if left_behind && sweep.requeued + sweep.failed > 0 {
            report.more = true;
        } else {
            report.more |= sweep.next.is_some();
            self.expired_from.insert(placement.id, sweep.next.unwrap_or_else(head));
        }
        Ok(())
    }

    async fn redeliver(&mut self, placement: &PlacementRef, report: &mut CycleReport) -> Result<(), StageError> {
        let from = self.unleased_from.get(&placement.id).copied().unwrap_or_else(head);
        let Some(sweep) = skip_if_transient(self.port.sweep_unleased(placement.id, from).await, placement, report)?
        else {
            return Ok(());
        };
        report.count("redelivered", sweep.redelivered);
        if sweep.redelivered > 0 {
            report.wake(outbox_publisher::NAME);
        }
        self.unleased_from.insert(placement.id, sweep.next.unwrap_or_else(head));
        Ok(())
    }
}

#[async_trait]
impl<P: LeaseRecoveryPort + 'static> Stage for LeaseRecovery<P> {
    async fn run_cycle(&mut self, cx: &CycleContext) -> Result<CycleReport, StageError> {
        let mut report = CycleReport::default();
        let placements = self.port.placements().await?;
        placements.report_skipped(&mut report);
        for placement in &placements.reachable {
            if cx.should_return(STEP) {
                report.more = true;
                break;
            }
            self.recover(placement, &mut report).await?;
            self.redeliver(placement, &mut report).await?;
        }
        if report.counted("failed") > 0 {
            // A failed chunk makes room in its shard's window.
            report.wake(shard_dispatcher::NAME);
        }
        Ok(report)
    }
}
