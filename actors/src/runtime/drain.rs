//! How a run ends: nothing new begins, what runs may finish, then everyone stops in reverse order.
//!
//! First the scheduler stops and all running cycles are told to return; those that have not within the grace are aborted. Then
//! the stages are drained level after level, the last of the cycle first, so that a stage may count on those it runs after
//! until it has stopped itself. Each step has a limit in time, so a drain always ends.

use std::collections::BTreeSet;
use std::time::Duration;

use actix::{AsyncContext, Context, SpawnHandle};
use slog::{crit, info, warn};

use super::RunOutcome;
use super::exit::{Child, Exit, ExitReason};
use super::overseer::Overseer;
use super::scheduler::SchedulerMsg;
use super::stage_actor::StageMsg;
use super::status::{Phase, StageState};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Cycles finish.
    Finishing,
    /// Cycles were aborted.
    Aborting,
    /// The stages of this level stop.
    Stopping(usize),
}

/// A drain in progress.
#[derive(Debug)]
pub(super) struct Drain {
    outcome: RunOutcome,
    step: Step,
    /// The stages that the step waits for.
    awaited: BTreeSet<usize>,
    /// The stages that were cut short.
    unfinished: BTreeSet<usize>,
    timer: SpawnHandle,
}

impl Overseer {
    /// Begins to end the run, with `outcome` if all goes well.
    pub(super) fn begin_drain(&mut self, outcome: RunOutcome, ctx: &mut Context<Self>) {
        info!(self.core.log, "run drains");
        self.core.board.set_phase(Phase::Draining);
        self.core.stopping.cancel();
        if let Some(scheduler) = &self.scheduler {
            scheduler.command(SchedulerMsg::Stop);
        }
        let awaited: BTreeSet<usize> = self.living(0..self.stages.len());
        let timer = ctx.run_later(self.grace(&outcome, self.core.settings.drain_grace), Self::grace_passed);
        for stage in &awaited {
            self.tell_stage(*stage, StageMsg::Quiesce);
        }
        self.drain = Some(Drain { outcome, step: Step::Finishing, awaited, unfinished: BTreeSet::new(), timer });
        self.next_step_if_settled(ctx);
    }

    /// Nothing is begun or restarted any more.
    pub(super) fn is_ending(&self) -> bool {
        self.drain.is_some() || self.outcome.is_none()
    }

    fn grace(&self, outcome: &RunOutcome, grace: Duration) -> Duration {
        match outcome {
            RunOutcome::Escalated { .. } => grace.min(self.core.settings.escalation_grace),
            _ => grace,
        }
    }

    /// Those that can still do what they are told.
    fn living(&self, stages: impl IntoIterator<Item = usize>) -> BTreeSet<usize> {
        stages.into_iter().filter(|stage| self.stages[*stage].is_some() && !self.records[*stage].wedged).collect()
    }

    /// A stage did what the step waits for.
    pub(super) fn settled(&mut self, stage: usize, ctx: &mut Context<Self>) {
        if let Some(drain) = &mut self.drain {
            // A stage that is quiet before it is told to stop has not stopped.
            if matches!(drain.step, Step::Finishing | Step::Aborting) {
                drain.awaited.remove(&stage);
                self.next_step_if_settled(ctx);
            }
        }
    }

    /// A stage will not do what the step waits for.
    pub(super) fn given_up(&mut self, stage: usize, ctx: &mut Context<Self>) {
        if let Some(drain) = &mut self.drain {
            drain.awaited.remove(&stage);
            drain.unfinished.insert(stage);
        }
        self.next_step_if_settled(ctx);
    }

    pub(super) fn exited_while_draining(&mut self, exit: Exit, ctx: &mut Context<Self>) {
        let Child::Stage(stage) = exit.child else { return };
        self.core.board.set_state(stage, StageState::Stopped, None);
        let clean = exit.reason == ExitReason::Stopped;
        if !clean {
            warn!(self.core.log, "stage died";
                "stage" => &self.records[stage].name, "kind" => exit.reason.kind(), "reason" => %exit.reason);
        }
        if let Some(drain) = &mut self.drain {
            drain.awaited.remove(&stage);
            if !clean {
                drain.unfinished.insert(stage);
            }
        }
        self.next_step_if_settled(ctx);
    }

