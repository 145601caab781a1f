//! One stage under supervision: runs one cycle at a time, off the control thread, and dies when the stage cannot be trusted.
//!
//! The cycle's body is a task of its own, so the actor answers while it runs, and a panic in the stage or in its factory is a
//! result like any other. At the deadline the cycle's token is cancelled; a little later its task is aborted; a task that
//! ignores even that is *wedged*, and only the end of the process helps. Whatever else goes wrong ends this actor, and the
//! overseer makes a new one, with a new stage from the factory. Transient errors never do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use actix::{Actor, ActorContext, ActorFutureExt, AsyncContext, Context, Handler, SpawnHandle, WrapFuture};
use slog::{Logger, o, warn};
use tokio::task::{AbortHandle, JoinError};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::backoff::FOREVER;
use super::exit::{ExitGuard, ExitReason, chain, panic_text};
use super::mailbox::{ActorRef, Envelope, Full};
use super::overseer::{Ended, Outcome, Overseer, OverseerMsg};
use super::report::{CycleReport, StageError};
use super::stage::{CycleContext, Stage, StageSpec};
use super::status::{CycleEnd, StageState, TickReason, millis};
use super::{Core, report_log};

/// How soon a report that did not fit into the overseer's mailbox is sent again.
const REPORT_AGAIN: std::time::Duration = std::time::Duration::from_millis(20);

/// A request for one cycle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tick {
    pub(crate) id: u64,
    pub(crate) reason: TickReason,
}

/// What a stage actor is told.
#[derive(Debug)]
pub(crate) enum StageMsg {
    Tick(Tick),
    /// Finish the running cycle, begin no other, say when it is quiet.
    Quiesce,
    /// Abort the running cycle.
    Abort,
    /// Drain the stage and end.
    Stop,
    #[cfg(test)]
    Crash,
}

struct Running {
    tick: Tick,
    iteration: u64,
    began: Instant,
    token: CancellationToken,
    task: AbortHandle,
    /// The deadline, then the abort, then the finding that it is wedged.
    timer: SpawnHandle,
}

type CycleResult = Result<(Box<dyn Stage>, Result<CycleReport, StageError>), JoinError>;

pub(crate) struct StageActor {
    core: Arc<Core>,
    log: Logger,
    index: usize,
    overseer: ActorRef<Overseer>,
    /// `None` before the first cycle, and while one runs.
    stage: Option<Box<dyn Stage>>,
    running: Option<Running>,
    /// A tick that came while a cycle ran.
    next: Option<Tick>,
    failed_in_row: u32,
    quiescing: bool,
    exit: ExitGuard,
}

impl StageActor {
    pub(crate) fn new(core: Arc<Core>, index: usize, overseer: ActorRef<Overseer>, exit: ExitGuard) -> Self {
        let log = core.log.new(o!("stage" => core.specs[index].name.clone()));
        Self {
            core,
            log,
            index,
            overseer,
            stage: None,
            running: None,
            next: None,
            failed_in_row: 0,
            quiescing: false,
            exit,
        }
    }

    fn spec(&self) -> &StageSpec {
        &self.core.specs[self.index]
    }

    fn tick(&mut self, tick: Tick, ctx: &mut Context<Self>) {
        if self.quiescing || self.exit.reason.is_some() {
            return;
        }
        if self.running.is_some() {
            self.next = Some(tick);
        } else {
            self.begin(tick, ctx);
        }
    }

    fn begin(&mut self, tick: Tick, ctx: &mut Context<Self>) {
        let iteration = self.core.board.begin(self.index, tick.reason);
        let began = Instant::now();
        let deadline = self.spec().deadline.min(FOREVER);
        let token = self.core.stopping.child_token();
        let cx = CycleContext { iteration, deadline: began + deadline, stopping: token.clone() };
        let made = Arc::new(AtomicBool::new(self.stage.is_some()));
        let body = cycle(Arc::clone(&self.core), self.index, self.stage.take(), Arc::clone(&made), cx);
        let join = tokio::spawn(body);
        let task = join.abort_handle();
        self.exit.leftover = Some(task.clone());
        let timer = ctx.run_later(deadline, Self::deadline_passed);
        self.running = Some(Running { tick, iteration, began, token, task, timer });
        ctx.spawn(join.into_actor(self).map(move |result, this, ctx| this.ended(result, &made, ctx)));
    }

