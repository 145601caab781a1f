//! The overseer: decides what follows from what its children report and how they die.
//!
//! - One for one: a death restarts that child and no other, after a jittered backoff that grows until the child has been healthy.
//! - Too many deaths of one child, or of all, within a sliding window: the run escalates. So does a wedged cycle, because a
//!   second copy must never run beside it.
//! - A stage that is not essential is stopped for good instead, and said to be at intervals; its deaths count for itself alone.
//! - A transient error makes a stage back off. It is never a death.
//! - The scheduler is a child like the stages. The overseer's own death ends the run: whoever waits for the outcome learns it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, AsyncContext, Context, Handler, StreamHandler};
use slog::{debug, error, info, o, warn};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::backoff::{Deaths, worth_a_line};
use super::drain::Drain;
use super::exit::{Child, Exit, ExitGuard, ExitReason};
use super::handle::Command;
use super::mailbox::{ActorRef, Envelope};
use super::metrics::MailboxMetrics;
use super::obstacles::{News, Obstacles};
use super::report::CycleReport;
use super::reporting::{Reporter, tell_mailboxes};
use super::scheduler::{Scheduler, SchedulerMsg};
use super::stage::Schedule;
use super::stage_actor::{StageActor, StageMsg};
use super::status::{Phase, StageState, TickReason, millis};
use super::timetable::{Rhythm, Timetable, Wish};
use super::{Core, RunOutcome};

/// How many lines of a child's history an escalation tells.
const HISTORY: usize = 16;

/// How often a successor looks whether the task of its predecessor has ended.
const LEFTOVER_CHECK: Duration = Duration::from_millis(50);

/// How often the control thread shows that it moves.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// What the overseer is told by its children.
#[derive(Debug)]
pub(crate) enum OverseerMsg {
    Ended(Ended),
    Exit(Exit),
    /// A cycle ignores its abort.
    Wedged {
        stage: usize,
        elapsed: Duration,
    },
    /// A stage that was told to quiesce runs no cycle any more.
    Quiet {
        stage: usize,
    },
}

/// A cycle ended, and the stage lives.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) stage: usize,
    pub(crate) tick: u64,
    pub(crate) outcome: Outcome,
}

/// How it ended; errors as text with their causes.
#[derive(Debug)]
pub(crate) enum Outcome {
    Report(CycleReport),
    Transient(String),
    Failed,
}

/// What is remembered of a child over all its lives.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) name: String,
    metrics: Arc<MailboxMetrics>,
    life: u64,
    born: Instant,
    deaths: Deaths,
    /// Deaths in a row without health between them.
    unhealthy: u32,
    transient_in_row: u32,
    obstacles: Obstacles,
    held_until: Option<Instant>,
    pub(super) wedged: bool,
    given_up: bool,
    history: VecDeque<String>,
}

impl Record {
    fn new(core: &Core, name: &str) -> Self {
        let metrics = MailboxMetrics::new(name, core.settings.mailbox_capacity);
        core.board.add_mailbox(&metrics);
        Self {
            name: name.to_owned(),
            metrics,
            life: 0,
            born: Instant::now(),
            deaths: Deaths::default(),
            unhealthy: 0,
            transient_in_row: 0,
            obstacles: Obstacles::default(),
            held_until: None,
            wedged: false,
            given_up: false,
            history: VecDeque::new(),
        }
    }

    fn note(&mut self, age: Duration, what: &str) {
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(format!("{:.3}s {what}", age.as_secs_f64()));
    }
}

pub(crate) struct Overseer {
    pub(super) core: Arc<Core>,
    me: Option<ActorRef<Self>>,
    metrics: Arc<MailboxMetrics>,
    pub(super) stages: Vec<Option<ActorRef<StageActor>>>,
    pub(super) scheduler: Option<ActorRef<Scheduler>>,
    /// The stages', then the scheduler's.
    pub(super) records: Vec<Record>,
    all_deaths: Deaths,
    pub(super) drain: Option<Drain>,
    pub(super) outcome: Option<oneshot::Sender<RunOutcome>>,
    pub(super) reporter: Reporter,
}

impl Overseer {
    pub(crate) fn new(core: Arc<Core>, outcome: oneshot::Sender<RunOutcome>) -> Self {
        let metrics = MailboxMetrics::new("overseer", core.settings.mailbox_capacity);
        core.board.add_mailbox(&metrics);
        let names = core.specs.iter().map(|spec| spec.name.as_str()).chain(["scheduler"]);
        let records = names.map(|name| Record::new(&core, name)).collect();
        Self {
            stages: core.specs.iter().map(|_| None).collect(),
            core,
            me: None,
            metrics,
            scheduler: None,
            records,
            all_deaths: Deaths::default(),
            drain: None,
            outcome: Some(outcome),
            reporter: Reporter::new(),
        }
    }

