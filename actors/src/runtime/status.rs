//! What each actor does now and did last, readable from any thread at any time.
//!
//! The actors write, each its own part; nobody decides anything by what stands here, except that a paused stage stays paused
//! when the scheduler is restarted. A snapshot never waits for an actor.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;

use super::metrics::{MailboxMetrics, MailboxStatus};
use super::report::CycleReport;
use super::stage::{StageSpec, family, selects};
use super::totals::Totals;
use super::watchdog::Heartbeat;

/// Why a stage was ticked.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum TickReason {
    /// Its wave of the cycle came.
    Cycle,
    /// Its own period passed.
    Period,
    /// Its last report said that there is more to do.
    More,
    /// Its last report said that something becomes due now.
    Due,
    /// Another stage, or the process, has work for it.
    Wake,
    /// It backed off, and tries again.
    Retry,
    /// It was restarted.
    Restart,
    /// It was resumed.
    Resume,
    /// An operator asked for it.
    Operator,
}

impl TickReason {
    /// As it stands in logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cycle => "cycle",
            Self::Period => "period",
            Self::More => "more",
            Self::Due => "due",
            Self::Wake => "wake",
            Self::Retry => "retry",
            Self::Restart => "restart",
            Self::Resume => "resume",
            Self::Operator => "operator",
        }
    }
}

/// What an actor is doing.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum StageState {
    /// It waits for a tick.
    Idle,
    /// A cycle runs.
    Running,
    /// Its cycle was aborted, and has not ended yet.
    Aborting,
    /// Something it needs is down; it waits before it tries again.
    BackingOff,
    /// It died and waits for its restart.
    Down,
    /// Its cycle ignores the abort.
    Wedged,
    /// It was stopped for good: the process drains, or the stage was given up.
    Stopped,
}

/// How a cycle ended.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum CycleEnd {
    /// With a report.
    Ok,
    /// With [`StageError::Transient`](super::report::StageError::Transient).
    Transient,
    /// With [`StageError::Failed`](super::report::StageError::Failed).
    Failed,
    /// With [`StageError::Fatal`](super::report::StageError::Fatal).
    Fatal,
    /// With a panic, in the cycle or in the factory.
    Panicked,
    /// It was aborted at its deadline, or when the process drained.
    Aborted,
}

impl CycleEnd {
    /// For people.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Transient => "a transient error",
            Self::Failed => "a failure",
            Self::Fatal => "a fatal error",
            Self::Panicked => "a panic",
            Self::Aborted => "its abort",
        }
    }
}

/// A cycle that runs.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct CurrentCycle {
    /// Which one, counted from 1.
    pub iteration: u64,
    /// Why it was ticked.
    pub reason: TickReason,
    /// How long it has been running.
    pub elapsed_ms: u64,
}

/// A cycle that ended.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct LastCycle {
    /// Which one, counted from 1.
    pub iteration: u64,
    /// Why it was ticked.
    pub reason: TickReason,
    /// How it ended.
    pub end: CycleEnd,
    /// How long it took.
    pub duration_ms: u64,
    /// How long ago it ended.
    pub ended_ms_ago: u64,
    /// What it did.
    pub counts: BTreeMap<Cow<'static, str>, u64>,
    /// Whether it said that there is more to do.
    pub more: bool,
    /// What kept it from doing all it wanted.
    pub blocked_by: Vec<String>,
    /// The error with its causes, where it ended with one.
    pub error: Option<String>,
}

/// One stage at one moment.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct StageStatus {
    /// Its name.
    pub name: String,
    /// The family it belongs to.
    pub family: String,
    /// What it is for.
    pub purpose: String,
    /// What it is doing.
    pub state: StageState,
    /// How long one of its cycles may take.
    pub deadline_ms: u64,
    /// Whether an operator paused it.
    pub paused: bool,
    /// The cycle that runs.
    pub current: Option<CurrentCycle>,
    /// The cycle that ended last.
    pub last: Option<LastCycle>,
    /// Cycles begun since the process started.
    pub cycles: u64,
    /// Restarts since the process started.
    pub restarts: u64,
    /// Transient errors in a row.
    pub transient_in_row: u32,
    /// How long it still backs off, or stays down, before it is tried again.
    pub waits_ms: Option<u64>,
}

