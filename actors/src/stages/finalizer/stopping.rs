//! What the finalizer does after a run's end was decided: sweep a stopped run, close the guards of an ended one, and stop
//! what no run stands behind.

use std::collections::HashSet;

use uuid::Uuid;

use super::{Finalizer, FinalizerPort, Next, STEP, UNREACHABLE_DELAY};
use crate::model::{ClaimToken, PlacementId, RunId, RunStatus, ShardKey, Totals};
use crate::runtime::report::{CycleReport, StageError};
use crate::runtime::stage::CycleContext;
use crate::stages::outbox_publisher;
use crate::stages::placements::{Placements, skip_if_transient};

/// Stretches of one placement swept between two renewals of the lease.
const STRETCHES_AT_A_TIME: usize = 8;

impl<P: FinalizerPort> Finalizer<P> {
    /// Closes the guards first, so that nothing new begins; then sweeps; then ends the run.
    pub(super) async fn look_at_stopping(
        &self,
        run_id: RunId,
        token: ClaimToken,
        status: RunStatus,
        placements: &Placements,
        report: &mut CycleReport,
    ) -> Result<Next, StageError> {
        let outcome = if status == RunStatus::Cancelling { RunStatus::Cancelled } else { RunStatus::Failed };
        let reachable = placements.reachable_ids();
        let mut totals = Totals::default();
        let mut unreachable = false;
        for placement in self.port.run_placements(run_id).await? {
            if !reachable.contains(&placement) {
                unreachable = true;
                continue;
            }
            self.port.cancel_guard(placement, run_id, outcome).await?;
            self.sweep(placement, run_id, report).await?;
            match self.port.swept_totals(placement, run_id).await? {
                None => return Ok(Next::Again),
                Some(swept) => {
                    totals.succeeded += swept.succeeded;
                    totals.failed += swept.failed;
                    totals.cancelled += swept.cancelled;
                    totals.lost += swept.lost;
                }
            }
        }
        if unreachable {
            return Ok(Next::After(UNREACHABLE_DELAY));
        }
        match self.port.finish_stopped_run(run_id, token, totals).await? {
            Some(_) => {
                report.count("runs_finished", 1);
                report.wake(outbox_publisher::NAME);
                Ok(Next::Again)
            }
            None => Ok(Next::NotReady(false)),
        }
    }

    /// Sweeps some stretches of a run on one placement.
    async fn sweep(&self, placement: PlacementId, run_id: RunId, report: &mut CycleReport) -> Result<(), StageError> {
        for _ in 0..STRETCHES_AT_A_TIME {
            let Some(&run_shard) = self.port.unswept_shards(placement, run_id).await?.first() else { break };
            let cancelled = self.port.sweep_shard(placement, ShardKey { run_id, run_shard }).await?;
            report.count("chunks_cancelled", cancelled);
        }
        Ok(())
    }

    /// Closes the guards of an ended run and deletes its seeds.
    pub(super) async fn close_guards(
        &self,
        run_id: RunId,
        placements: &Placements,
        report: &mut CycleReport,
    ) -> Result<Next, StageError> {
        let reachable = placements.reachable_ids();
        for placement in self.port.run_placements(run_id).await? {
            if !reachable.contains(&placement) {
                return Ok(Next::After(UNREACHABLE_DELAY));
            }
            self.port.close_guard(placement, run_id).await?;
        }
        if !self.port.delete_seeds(run_id).await? {
            return Ok(Next::Again);
        }
        self.port.mark_guards_closed(run_id).await?;
        report.count("guards_closed", 1);
        Ok(Next::Done)
    }

    /// Stops what is open on a placement under a run that the control database does not know: it failed over and lost it.
    pub(super) async fn look_for_orphans(
        &mut self,
        cx: &CycleContext,
        placements: &Placements,
        report: &mut CycleReport,
    ) -> Result<(), StageError> {
        for placement in &placements.reachable {
            if cx.should_return(STEP) {
                return Ok(());
            }
            let after = self.orphans_from.get(&placement.id).copied().unwrap_or(RunId(Uuid::nil()));
            let guards = self.port.open_guards(placement.id, after).await;
            let Some(guards) = skip_if_transient(guards, placement, report)? else { continue };
            self.orphans_from.insert(placement.id, guards.last().copied().unwrap_or(RunId(Uuid::nil())));
            if guards.is_empty() {
                continue;
            }
            let known: HashSet<RunId> = self.port.known_runs(&guards).await?.into_iter().collect();
            for run_id in guards.into_iter().filter(|run_id| !known.contains(run_id)) {
                report.count("orphans", 1);
                let result = self.sweep_orphan(placement.id, run_id, report).await;
                skip_if_transient(result, placement, report)?;
            }
        }
        Ok(())
    }

    async fn sweep_orphan(
        &self,
        placement: PlacementId,
        run_id: RunId,
        report: &mut CycleReport,
    ) -> Result<(), StageError> {
        self.port.cancel_guard(placement, run_id, RunStatus::Cancelled).await?;
        self.sweep(placement, run_id, report).await?;
        if self.port.swept_totals(placement, run_id).await?.is_some() {
            self.port.close_guard(placement, run_id).await?;
        }
        Ok(())
    }
}