    fn deadline_passed(&mut self, ctx: &mut Context<Self>) {
        let Some(running) = &mut self.running else { return };
        warn!(self.log, "stage deadline passed";
            "iteration" => running.iteration, "elapsed_ms" => millis(running.began.elapsed()));
        running.token.cancel();
        running.timer = ctx.run_later(self.core.settings.cancel_grace, Self::abort);
    }

    fn abort(&mut self, ctx: &mut Context<Self>) {
        let Some(running) = &mut self.running else { return };
        running.token.cancel();
        running.task.abort();
        self.core.board.set_state(self.index, StageState::Aborting, None);
        ctx.cancel_future(running.timer);
        running.timer = ctx.run_later(self.core.settings.abort_grace, Self::look_for_wedge);
    }

    fn look_for_wedge(&mut self, _: &mut Context<Self>) {
        let Some(running) = &self.running else { return };
        // It may have ended just now; then its result is on its way.
        if !running.task.is_finished() {
            self.core.board.set_state(self.index, StageState::Wedged, None);
            let elapsed = running.began.elapsed();
            self.overseer.command(OverseerMsg::Wedged { stage: self.index, elapsed });
        }
    }

    fn ended(&mut self, result: CycleResult, made: &AtomicBool, ctx: &mut Context<Self>) {
        self.exit.leftover = None;
        let Some(running) = self.running.take() else { return };
        ctx.cancel_future(running.timer);
        match result {
            Ok((stage, result)) => {
                self.stage = Some(stage);
                match result {
                    Ok(report) => self.reported(running, report, ctx),
                    Err(error) => self.went_wrong(running, error, ctx),
                }
            }
            Err(error) => self.lost(error, made.load(Ordering::Relaxed), ctx),
        }
        if self.exit.reason.is_some() {
            return;
        }
        if self.quiescing {
            self.overseer.command(OverseerMsg::Quiet { stage: self.index });
        } else if let Some(tick) = self.next.take() {
            self.begin(tick, ctx);
        }
    }

    fn reported(&mut self, running: Running, report: CycleReport, ctx: &mut Context<Self>) {
        self.failed_in_row = 0;
        let elapsed = running.began.elapsed();
        self.core.board.end(self.index, CycleEnd::Ok, Some(&report), None);
        let slow = elapsed > self.core.settings.slow_cycle;
        report_log(&self.log, &report, running.iteration, running.tick.reason, elapsed, slow);
        self.report(Ended { stage: self.index, tick: running.tick.id, outcome: Outcome::Report(report) }, ctx);
    }

    fn went_wrong(&mut self, running: Running, error: StageError, ctx: &mut Context<Self>) {
        let text = chain(&error);
        let end = match error {
            StageError::Transient { .. } => CycleEnd::Transient,
            StageError::Failed { .. } => CycleEnd::Failed,
            StageError::Fatal { .. } => CycleEnd::Fatal,
        };
        self.core.board.end(self.index, end, None, Some(text.clone()));
        let outcome = match error {
            StageError::Transient { .. } => Outcome::Transient(text),
            StageError::Failed { .. } => {
                self.failed_in_row += 1;
                let in_row = self.failed_in_row;
                let limit = self.spec().policy.failures_before_restart;
                if in_row >= limit.unwrap_or(self.core.settings.failures_before_restart) {
                    return self.die(ExitReason::Failing { in_row, error: text }, ctx);
                }
                warn!(self.log, "stage cycle failed"; "error" => text, "in_row" => in_row,
                    "iteration" => running.iteration);
                Outcome::Failed
            }
            StageError::Fatal { .. } => return self.die(ExitReason::Fatal(text), ctx),
        };
        self.report(Ended { stage: self.index, tick: running.tick.id, outcome }, ctx);
    }

