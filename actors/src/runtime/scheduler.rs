//! The scheduler: sends the ticks that the timetable decides on.
//!
//! It holds no truth of its own: after a death the overseer makes a new one and tells it again who is up, paused or backing
//! off. A tick of its predecessor that is still being served is served, and its report counts.

use std::sync::Arc;

use actix::{Actor, ActorContext, AsyncContext, Context, Handler, SpawnHandle};
use slog::{debug, warn};
use tokio::time::Instant;

use super::backoff::worth_a_line;
use super::exit::{ExitGuard, ExitReason};
use super::mailbox::{ActorRef, Envelope};
use super::stage::selects;
use super::stage_actor::{StageActor, StageMsg, Tick};
use super::status::{TickReason, millis};
use super::timetable::{Action, Timetable, Wish};
use super::{Core, log_name};

/// What the overseer tells the scheduler.
#[derive(Debug)]
pub(crate) enum SchedulerMsg {
    /// The stage can be ticked.
    Up {
        stage: usize,
        to: ActorRef<StageActor>,
        first: Option<TickReason>,
        held_until: Option<Instant>,
    },
    /// It cannot.
    Down {
        stage: usize,
    },
    /// One of its cycles ended.
    Ended {
        stage: usize,
        tick: u64,
        wish: Wish,
        wakes: Vec<&'static str>,
    },
    /// Work came for a family.
    Wake {
        family: String,
    },
    /// An operator's orders.
    Pause {
        stage: usize,
    },
    Resume {
        stage: usize,
    },
    Tick {
        stage: usize,
    },
    /// The process drains: no more ticks.
    Stop,
    #[cfg(test)]
    Crash,
}

pub(crate) struct Scheduler {
    core: Arc<Core>,
    timetable: Timetable,
    stages: Vec<Option<ActorRef<StageActor>>>,
    timer: Option<(Instant, SpawnHandle)>,
    /// How many cycles in a row had a wave over budget.
    over_budget: u32,
    over_budget_now: bool,
    exit: ExitGuard,
}

impl Scheduler {
    pub(crate) fn new(core: Arc<Core>, timetable: Timetable, exit: ExitGuard) -> Self {
        let stages = core.specs.iter().map(|_| None).collect();
        Self { core, timetable, stages, timer: None, over_budget: 0, over_budget_now: false, exit }
    }

    /// Takes a message in, without acting on it yet.
    pub(crate) fn take(&mut self, message: SchedulerMsg) {
        match message {
            SchedulerMsg::Up { stage, to, first, held_until } => {
                self.stages[stage] = Some(to);
                if self.core.board.is_paused(stage) {
                    self.timetable.pause(stage);
                }
                self.timetable.up(stage, first);
                if let Some(until) = held_until {
                    self.timetable.hold(stage, until);
                }
            }
            SchedulerMsg::Down { stage } => {
                self.stages[stage] = None;
                self.timetable.down(stage);
            }
            SchedulerMsg::Ended { stage, tick, wish, wakes } => {
                self.timetable.ended(Instant::now(), stage, tick, wish);
                for family in wakes {
                    self.wake(family);
                }
            }
            SchedulerMsg::Wake { family } => self.wake(&family),
            SchedulerMsg::Pause { stage } => self.timetable.pause(stage),
            SchedulerMsg::Resume { stage } => self.timetable.resume(stage),
            SchedulerMsg::Tick { stage } => self.timetable.request(stage, TickReason::Operator),
            SchedulerMsg::Stop => self.exit.reason = Some(ExitReason::Stopped),
            #[cfg(test)]
            SchedulerMsg::Crash => panic!("the scheduler was told to crash"),
        }
    }

    fn wake(&mut self, woken: &str) {
        for (stage, spec) in self.core.specs.iter().enumerate() {
            if selects(woken, &spec.name) {
                self.timetable.request(stage, TickReason::Wake);
            }
        }
    }

    /// Does what is due, and sets the timer for what is due next.
    fn advance(&mut self, ctx: &mut Context<Self>) {
        for action in self.timetable.advance(Instant::now()) {
            match action {
                Action::Tick { stage, tick, reason } => self.tick(stage, Tick { id: tick, reason }),
                Action::WaveOverBudget { stages } => self.note_over_budget(&stages),
                Action::CycleCompleted { took } => {
                    self.core.board.tally(|totals| totals.cycles += 1);
                    if !std::mem::take(&mut self.over_budget_now) {
                        self.over_budget = 0;
                    }
                    debug!(self.core.log, "cycle completed"; "duration_ms" => millis(took));
                }
            }
        }
        let coalesced = self.timetable.take_coalesced();
        self.core.board.tally(|totals| totals.coalesced_ticks += coalesced);
        self.set_timer(ctx);
    }

    fn tick(&mut self, stage: usize, tick: Tick) {
        let delivered = self.stages[stage].as_ref().is_some_and(|to| to.tell(StageMsg::Tick(tick)).is_ok());
        if !delivered {
            self.timetable.undelivered(Instant::now(), stage);
        }
    }

    fn note_over_budget(&mut self, stages: &[usize]) {
        if !self.over_budget_now {
            self.over_budget_now = true;
            self.over_budget += 1;
        }
        if worth_a_line(self.over_budget) {
            let late: Vec<&str> = stages.iter().map(|stage| log_name(&self.core, *stage)).collect();
            warn!(self.core.log, "wave over budget";
                "late" => late.join(" "),
                "budget_ms" => millis(self.core.settings.wave_budget),
                "cycles_in_row" => self.over_budget);
        }
    }

    fn set_timer(&mut self, ctx: &mut Context<Self>) {
        let at = self.timetable.next_wakeup();
        if let Some((armed, handle)) = self.timer {
            // Waking too early is harmless, and cheaper than a new timer for each tick.
            if armed <= at {
                return;
            }
            ctx.cancel_future(handle);
        }
        let handle = ctx.run_later(at.saturating_duration_since(Instant::now()), |this, ctx| {
            this.timer = None;
            this.advance(ctx);
        });
        self.timer = Some((at, handle));
    }
}

impl Actor for Scheduler {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.advance(ctx);
    }
}

impl Handler<Envelope<SchedulerMsg>> for Scheduler {
    type Result = ();

    fn handle(&mut self, envelope: Envelope<SchedulerMsg>, ctx: &mut Self::Context) {
        let (message, _handling) = envelope.open();
        self.take(message);
        if self.exit.reason.is_some() {
            ctx.stop();
        } else {
            self.advance(ctx);
        }
    }
}
