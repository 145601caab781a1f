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
    /// When the runtime cancels `stopping`; it aborts the cycle a short grace later. Passes end themselves well before.
    pub deadline: Instant,
    /// Cancelled when the process drains or the deadline has passed: finish the step at hand and return.
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
    /// It shares its thread with others: what blocks belongs on a thread of its own. A pass that blocks all the same holds up
    /// whoever it woke last, and if it outlasts its deadline too, nothing can end it but the end of the process.
    ///
    /// # Errors
    /// The variant says what the supervisor does; see [`StageError`].
    async fn run_cycle(&mut self, cx: &CycleContext) -> Result<CycleReport, StageError>;

    /// Called once when the process drains, after the last cycle: give back leases and claims.
    async fn drain(&mut self) {}
}

/// Makes a stage with a clean state: at start, and at each restart. It may be called from any thread.
pub type StageFactory = Box<dyn Fn() -> Box<dyn Stage> + Send + Sync>;

/// The deadline of a stage that declares none.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// A stage as it is registered. [`StageSpec::new`] makes one; the other methods say what differs from the usual.
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
    /// What becomes of it when it cannot be mended.
    pub policy: FailurePolicy,
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

/// What a stage declares about its own failures. The default is what the built-in stages have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailurePolicy {
    /// Whether the process ends when the stage dies more often than the restart intensity allows. A stage that is not essential
    /// is stopped for good instead, loudly, and the others go on; its deaths do not count among theirs. A wedged cycle ends the
    /// process in either case: it holds a thread that the others need.
    pub essential: bool,
    /// So many failed cycles in a row restart it, instead of what the runtime's settings say.
    pub failures_before_restart: Option<u32>,
}

impl Default for FailurePolicy {
    fn default() -> Self {
        Self { essential: true, failures_before_restart: None }
    }
}

impl StageSpec {
    /// A stage of the cycle that runs after nobody, with [`DEADLINE`] and the usual policy.
    pub fn new<S: Stage>(
        name: impl Into<String>,
        purpose: impl Into<String>,
        factory: impl Fn() -> S + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            purpose: purpose.into(),
            after: Vec::new(),
            schedule: Schedule::InCycle,
            deadline: DEADLINE,
            policy: FailurePolicy::default(),
            factory: Box::new(move || Box::new(factory())),
        }
    }

    /// Runs beside the cycle, with a period of its own.
    #[must_use]
    pub fn every(mut self, period: Duration) -> Self {
        self.schedule = Schedule::Every(period);
        self
    }

    /// Runs after these families: in the cycle, if they are in it; at the end of the process it is drained before them.
    #[must_use]
    pub fn after<'a>(mut self, families: impl IntoIterator<Item = &'a str>) -> Self {
        self.after.extend(families.into_iter().map(str::to_owned));
        self
    }

    /// Aborts a cycle that takes longer.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Is stopped for good, instead of ending the process, when restarts do not mend it; see [`FailurePolicy::essential`].
    #[must_use]
    pub fn inessential(mut self) -> Self {
        self.policy.essential = false;
        self
    }

    /// Is restarted after this many failed cycles in a row.
    #[must_use]
    pub fn failures_before_restart(mut self, in_row: u32) -> Self {
        self.policy.failures_before_restart = Some(in_row);
        self
    }

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

/// Whether `selector` means the stage `name`: by its whole name, its family, or any part in between that ends at a `/`
/// (`outbox_publisher/control` means all publishers of the control database).
#[must_use]
pub fn selects(selector: &str, name: &str) -> bool {
    name.strip_prefix(selector).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl fmt::Debug for StageSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StageSpec")
            .field("name", &self.name)
            .field("after", &self.after)
            .field("schedule", &self.schedule)
            .field("deadline", &self.deadline)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_end_where_a_part_of_the_name_ends() {
        let name = "outbox_publisher/control/0";
        assert_eq!(family(name), "outbox_publisher");
        for selector in ["outbox_publisher", "outbox_publisher/control", name] {
            assert!(selects(selector, name), "{selector}");
        }
        for selector in ["", "outbox", "outbox_publisher/", "outbox_publisher/cont", "outbox_publisher/control/01"] {
            assert!(!selects(selector, name), "{selector:?}");
        }
    }
}
