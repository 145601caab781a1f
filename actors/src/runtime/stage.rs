//! A stage: a piece of work that is done again and again, one bounded cycle at a time.
//!
//! A stage is made by a factory, so that a restart begins with a clean state. It never sees its actor: the runtime calls
//! [`Stage::run_cycle`] on a worker task, one cycle at a time, and reads the report.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::report::{CycleReport, StageError};

/// What a cycle may know about its own circumstances.
#[derive(Clone, Debug)]
pub struct CycleContext {
    /// Counts the cycles of this stage since the process started, from 1.
    pub iteration: u64,
    /// When the runtime will abort the cycle. Passes end themselves well before.
    pub deadline: Instant,
    /// Cancelled when the process drains or the cycle is aborted: finish the step at hand and return.
    pub stopping: CancellationToken,
}

impl CycleContext {
    /// Whether the cycle should return at its next step, because the process drains or the deadline is near.
    ///
    /// `reserve` is the time that the next step may need.
    #[must_use]
    pub fn should_return(&self, reserve: Duration) -> bool {
        self.stopping.is_cancelled() || Instant::now() + reserve >= self.deadline
    }
}

/// One kind of repeated work under supervision.
#[async_trait]
pub trait Stage: Send + 'static {
    /// One pass, bounded in rows and in time.
    ///
    /// # Errors
    /// The variant says what the supervisor does; see [`StageError`].
    async fn run_cycle(&mut self, cx: &CycleContext) -> Result<CycleReport, StageError>;

    /// Called once when the process drains, after the last cycle: give back leases and claims.
    async fn drain(&mut self) {}
}

/// Makes a stage with a clean state: at start, and at each restart. It may be called from any thread.
pub type StageFactory = Box<dyn Fn() -> Box<dyn Stage> + Send + Sync>;

/// A stage as it is registered.
pub struct StageSpec {
    /// Unique. Instances of one family are `family/instance`, such as `shard_dispatcher/3` or `outbox_publisher/control/0`.
    pub name: String,
    /// One line for operators: what it is for.
    pub purpose: String,
    /// The stages (families) that run before it in a cycle. Together these make the cycle's order; loops are refused.
    pub after: Vec<String>,
    /// How it is ticked.
    pub schedule: Schedule,
    /// How long one cycle may take before it is aborted.
    pub deadline: Duration,
    /// Makes it.
    pub factory: StageFactory,
}

/// How a stage is ticked. Wakes, `more` and `due_in` tick it sooner in either case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// With the coordinator's cycle, in the order that `after` gives.
    InCycle,
    /// Beside the cycle, with a period of its own.
    Every(Duration),
}

impl StageSpec {
    /// The name without its instance: `shard_dispatcher` of `shard_dispatcher/3`.
    #[must_use]
    pub fn family(&self) -> &str {
        family(&self.name)
    }
}

/// The part of a stage's name before its first `/`.
#[must_use]
pub fn family(name: &str) -> &str {
    name.split('/').next().unwrap_or(name)
}

impl fmt::Debug for StageSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StageSpec")
            .field("name", &self.name)
            .field("after", &self.after)
            .field("schedule", &self.schedule)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}