    fn key(&self, child: Child) -> usize {
        match child {
            Child::Stage(stage) => stage,
            Child::Scheduler => self.core.specs.len(),
        }
    }

    fn tell_scheduler(&self, message: SchedulerMsg) {
        if let Some(scheduler) = &self.scheduler {
            scheduler.command(message);
        }
    }

    // ---- births

    fn start(&mut self, child: Child, ctx: &mut Context<Self>) {
        let key = self.key(child);
        let me = self.me.get_or_insert_with(|| ActorRef::new(ctx.address(), Arc::clone(&self.metrics))).clone();
        let record = &mut self.records[key];
        record.life += 1;
        record.born = Instant::now();
        let guard = ExitGuard::new(me.clone(), child, record.life);
        let (life, metrics, core) = (record.life, Arc::clone(&record.metrics), Arc::clone(&self.core));
        match child {
            Child::Stage(stage) => {
                let actor = StageActor::new(core, stage, me, guard);
                let to = ActorRef::new(actor.start(), metrics);
                self.stages[stage] = Some(to.clone());
                let first = (life > 1).then_some(TickReason::Restart);
                self.tell_scheduler(SchedulerMsg::Up { stage, to, first, held_until: None });
            }
            Child::Scheduler => {
                let mut actor = Scheduler::new(core, self.timetable(life), guard);
                // Told before it starts, so that its first cycle has all of them.
                for (stage, to) in self.stages.iter().enumerate() {
                    if let Some(to) = to.clone() {
                        let held_until = self.records[stage].held_until;
                        actor.take(SchedulerMsg::Up { stage, to, first: None, held_until });
                    }
                }
                self.scheduler = Some(ActorRef::new(actor.start(), metrics));
            }
        }
    }

    fn timetable(&self, life: u64) -> Timetable {
        let settings = &self.core.settings;
        let rhythm =
            Rhythm { interval: settings.cycle_interval, jitter: settings.cycle_jitter, budget: settings.wave_budget };
        let period = |schedule: Schedule| match schedule {
            Schedule::InCycle => None,
            Schedule::Every(period) => Some(period),
        };
        let periods: Vec<_> = self.core.specs.iter().map(|spec| period(spec.schedule)).collect();
        let in_cycle = |level: &Vec<usize>| -> Vec<usize> {
            level.iter().copied().filter(|stage| periods[*stage].is_none()).collect()
        };
        let waves = self.core.levels.iter().map(in_cycle).filter(|wave| !wave.is_empty()).collect();
        Timetable::new(rhythm, &periods, waves, life << 40, Instant::now())
    }

    // ---- ends of cycles

    fn ended(&mut self, ended: Ended) {
        let Ended { stage, tick, outcome } = ended;
        let (wish, wakes) = match outcome {
            Outcome::Report(report) => {
                self.recovered(stage);
                self.tell_obstacles(stage, &report.blocked_by.join("; "));
                (Wish { more: report.more, due_in: report.due_in, hold: None }, report.wakes)
            }
            Outcome::Transient(error) => {
                let hold = Some(self.backs_off(stage, &error));
                (Wish { hold, ..Wish::default() }, Vec::new())
            }
            Outcome::Failed => (Wish::default(), Vec::new()),
        };
        self.tell_scheduler(SchedulerMsg::Ended { stage, tick, wish, wakes });
    }

    fn recovered(&mut self, stage: usize) {
        let record = &mut self.records[stage];
        record.held_until = None;
        let errors = std::mem::take(&mut record.transient_in_row);
        if errors > 0 {
            info!(self.core.log, "stage recovered"; "stage" => &record.name, "transient_errors" => errors);
            self.core.board.set_transient_in_row(stage, 0);
        }
    }

    fn tell_obstacles(&mut self, stage: usize, blocked_by: &str) {
        let record = &mut self.records[stage];
        match record.obstacles.note(blocked_by, Instant::now(), self.core.settings.healthy_after) {
            Some(News::Blocked { times }) => {
                warn!(self.core.log, "stage blocked"; "stage" => &record.name, "blocked_by" => blocked_by, "times" => times);
            }
            Some(News::Unblocked) => info!(self.core.log, "stage unblocked"; "stage" => &record.name),
            None => {}
        }
    }

