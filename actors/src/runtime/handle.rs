//! The runtime from outside: orders and questions, from any thread, before, during and after the run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::channel::mpsc::UnboundedSender;
use tokio::sync::watch;

#[cfg(test)]
use super::exit::Child;
use super::status::{Board, RuntimeStatus};

/// An order on its way to the overseer.
#[derive(Debug)]
pub(crate) enum Command {
    Wake(String),
    Pause(usize),
    Resume(usize),
    Tick(usize),
    Drain,
    #[cfg(test)]
    Crash(Option<Child>),
}

/// No stage and no family has this name.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("no stage and no family is named {0:?}")]
pub struct UnknownStage(pub String);

/// A cheap, cloneable handle to a runtime. Orders given before `run` are obeyed when it begins; after it, they do nothing.
#[derive(Clone)]
pub struct RuntimeHandle {
    orders: UnboundedSender<Command>,
    board: Arc<Board>,
}

impl std::fmt::Debug for RuntimeHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RuntimeHandle").finish_non_exhaustive()
    }
}

impl RuntimeHandle {
    pub(crate) fn new(orders: UnboundedSender<Command>, board: Arc<Board>) -> Self {
        Self { orders, board }
    }

    fn order(&self, command: Command) {
        // It can fail only after the run, when there is nobody to obey.
        let _ = self.orders.unbounded_send(command);
    }

    /// Says that there is work for a family, or for the part of it that [`selects`](super::stage::selects) means: all those
    /// stages are ticked at once. One that runs is ticked again afterwards. Work for an unknown family is nobody's: nothing
    /// happens.
    pub fn wake(&self, family: &str) {
        self.order(Command::Wake(family.to_owned()));
    }

    /// Stops ticking a stage, or all stages of a family. A cycle that runs is finished. It answers how many stages it concerns.
    ///
    /// # Errors
    /// [`UnknownStage`].
    pub fn pause(&self, name: &str) -> Result<usize, UnknownStage> {
        self.for_each(name, |stage| {
            self.board.set_paused(stage, true);
            Command::Pause(stage)
        })
    }

    /// Ticks paused stages again, at once. It answers how many stages it concerns.
    ///
    /// # Errors
    /// [`UnknownStage`].
    pub fn resume(&self, name: &str) -> Result<usize, UnknownStage> {
        self.for_each(name, |stage| {
            self.board.set_paused(stage, false);
            Command::Resume(stage)
        })
    }

    /// Ticks a stage, or all stages of a family, now, even if they are paused or backing off. It answers how many.
    ///
    /// # Errors
    /// [`UnknownStage`].
    pub fn tick(&self, name: &str) -> Result<usize, UnknownStage> {
        self.for_each(name, Command::Tick)
    }

    fn for_each(&self, name: &str, command: impl Fn(usize) -> Command) -> Result<usize, UnknownStage> {
        let stages = self.board.select(name);
        if stages.is_empty() {
            return Err(UnknownStage(name.to_owned()));
        }
        for stage in &stages {
            self.order(command(*stage));
        }
        Ok(stages.len())
    }

    /// What every actor does now and did last.
    #[must_use]
    pub fn status(&self) -> RuntimeStatus {
        self.board.snapshot()
    }

    /// Changes whenever the control thread shows that it moves: about once a second, and with each phase of the run. What is
    /// done upon a change is done only as long as that thread lives.
    #[must_use]
    pub fn beats(&self) -> watch::Receiver<Instant> {
        self.board.beats()
    }

    /// How long ago the control thread last showed that it moves; see
    /// [`CONTROL_STALL`](super::settings::CONTROL_STALL).
    #[must_use]
    pub fn silent_for(&self) -> Duration {
        self.board.silent_for()
    }

    /// Begins to end the run: no more ticks, cycles finish, stages stop in reverse order. A second call ends it at once.
    pub fn drain(&self) {
        self.order(Command::Drain);
    }

    #[cfg(test)]
    pub(crate) fn crash(&self, child: Option<Child>) {
        self.order(Command::Crash(child));
    }
}