    fn grace_passed(&mut self, ctx: &mut Context<Self>) {
        let Some(drain) = &mut self.drain else { return };
        let late = drain.awaited.clone();
        let names: Vec<&str> = late.iter().map(|stage| self.records[*stage].name.as_str()).collect();
        warn!(self.core.log, "drain grace passed"; "late" => names.join(" "), "step" => ?drain.step);
        if drain.step == Step::Finishing {
            drain.step = Step::Aborting;
            drain.timer = ctx.run_later(self.core.settings.abort_grace, Self::grace_passed);
            for stage in late {
                self.tell_stage(stage, StageMsg::Abort);
            }
            return;
        }
        let wedged = drain.step == Step::Aborting;
        drain.unfinished.extend(&late);
        drain.awaited.clear();
        for stage in late {
            if wedged {
                self.records[stage].wedged = true;
                self.core.board.set_state(stage, StageState::Wedged, None);
            }
        }
        self.next_step_if_settled(ctx);
    }

    fn next_step_if_settled(&mut self, ctx: &mut Context<Self>) {
        while let Some(drain) = &self.drain
            && drain.awaited.is_empty()
        {
            ctx.cancel_future(drain.timer);
            let below = match drain.step {
                Step::Finishing | Step::Aborting => self.core.levels.len(),
                Step::Stopping(level) => level,
            };
            let Some(level) = below.checked_sub(1) else { return self.finish_drain() };
            self.stop_level(level, ctx);
        }
    }

    fn stop_level(&mut self, level: usize, ctx: &mut Context<Self>) {
        let awaited = self.living(self.core.levels[level].iter().copied());
        for stage in &awaited {
            self.tell_stage(*stage, StageMsg::Stop);
        }
        let outcome = self.drain.as_ref().map_or(&RunOutcome::Drained, |drain| &drain.outcome);
        let timer = ctx.run_later(self.grace(outcome, self.core.settings.stop_grace), Self::grace_passed);
        if let Some(drain) = &mut self.drain {
            drain.step = Step::Stopping(level);
            drain.awaited = awaited;
            drain.timer = timer;
        }
    }

    fn finish_drain(&mut self) {
        let Some(drain) = self.drain.take() else { return };
        let name = |stage: &usize| self.records[*stage].name.clone();
        let unfinished: Vec<String> = drain.unfinished.iter().map(name).collect();
        match drain.outcome {
            RunOutcome::Drained if !unfinished.is_empty() => self.finish(RunOutcome::Forced { unfinished }),
            outcome => self.finish(outcome),
        }
    }

    /// A second order to drain: leave at once.
    pub(super) fn force(&mut self) {
        let Some(drain) = self.drain.take() else { return };
        let left = self.stages.iter().enumerate().filter(|(_, stage)| stage.is_some());
        let unfinished = left.map(|(stage, _)| self.records[stage].name.clone()).collect();
        match drain.outcome {
            RunOutcome::Drained | RunOutcome::Forced { .. } => self.finish(RunOutcome::Forced { unfinished }),
            escalated @ RunOutcome::Escalated { .. } => self.finish(escalated),
        }
    }

    fn finish(&mut self, outcome: RunOutcome) {
        self.core.board.set_phase(Phase::Ended);
        if !self.core.settings.report_interval.is_zero() {
            // The rest of the last interval: whoever adds the records up has all of it.
            self.reporter.tell_runtime(&self.core);
        }
        match &outcome {
            RunOutcome::Drained => info!(self.core.log, "run ended"; "outcome" => "drained"),
            RunOutcome::Forced { unfinished } => {
                warn!(self.core.log, "run ended"; "outcome" => "forced", "unfinished" => unfinished.join(" "));
            }
            RunOutcome::Escalated { stage, reason, history } => {
                crit!(self.core.log, "run ended"; "outcome" => "escalated", "stage" => stage,
                    "reason" => reason, "history" => history.join(" | "));
            }
        }
        if let Some(sender) = self.outcome.take() {
            // The receiver is gone only if nobody waits for the outcome any more.
            let _ = sender.send(outcome);
        }
    }
}