/// What the process as a whole is doing.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// `run` was not called yet.
    Created,
    /// Stages are ticked.
    Running,
    /// Stages finish and stop.
    Draining,
    /// `run` returned, or is about to.
    Ended,
}

/// Everything at one moment.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct RuntimeStatus {
    /// What the process is doing.
    pub phase: Phase,
    /// How long since the runtime was made.
    pub uptime_ms: u64,
    /// How long ago the control thread last showed that it moves.
    pub control_silent_ms: u64,
    /// What was counted so far.
    pub totals: Totals,
    /// The stages, in the order of registration.
    pub stages: Vec<StageStatus>,
    /// The mailboxes of all actors.
    pub mailboxes: Vec<MailboxStatus>,
}

impl RuntimeStatus {
    /// The stage of this name.
    #[must_use]
    pub fn stage(&self, name: &str) -> Option<&StageStatus> {
        self.stages.iter().find(|stage| stage.name == name)
    }
}

/// Whole milliseconds, as all durations in a status are.
#[must_use]
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

struct Entry {
    name: String,
    purpose: String,
    deadline: Duration,
    state: StageState,
    paused: bool,
    current: Option<(u64, TickReason, Instant)>,
    last: Option<(LastCycle, Instant)>,
    cycles: u64,
    restarts: u64,
    transient_in_row: u32,
    waits_until: Option<Instant>,
}

/// Where the actors write.
pub(crate) struct Board {
    born: Instant,
    heartbeat: Heartbeat,
    phase: Mutex<Phase>,
    totals: Mutex<Totals>,
    entries: Mutex<Vec<Entry>>,
    mailboxes: Mutex<Vec<Arc<MailboxMetrics>>>,
}

