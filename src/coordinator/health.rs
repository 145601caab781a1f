//! Whether a coordinator lives, and whether it is ready: read from the runtime's status, by everything that tells the outside.
//!
//! *Alive*: the control thread moves. Restarting the process helps if it does not. *Ready*: every stage's last cycle ended well,
//! and the control database was reached a moment ago. What is missing then is elsewhere, and restarting helps nothing.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use runherd_actors::runtime::RuntimeHandle;
use runherd_actors::runtime::settings::CONTROL_STALL;
use runherd_actors::runtime::status::{CycleEnd, Phase, RuntimeStatus, StageStatus, millis};

use super::presence;
use crate::control::Lack;

/// The control database counts as reached for this long after presence last wrote there: two of its passes may be late.
const REACHED_FOR: Duration = presence::PERIOD.saturating_mul(3);

/// What the outside may see of a coordinator, from before its stages run until after.
#[derive(Clone, Default)]
pub(super) struct Health(Arc<OnceLock<RuntimeHandle>>);

impl Health {
    /// The stages are about to run.
    pub(super) fn begin(&self, handle: &RuntimeHandle) {
        // There is one runtime in a coordinator's life.
        let _ = self.0.set(handle.clone());
    }

    /// The runtime, unless its servers are still waited for.
    pub(super) fn runtime(&self) -> Option<&RuntimeHandle> {
        self.0.get()
    }

    /// Whether the control thread moves. Before there is one, the process is busy starting, which is alive.
    pub(super) fn is_alive(&self) -> bool {
        self.runtime().is_none_or(|handle| handle.silent_for() < CONTROL_STALL)
    }

    /// What keeps the coordinator from being ready.
    pub(super) fn lacks(&self) -> Vec<Lack> {
        match self.runtime() {
            Some(handle) => lacks(&handle.status()),
            None => vec![lack("coordinator", "it waits for its servers")],
        }
    }
}

/// What keeps a coordinator with this status from being ready.
pub(super) fn lacks(status: &RuntimeStatus) -> Vec<Lack> {
    let phase = match status.phase {
        Phase::Running => None,
        Phase::Created => Some("its stages do not run yet"),
        Phase::Draining => Some("it is draining"),
        Phase::Ended => Some("it has ended"),
    };
    let stalled = status.control_silent_ms >= millis(CONTROL_STALL);
    let stalled = stalled.then(|| format!("it has not moved for {} ms", status.control_silent_ms));
    phase
        .map(|why| lack("coordinator", why))
        .into_iter()
        .chain(stalled.map(|why| lack("control_thread", why)))
        .chain(control_database(status))
        .chain(status.stages.iter().filter_map(|stage| Some(lack(&stage.name, not_well(stage)?))))
        .collect()
}

fn lack(what: &str, why: impl Into<String>) -> Lack {
    Lack { what: what.to_owned(), why: why.into() }
}

fn control_database(status: &RuntimeStatus) -> Option<Lack> {
    let last = status.stage(presence::NAME)?.last.as_ref()?;
    // A cycle that failed is told as the stage's own.
    let late = last.end == CycleEnd::Ok && last.ended_ms_ago > millis(REACHED_FOR);
    late.then(|| lack("control_database", format!("it was last reached {} ms ago", last.ended_ms_ago)))
}

/// Why a stage is not well. A running cycle speaks for a stage only if none ended before: while a database is down, each retry is
/// such a cycle, and must not make the stage look well.
fn not_well(stage: &StageStatus) -> Option<String> {
    if let Some(current) = stage.current.as_ref().filter(|current| current.elapsed_ms > stage.deadline_ms) {
        return Some(format!("its cycle has run for {} ms, past its deadline", current.elapsed_ms));
    }
    match (&stage.last, &stage.current) {
        (Some(last), _) if last.end == CycleEnd::Ok => None,
        (Some(last), _) => {
            let error = last.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
            Some(format!("its last cycle ended with {}{error}", last.end.as_str()))
        }
        (None, Some(_)) => None,
        (None, None) => Some("it has not run yet".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use runherd_actors::runtime::status::{CurrentCycle, LastCycle, StageState, TickReason};
    use runherd_actors::runtime::totals::Totals;

    use super::*;

    fn stage(name: &str, end: Option<(CycleEnd, u64)>, running_ms: Option<u64>) -> StageStatus {
        let reason = TickReason::Cycle;
        let last = end.map(|(end, ended_ms_ago)| LastCycle {
            iteration: 1,
            reason,
            end,
            duration_ms: 1,
            ended_ms_ago,
            counts: Default::default(),
            more: false,
            blocked_by: Vec::new(),
            error: (end != CycleEnd::Ok).then(|| "refused".to_owned()),
        });
        StageStatus {
            name: name.to_owned(),
            family: name.to_owned(),
            purpose: String::new(),
            state: StageState::Idle,
            deadline_ms: 100,
            paused: false,
            current: running_ms.map(|elapsed_ms| CurrentCycle { iteration: 2, reason, elapsed_ms }),
            last,
            cycles: 1,
            restarts: 0,
            transient_in_row: 0,
            waits_ms: None,
        }
    }

    fn told(phase: Phase, control_silent_ms: u64, stages: Vec<StageStatus>) -> Vec<String> {
        let status = RuntimeStatus {
            phase,
            uptime_ms: 1,
            totals: Totals::default(),
            control_silent_ms,
            stages,
            mailboxes: Vec::new(),
        };
        lacks(&status).into_iter().map(|lack| format!("{}: {}", lack.what, lack.why)).collect()
    }

    #[test]
    fn a_stage_is_well_after_a_good_cycle_or_within_its_first() {
        let well = vec![
            stage("a", Some((CycleEnd::Ok, 5)), None),
            stage("b", Some((CycleEnd::Ok, 5)), Some(99)),
            stage("c", None, Some(99)),
            stage("presence", Some((CycleEnd::Ok, 15_000)), None),
        ];
        assert_eq!(told(Phase::Running, 0, well), [""; 0]);
        let unwell = vec![
            stage("a", Some((CycleEnd::Transient, 5)), Some(1)),
            stage("b", Some((CycleEnd::Ok, 5)), Some(101)),
            stage("c", None, None),
            stage("presence", Some((CycleEnd::Ok, 15_001)), None),
        ];
        assert_eq!(
            told(Phase::Running, 0, unwell),
            [
                "control_database: it was last reached 15001 ms ago",
                "a: its last cycle ended with a transient error: refused",
                "b: its cycle has run for 101 ms, past its deadline",
                "c: it has not run yet",
            ]
        );
    }

    #[test]
    fn a_coordinator_that_drains_or_stalls_is_not_ready() {
        assert_eq!(told(Phase::Draining, 0, Vec::new()), ["coordinator: it is draining"]);
        assert_eq!(told(Phase::Running, 10_000, Vec::new()), ["control_thread: it has not moved for 10000 ms"]);
        let waiting = Health::default();
        assert!(waiting.is_alive() && waiting.lacks()[0].what == "coordinator");
    }
}