    fn backs_off(&mut self, stage: usize, error: &str) -> Duration {
        let record = &mut self.records[stage];
        let delay = self.core.settings.transient_backoff.delay(record.transient_in_row);
        record.transient_in_row = record.transient_in_row.saturating_add(1);
        let in_row = record.transient_in_row;
        let until = Instant::now() + delay;
        record.held_until = Some(until);
        self.core.board.set_state(stage, StageState::BackingOff, Some(until));
        self.core.board.set_transient_in_row(stage, in_row);
        let log = self.core.log.new(o!("stage" => record.name.clone(), "in_row" => in_row,
            "backoff_ms" => millis(delay), "error" => error.to_owned()));
        if worth_a_line(in_row) {
            warn!(log, "stage backs off");
        } else {
            debug!(log, "stage backs off");
        }
        delay
    }

    // ---- deaths

    fn exited(&mut self, exit: Exit, ctx: &mut Context<Self>) {
        let key = self.key(exit.child);
        if self.records[key].life != exit.life {
            return;
        }
        match exit.child {
            Child::Stage(stage) => self.stages[stage] = None,
            Child::Scheduler => self.scheduler = None,
        }
        let age = self.core.board.age();
        self.records[key].note(age, &exit.reason.to_string());
        if exit.reason != ExitReason::Stopped {
            self.core.board.tally(|totals| totals.deaths += 1);
        }
        if self.is_ending() {
            self.exited_while_draining(exit, ctx);
            return;
        }
        let now = Instant::now();
        let settings = &self.core.settings;
        let counts = exit.reason.counts();
        let essential = self.is_essential(exit.child);
        let record = &mut self.records[key];
        let too_often = counts && record.deaths.record(now, settings.child_intensity);
        if too_often && !essential {
            self.give_up(key, &exit);
            return;
        }
        let all_too_often = counts && essential && self.all_deaths.record(now, settings.total_intensity);
        if too_often || all_too_often {
            let whose = if too_often { "its" } else { "the stages'" };
            let reason = format!("{}; with that {whose} restarts are more than the intensity allows", exit.reason);
            self.escalate(key, reason, ctx);
            return;
        }
        if now.duration_since(record.born) >= settings.healthy_after {
            record.unhealthy = 0;
        }
        let delay = settings.restart_backoff.delay(record.unhealthy);
        record.unhealthy = record.unhealthy.saturating_add(1);
        self.announce_restart(&exit, key, delay, now);
        ctx.run_later(delay, move |this, ctx| this.restart(exit.child, exit.life, exit.leftover, now, ctx));
    }

    fn is_essential(&self, child: Child) -> bool {
        match child {
            Child::Stage(stage) => self.core.specs[stage].policy.essential,
            Child::Scheduler => true,
        }
    }

    /// A stage that the others can do without stays down.
    fn give_up(&mut self, stage: usize, exit: &Exit) {
        let record = &mut self.records[stage];
        record.given_up = true;
        let history: Vec<&str> = record.history.iter().map(String::as_str).collect();
        error!(self.core.log, "stage is given up"; "stage" => &record.name, "kind" => exit.reason.kind(),
            "reason" => %exit.reason, "history" => history.join("; "));
        self.core.board.set_state(stage, StageState::Stopped, None);
        self.tell_scheduler(SchedulerMsg::Down { stage });
    }

    fn announce_restart(&self, exit: &Exit, key: usize, delay: Duration, now: Instant) {
        warn!(self.core.log, "stage died";
            "stage" => &self.records[key].name, "kind" => exit.reason.kind(), "reason" => %exit.reason,
            "life" => exit.life, "restart_in_ms" => millis(delay));
        if let Child::Stage(stage) = exit.child {
            self.core.board.set_state(stage, StageState::Down, Some(now + delay));
            self.tell_scheduler(SchedulerMsg::Down { stage });
        }
    }

    fn restart(
        &mut self,
        child: Child,
        life: u64,
        leftover: Option<AbortHandle>,
        died: Instant,
        ctx: &mut Context<Self>,
    ) {
        let key = self.key(child);
        if self.is_ending() || self.records[key].life != life {
            return;
        }
        if leftover.as_ref().is_some_and(|cycle| !cycle.is_finished()) {
            if died.elapsed() >= self.core.settings.abort_grace {
                self.wedged(key, died.elapsed(), ctx);
            } else {
                ctx.run_later(LEFTOVER_CHECK, move |this, ctx| this.restart(child, life, leftover, died, ctx));
            }
            return;
        }
        if let Child::Stage(stage) = child {
            // A stage that backed off before it died does not owe that to its successor.
            self.records[key].held_until = None;
            self.core.board.restarted(stage);
        }
        self.core.board.tally(|totals| totals.restarts += 1);
        self.start(child, ctx);
        info!(self.core.log, "stage restarted"; "stage" => &self.records[key].name, "life" => life + 1);
    }