fn owned(counts: &[(&'static str, u64)]) -> BTreeMap<Cow<'static, str>, u64> {
    counts.iter().map(|(unit, n)| (Cow::Borrowed(*unit), *n)).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code that can panic half-way runs under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Board {
    pub(crate) fn new(specs: &[StageSpec]) -> Self {
        let entry = |spec: &StageSpec| Entry {
            name: spec.name.clone(),
            purpose: spec.purpose.clone(),
            deadline: spec.deadline,
            state: StageState::Idle,
            paused: false,
            current: None,
            last: None,
            cycles: 0,
            restarts: 0,
            transient_in_row: 0,
            waits_until: None,
        };
        Self {
            born: Instant::now(),
            heartbeat: Heartbeat::default(),
            phase: Mutex::new(Phase::Created),
            totals: Mutex::default(),
            entries: Mutex::new(specs.iter().map(entry).collect()),
            mailboxes: Mutex::new(Vec::new()),
        }
    }

    fn with<R>(&self, stage: usize, change: impl FnOnce(&mut Entry) -> R) -> R {
        change(&mut lock(&self.entries)[stage])
    }

    pub(crate) fn age(&self) -> Duration {
        self.born.elapsed()
    }

    /// Only the control thread may say this.
    pub(crate) fn beat(&self) {
        self.heartbeat.beat();
    }

    pub(crate) fn heartbeat(&self) -> &Heartbeat {
        &self.heartbeat
    }

    pub(crate) fn beats(&self) -> watch::Receiver<std::time::Instant> {
        self.heartbeat.subscribe()
    }

    pub(crate) fn silent_for(&self) -> Duration {
        self.heartbeat.last().elapsed()
    }

    /// Only the control thread changes phases, so each change is a beat too.
    pub(crate) fn set_phase(&self, phase: Phase) {
        *lock(&self.phase) = phase;
        self.beat();
    }

    /// Counts something.
    pub(crate) fn tally(&self, count: impl FnOnce(&mut Totals)) {
        count(&mut lock(&self.totals));
    }

    pub(crate) fn totals(&self) -> Totals {
        *lock(&self.totals)
    }

    pub(crate) fn add_mailbox(&self, metrics: &Arc<MailboxMetrics>) {
        lock(&self.mailboxes).push(Arc::clone(metrics));
    }

    pub(crate) fn mailboxes(&self) -> Vec<MailboxStatus> {
        lock(&self.mailboxes).iter().map(|metrics| metrics.status()).collect()
    }

    /// The stages that `selector` means.
    pub(crate) fn select(&self, selector: &str) -> Vec<usize> {
        let entries = lock(&self.entries);
        entries.iter().enumerate().filter(|(_, entry)| selects(selector, &entry.name)).map(|(index, _)| index).collect()
    }

    /// Notes that a cycle begins, and says which one it is.
    pub(crate) fn begin(&self, stage: usize, reason: TickReason) -> u64 {
        self.with(stage, |entry| {
            entry.cycles += 1;
            entry.current = Some((entry.cycles, reason, Instant::now()));
            entry.state = StageState::Running;
            entry.waits_until = None;
            entry.cycles
        })
    }

    /// Notes how the current cycle ended.
    pub(crate) fn end(&self, stage: usize, end: CycleEnd, report: Option<&CycleReport>, error: Option<String>) {
        let now = Instant::now();
        self.tally(|totals| {
            totals.stage_cycles += 1;
            totals.full += u64::from(report.is_some_and(|report| report.more));
            totals.failed += u64::from(report.is_none());
        });
        self.with(stage, |entry| {
            entry.state = StageState::Idle;
            let Some((iteration, reason, began)) = entry.current.take() else { return };
            let last = LastCycle {
                iteration,
                reason,
                end,
                duration_ms: millis(now - began),
                ended_ms_ago: 0,
                counts: report.map(|report| owned(&report.counts)).unwrap_or_default(),
                more: report.is_some_and(|report| report.more),
                blocked_by: report.map(|report| report.blocked_by.clone()).unwrap_or_default(),
                error,
            };
            entry.last = Some((last, now));
        });
    }

    pub(crate) fn set_state(&self, stage: usize, state: StageState, waits_until: Option<Instant>) {
        self.with(stage, |entry| {
            entry.state = state;
            entry.waits_until = waits_until;
            if matches!(state, StageState::Down | StageState::Stopped) {
                entry.current = None;
            }
        });
    }

    pub(crate) fn set_transient_in_row(&self, stage: usize, in_row: u32) {
        self.with(stage, |entry| entry.transient_in_row = in_row);
    }

    pub(crate) fn restarted(&self, stage: usize) {
        self.with(stage, |entry| {
            entry.restarts += 1;
            entry.state = StageState::Idle;
            entry.waits_until = None;
        });
    }

    pub(crate) fn set_paused(&self, stage: usize, paused: bool) {
        self.with(stage, |entry| entry.paused = paused);
    }

    pub(crate) fn is_paused(&self, stage: usize) -> bool {
        self.with(stage, |entry| entry.paused)
    }

    pub(crate) fn snapshot(&self) -> RuntimeStatus {
        let now = Instant::now();
        RuntimeStatus {
            phase: *lock(&self.phase),
            uptime_ms: millis(self.age()),
            control_silent_ms: millis(self.silent_for()),
            totals: self.totals(),
            stages: lock(&self.entries).iter().map(|entry| entry.status(now)).collect(),
            mailboxes: self.mailboxes(),
        }
    }
}

impl Entry {
    fn status(&self, now: Instant) -> StageStatus {
        StageStatus {
            name: self.name.clone(),
            family: family(&self.name).to_owned(),
            purpose: self.purpose.clone(),
            deadline_ms: millis(self.deadline),
            state: self.state,
            paused: self.paused,
            current: self.current.map(|(iteration, reason, began)| CurrentCycle {
                iteration,
                reason,
                elapsed_ms: millis(now.saturating_duration_since(began)),
            }),
            last: self.last.as_ref().map(|(last, ended)| LastCycle {
                ended_ms_ago: millis(now.saturating_duration_since(*ended)),
                ..last.clone()
            }),
            cycles: self.cycles,
            restarts: self.restarts,
            transient_in_row: self.transient_in_row,
            waits_ms: self.waits_until.map(|until| millis(until.saturating_duration_since(now))),
        }
    }
}