    /// The cycle's task panicked or was aborted; the stage went with it.
    fn lost(&mut self, error: JoinError, made: bool, ctx: &mut Context<Self>) {
        let (end, reason) = match error.try_into_panic() {
            Ok(payload) => {
                let place = if made { "in its cycle" } else { "in its factory" };
                (CycleEnd::Panicked, ExitReason::Panicked(format!("{place}: {}", panic_text(payload.as_ref()))))
            }
            Err(_) if self.quiescing => (CycleEnd::Aborted, ExitReason::CutShort("its last cycle")),
            Err(_) => (CycleEnd::Aborted, ExitReason::DeadlinePassed),
        };
        self.core.board.end(self.index, end, None, Some(reason.to_string()));
        self.die(reason, ctx);
    }

    fn report(&self, ended: Ended, ctx: &mut Context<Self>) {
        // A lost report would leave the scheduler waiting for ever.
        if let Err(Full(OverseerMsg::Ended(ended))) = self.overseer.tell(OverseerMsg::Ended(ended)) {
            ctx.run_later(REPORT_AGAIN, move |this, ctx| this.report(ended, ctx));
        }
    }

    fn quiesce(&mut self) {
        self.quiescing = true;
        self.next = None;
        match &self.running {
            Some(running) => running.token.cancel(),
            None => self.overseer.command(OverseerMsg::Quiet { stage: self.index }),
        }
    }

    fn stop(&mut self, ctx: &mut Context<Self>) {
        self.quiescing = true;
        let Some(mut stage) = self.stage.take() else {
            return self.die(ExitReason::Stopped, ctx);
        };
        let join = tokio::spawn(async move { stage.drain().await });
        self.exit.leftover = Some(join.abort_handle());
        ctx.spawn(join.into_actor(self).map(|result, this, ctx| {
            this.exit.leftover = None;
            let reason = match result.map_err(JoinError::try_into_panic) {
                Ok(()) => ExitReason::Stopped,
                Err(Ok(payload)) => ExitReason::Panicked(format!("while draining: {}", panic_text(payload.as_ref()))),
                Err(Err(_)) => ExitReason::CutShort("its draining"),
            };
            this.die(reason, ctx);
        }));
    }

    fn die(&mut self, reason: ExitReason, ctx: &mut Context<Self>) {
        self.exit.reason = Some(reason);
        if let Some(stage) = self.stage.take() {
            // Its destructor is its code, and none of that runs on the control thread. A successor waits for it.
            let dropping = tokio::spawn(async move { drop(stage) });
            self.exit.leftover = Some(dropping.abort_handle());
        }
        ctx.stop();
    }
}

/// One cycle. It carries the stage in and out, so that a stage whose cycle was aborted or panicked is gone with it.
async fn cycle(
    core: Arc<Core>,
    index: usize,
    stage: Option<Box<dyn Stage>>,
    made: Arc<AtomicBool>,
    cx: CycleContext,
) -> (Box<dyn Stage>, Result<CycleReport, StageError>) {
    let mut stage = stage.unwrap_or_else(|| (core.specs[index].factory)());
    made.store(true, Ordering::Relaxed);
    let result = stage.run_cycle(&cx).await;
    (stage, result)
}

impl Actor for StageActor {
    type Context = Context<Self>;
}

impl Handler<Envelope<StageMsg>> for StageActor {
    type Result = ();

    fn handle(&mut self, envelope: Envelope<StageMsg>, ctx: &mut Self::Context) {
        let (message, _handling) = envelope.open();
        match message {
            StageMsg::Tick(tick) => self.tick(tick, ctx),
            StageMsg::Quiesce => self.quiesce(),
            StageMsg::Abort => {
                self.quiescing = true;
                self.abort(ctx);
            }
            StageMsg::Stop => self.stop(ctx),
            #[cfg(test)]
            StageMsg::Crash => panic!("the stage actor was told to crash"),
        }
    }
}
