//! The supervised runtime: runs stages, cycle after cycle, through errors, panics and hangs. It knows nothing about runs.
//!
//! ```text
//!   RuntimeHandle ──orders──▶ overseer ──who is up, what ended──▶ scheduler
//!                               ▲  │ makes, restarts                 │ ticks
//!                 reports, exits│  ▼                                 ▼
//!                              stage actor ◀─────────────────────────┘
//!                                  │ one task for each cycle, on the worker threads
//!                                  ▼
//!                              Stage::run_cycle
//! ```
//!
//! All actors live on the thread that calls [`Runtime::run`]; no stage's code ever runs there. What it promises:
//!
//! - A stage runs one cycle at a time, and never two copies of it at once.
//! - A stage that panics, fails again and again, or passes its deadline is replaced by a fresh one; the others do not notice.
//! - A stage whose dependency is down backs off. Nothing is restarted for that.
//! - A stage that says that the others can do without it is stopped, and said to be, when restarts do not mend it.
//! - What else cannot be mended here ends the run, with an outcome that says who, why and what came before. Nothing stops silently.

pub mod backoff;
mod drain;
mod exit;
mod handle;
pub mod mailbox;
pub mod metrics;
mod obstacles;
mod overseer;
pub mod registry;
pub mod report;
mod reporting;
mod scheduler;
pub mod settings;
pub mod stage;
mod stage_actor;
pub mod status;
pub mod testkit;
mod timetable;
pub mod totals;
mod watchdog;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, AsyncContext, System};
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use slog::{Logger, debug, info};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

pub use self::handle::{RuntimeHandle, UnknownStage};
pub use self::registry::{Registry, RegistryError};
pub use self::settings::RuntimeSettings;

use self::handle::Command;
use self::overseer::Overseer;
use self::report::CycleReport;
use self::stage::StageSpec;
use self::status::{Board, TickReason, millis};
use self::watchdog::Watchdog;

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunOutcome {
    /// All stages finished their cycles and were drained.
    Drained,
    /// It was told twice to drain, or some stages had to be cut short.
    Forced {
        /// The stages that were not drained, or not wholly.
        unfinished: Vec<String>,
    },
    /// Something could not be mended by restarting it.
    Escalated {
        /// The stage, or the actor of the runtime, that could not go on.
        stage: String,
        /// Why.
        reason: String,
        /// How it had died before, oldest first, with the time since the start.
        history: Vec<String>,
    },
}

impl RunOutcome {
    /// The process's exit code: 0 drained, 75 forced, 70 escalated.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Drained => 0,
            Self::Escalated { .. } => 70,
            Self::Forced { .. } => 75,
        }
    }
}

/// What all actors share.
pub(crate) struct Core {
    log: Logger,
    settings: RuntimeSettings,
    specs: Vec<StageSpec>,
    levels: Vec<Vec<usize>>,
    board: Arc<Board>,
    /// Cancelled when the process drains; the parent of all cycles' tokens.
    stopping: CancellationToken,
}

/// A set of stages, ready to run.
pub struct Runtime {
    core: Arc<Core>,
    orders: (UnboundedSender<Command>, UnboundedReceiver<Command>),
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime").field("stages", &self.core.specs).finish_non_exhaustive()
    }
}

impl Runtime {
    /// Prepares to run the stages of `registry`. Nothing starts yet.
    #[must_use]
    pub fn new(log: Logger, settings: RuntimeSettings, registry: Registry) -> Self {
        let (specs, levels) = registry.into_parts();
        let board = Arc::new(Board::new(&specs));
        let core = Core { log, settings, specs, levels, board, stopping: CancellationToken::new() };
        Self { core: Arc::new(core), orders: unbounded() }
    }

    /// A handle for orders and questions.
    #[must_use]
    pub fn handle(&self) -> RuntimeHandle {
        RuntimeHandle::new(self.orders.0.clone(), Arc::clone(&self.core.board))
    }

    /// Runs until the stages were drained (see [`RuntimeHandle::drain`]) or something escalates. The actors run on the calling
    /// thread, the cycles on the threads of `tokio`.
    ///
    /// `tokio` should have several threads and must not be dropped while a task may be wedged on one of them (that would wait for
    /// it): end it with `shutdown_timeout` or `shutdown_background`, after this returned. On a runtime with one thread it works
    /// too, with tokio's paused time as well, but there a stage that blocks blocks everything.
    ///
    /// # Panics
    /// If called from within a tokio runtime.
    pub fn run(self, tokio: Arc<tokio::runtime::Runtime>) -> RunOutcome {
        let Self { core, orders: (sender, receiver) } = self;
        drop(sender);
        let watchdog = Watchdog::start(core.log.clone(), core.board.heartbeat().clone(), core.settings.control_stall);
        let system = System::with_tokio_rt(move || tokio);
        let outcome = system.block_on(async {
            info!(core.log, "run begins"; "stages" => core.specs.len());
            let (sender, outcome) = oneshot::channel();
            let overseer = Overseer::new(Arc::clone(&core), sender);
            let _address = Overseer::create(|ctx| {
                ctx.add_stream(receiver);
                overseer
            });
            outcome.await.unwrap_or_else(|_| RunOutcome::Escalated {
                stage: "overseer".to_owned(),
                reason: "the overseer died".to_owned(),
                history: Vec::new(),
            })
        });
        core.stopping.cancel();
        core.board.set_phase(status::Phase::Ended);
        drop(watchdog);
        outcome
    }
}

fn log_name(core: &Core, stage: usize) -> &str {
    &core.specs[stage].name
}

/// The counts, wishes and obstacles of a report as log fields.
struct Fields<'a>(&'a CycleReport);

impl slog::KV for Fields<'_> {
    fn serialize(&self, _: &slog::Record<'_>, serializer: &mut dyn slog::Serializer) -> slog::Result {
        self.0.counts.iter().try_for_each(|(unit, n)| serializer.emit_u64(unit, *n))?;
        serializer.emit_bool("more", self.0.more)?;
        self.0.due_in.map_or(Ok(()), |delay| serializer.emit_u64("due_in_ms", millis(delay)))?;
        if self.0.blocked_by.is_empty() {
            return Ok(());
        }
        serializer.emit_str("blocked_by", &self.0.blocked_by.join("; "))
    }
}

/// One line for a cycle that did something or was slow; a debug line for one that did nothing.
fn report_log(log: &Logger, report: &CycleReport, iteration: u64, reason: TickReason, took: Duration, slow: bool) {
    if report.did_something() || slow {
        info!(log, "stage cycle"; Fields(report), "duration_ms" => millis(took), "reason" => reason.as_str(),
            "iteration" => iteration, "slow" => slow);
    } else {
        debug!(log, "stage cycle"; Fields(report), "duration_ms" => millis(took), "reason" => reason.as_str(),
            "iteration" => iteration, "slow" => slow);
    }
}
