//! The knobs of the runtime. Each has a default that suits a coordinator with some thirty stages.

use std::time::Duration;

use super::backoff::{Backoff, Intensity};

/// A control thread that has not moved for this long counts as stalled.
pub const CONTROL_STALL: Duration = Duration::from_secs(10);

/// How the runtime behaves. All values are taken as they are; a zero where time must pass is raised to a millisecond.
#[derive(Clone, Debug, PartialEq)]
pub struct RuntimeSettings {
    /// From the beginning of one cycle to the beginning of the next. A cycle that takes longer is followed at once.
    pub cycle_interval: Duration,
    /// By which part of itself an interval or a period is longer or shorter, at random: 0.1 is ±10 %. At most 1.
    pub cycle_jitter: f64,
    /// How long a cycle waits for the families of one wave before the next wave begins.
    pub wave_budget: Duration,
    /// How long running cycles may go on when the process drains, before they are aborted.
    pub drain_grace: Duration,
    /// How long the `Stage::drain` calls of one level may take.
    pub stop_grace: Duration,
    /// What `drain_grace` and `stop_grace` are cut to when the run ends by escalation.
    pub escalation_grace: Duration,
    /// Between a cycle's deadline, when its token is cancelled, and its abort.
    pub cancel_grace: Duration,
    /// Between a cycle's abort and the finding that it is wedged.
    pub abort_grace: Duration,
    /// Before a restart.
    pub restart_backoff: Backoff,
    /// After living this long without dying, the next restart's backoff begins anew.
    pub healthy_after: Duration,
    /// Deaths of one child that are still taken as bad luck.
    pub child_intensity: Intensity,
    /// Deaths of all children together that are still taken as bad luck.
    pub total_intensity: Intensity,
    /// So many failed cycles in a row restart a stage.
    pub failures_before_restart: u32,
    /// After a transient error.
    pub transient_backoff: Backoff,
    /// The most messages that may wait in one actor's mailbox, commands not counted.
    pub mailbox_capacity: usize,
    /// How often the runtime and each mailbox are logged. Zero: never.
    pub report_interval: Duration,
    /// A cycle that took longer is logged even if it did nothing.
    pub slow_cycle: Duration,
    /// The control thread is logged as stalled when it has not moved for this long. Zero: never.
    pub control_stall: Duration,
}

impl Default for RuntimeSettings {
    fn default() -> Self {
        Self {
            cycle_interval: Duration::from_secs(1),
            cycle_jitter: 0.1,
            wave_budget: Duration::from_secs(2),
            drain_grace: Duration::from_secs(20),
            stop_grace: Duration::from_secs(5),
            escalation_grace: Duration::from_secs(3),
            cancel_grace: Duration::from_secs(1),
            abort_grace: Duration::from_secs(5),
            restart_backoff: Backoff { min: Duration::from_millis(200), max: Duration::from_secs(30) },
            healthy_after: Duration::from_secs(60),
            child_intensity: Intensity { count: 8, window: Duration::from_secs(300) },
            total_intensity: Intensity { count: 24, window: Duration::from_secs(300) },
            failures_before_restart: 3,
            transient_backoff: Backoff { min: Duration::from_millis(250), max: Duration::from_secs(15) },
            mailbox_capacity: 1024,
            report_interval: Duration::from_secs(60),
            slow_cycle: Duration::from_secs(1),
            control_stall: CONTROL_STALL,
        }
    }
}