    fn wedged(&mut self, key: usize, elapsed: Duration, ctx: &mut Context<Self>) {
        let record = &mut self.records[key];
        record.wedged = true;
        let reason = format!("wedged: a cycle ignores its abort, {} ms after it began", millis(elapsed));
        record.note(self.core.board.age(), &reason);
        self.core.board.set_state(key, StageState::Wedged, None);
        if self.is_ending() {
            self.given_up(key, ctx);
        } else {
            self.escalate(key, reason, ctx);
        }
    }

    fn escalate(&mut self, key: usize, reason: String, ctx: &mut Context<Self>) {
        let record = &self.records[key];
        let history: Vec<String> = record.history.iter().cloned().collect();
        error!(self.core.log, "run escalates"; "stage" => &record.name, "reason" => &reason);
        if key < self.core.specs.len() && !record.wedged {
            self.core.board.set_state(key, StageState::Down, None);
        }
        let outcome = RunOutcome::Escalated { stage: record.name.clone(), reason, history };
        self.begin_drain(outcome, ctx);
    }

    fn obey(&mut self, command: Command, ctx: &mut Context<Self>) {
        match command {
            Command::Wake(family) => self.tell_scheduler(SchedulerMsg::Wake { family }),
            Command::Pause(stage) => self.tell_scheduler(SchedulerMsg::Pause { stage }),
            Command::Resume(stage) => self.tell_scheduler(SchedulerMsg::Resume { stage }),
            Command::Tick(stage) => self.tell_scheduler(SchedulerMsg::Tick { stage }),
            Command::Drain if self.drain.is_some() => self.force(),
            Command::Drain if self.is_ending() => {}
            Command::Drain => self.begin_drain(RunOutcome::Drained, ctx),
            #[cfg(test)]
            Command::Crash(None) => panic!("the overseer was told to crash"),
            #[cfg(test)]
            Command::Crash(Some(Child::Scheduler)) => self.tell_scheduler(SchedulerMsg::Crash),
            #[cfg(test)]
            Command::Crash(Some(Child::Stage(stage))) => self.tell_stage(stage, StageMsg::Crash),
        }
    }

    pub(super) fn tell_stage(&self, stage: usize, message: StageMsg) {
        if let Some(to) = &self.stages[stage] {
            to.command(message);
        }
    }

    fn report(&mut self) {
        for record in self.records.iter().filter(|record| record.given_up) {
            warn!(self.core.log, "stage stays down"; "stage" => &record.name, "lives" => record.life);
        }
        tell_mailboxes(&self.core);
        self.reporter.tell_runtime(&self.core);
    }
}

impl Actor for Overseer {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.core.board.set_phase(Phase::Running);
        for stage in 0..self.stages.len() {
            self.start(Child::Stage(stage), ctx);
        }
        self.start(Child::Scheduler, ctx);
        ctx.run_interval(HEARTBEAT, |this, _| this.core.board.beat());
        let report_interval = self.core.settings.report_interval;
        if !report_interval.is_zero() {
            ctx.run_interval(report_interval, |this, _| this.report());
        }
    }
}

impl Handler<Envelope<OverseerMsg>> for Overseer {
    type Result = ();

    fn handle(&mut self, envelope: Envelope<OverseerMsg>, ctx: &mut Self::Context) {
        let (message, _handling) = envelope.open();
        match message {
            OverseerMsg::Ended(ended) => self.ended(ended),
            OverseerMsg::Exit(exit) => self.exited(exit, ctx),
            OverseerMsg::Wedged { stage, elapsed } => self.wedged(stage, elapsed, ctx),
            OverseerMsg::Quiet { stage } => self.settled(stage, ctx),
        }
    }
}

impl StreamHandler<Command> for Overseer {
    fn handle(&mut self, command: Command, ctx: &mut Self::Context) {
        self.obey(command, ctx);
    }

    /// All handles are gone. The run goes on: the default would stop the overseer.
    fn finished(&mut self, _: &mut Self::Context) {}
}
