//! A running coordinator as a table: one row for each stage, and under it what keeps it from its work.

use std::fmt::Write as _;
use std::time::Duration;

use runherd_actors::runtime::status::{CycleEnd, LastCycle, Phase, RuntimeStatus, StageState, StageStatus};

use crate::cli::progress::whole_seconds;
use crate::control::CoordinatorStatus;

const HEAD: [&str; 5] = ["STAGE", "STATE", "CYCLES", "RESTARTS", "LAST CYCLE"];

/// The table with its head and, before it, the coordinator as a whole.
pub(super) fn text(status: &CoordinatorStatus) -> String {
    let stages = &status.runtime.stages;
    let rows: Vec<[String; 5]> = std::iter::once(HEAD.map(str::to_owned)).chain(stages.iter().map(row)).collect();
    let notes = std::iter::once(Vec::new()).chain(stages.iter().map(notes));
    let widths: [usize; 5] =
        std::array::from_fn(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0));
    let mut text = head(status);
    for (row, notes) in rows.iter().zip(notes) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            // Writing to a String cannot fail.
            let _ = write!(line, "{cell:<width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
        for note in notes {
            let _ = writeln!(text, "  {}", note.replace(char::is_control, " "));
        }
    }
    text
}

fn head(status: &CoordinatorStatus) -> String {
    let CoordinatorStatus { version, pid, not_ready, runtime } = status;
    let RuntimeStatus { phase, uptime_ms, totals, .. } = runtime;
    let cycles = totals.cycles;
    let phase = match phase {
        Phase::Created => "starting",
        Phase::Running => "running",
        Phase::Draining => "draining",
        Phase::Ended => "ended",
    };
    let ready = if not_ready.is_empty() { "ready" } else { "not ready" };
    let mut text =
        format!("coordinator {pid} (runherd {version}): {phase} for {}, {cycles} cycles, {ready}\n", time(*uptime_ms));
    for lack in not_ready {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {}: {}", lack.what, lack.why.replace(char::is_control, " "));
    }
    text.push('\n');
    text
}

fn row(stage: &StageStatus) -> [String; 5] {
    let last = stage.last.as_ref().map_or_else(|| "-".to_owned(), last);
    [stage.name.clone(), state(stage), stage.cycles.to_string(), stage.restarts.to_string(), last]
}

fn state(stage: &StageStatus) -> String {
    let elapsed = stage.current.as_ref().map(|cycle| format!(" for {}", time(cycle.elapsed_ms))).unwrap_or_default();
    let waits = stage.waits_ms.map(|ms| format!(" for {} more", time(ms))).unwrap_or_default();
    let state = match stage.state {
        StageState::Idle if stage.paused => return "paused".to_owned(),
        StageState::Idle if last_blocked_by(stage).is_empty() => "idle".to_owned(),
        StageState::Idle => "idle, blocked".to_owned(),
        StageState::Running => format!("in a cycle{elapsed}"),
        StageState::Aborting => format!("aborting its cycle{elapsed}"),
        StageState::BackingOff => format!("backing off{waits}"),
        StageState::Down => format!("down{waits}"),
        StageState::Wedged => "wedged".to_owned(),
        StageState::Stopped => "stopped".to_owned(),
    };
    if stage.paused { format!("paused, {state}") } else { state }
}

fn last_blocked_by(stage: &StageStatus) -> &[String] {
    stage.last.as_ref().map_or(&[], |last| &last.blocked_by)
}

fn last(last: &LastCycle) -> String {
    let counts: Vec<String> = last.counts.iter().map(|(unit, n)| format!("{unit} {n}")).collect();
    let counts = if counts.is_empty() { String::new() } else { format!(": {}", counts.join(", ")) };
    let (end, took, ago) = (last.end.as_str(), time(last.duration_ms), time(last.ended_ms_ago));
    format!("{end} in {took}, {ago} ago{counts}")
}

/// Why it is not at work, in the words of its last cycle.
fn notes(stage: &StageStatus) -> Vec<String> {
    let Some(last) = &stage.last else { return Vec::new() };
    let in_row =
        if stage.transient_in_row > 1 { format!(" ({} in a row)", stage.transient_in_row) } else { String::new() };
    let error = match (&last.error, last.end) {
        (Some(error), end) if end != CycleEnd::Ok => Some(format!("{error}{in_row}")),
        _ => None,
    };
    let blocked = last.blocked_by.iter().map(|obstacle| format!("blocked by {obstacle}"));
    error.into_iter().chain(blocked).collect()
}

/// A time for people: as exact as it is short.
fn time(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
        _ => whole_seconds(Duration::from_millis(ms)).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use runherd_actors::runtime::status::{CurrentCycle, TickReason};
    use runherd_actors::runtime::totals::Totals;

    use super::*;
    use crate::control::Lack;

    fn stage(name: &str, state: StageState) -> StageStatus {
        let last = LastCycle {
            iteration: 1,
            reason: TickReason::Cycle,
            end: CycleEnd::Ok,
            duration_ms: 12,
            ended_ms_ago: 3_250,
            counts: [("recovered".into(), 7)].into(),
            more: false,
            blocked_by: Vec::new(),
            error: None,
        };
        StageStatus {
            name: name.to_owned(),
            family: name.to_owned(),
            purpose: String::new(),
            state,
            deadline_ms: 60_000,
            paused: false,
            current: None,
            last: Some(last),
            cycles: 3,
            restarts: 0,
            transient_in_row: 0,
            waits_ms: None,
        }
    }

    #[test]
    fn every_state_says_what_it_waits_for() {
        let current = CurrentCycle { iteration: 4, reason: TickReason::Cycle, elapsed_ms: 3_200 };
        let running = StageStatus { current: Some(current), ..stage("a", StageState::Running) };
        assert_eq!(state(&running), "in a cycle for 3.2 s");
        assert_eq!(state(&StageStatus { paused: true, ..running }), "paused, in a cycle for 3.2 s");
        assert_eq!(state(&StageStatus { paused: true, ..stage("a", StageState::Idle) }), "paused");
        let waits = StageStatus { waits_ms: Some(1_234), ..stage("a", StageState::BackingOff) };
        assert_eq!(state(&waits), "backing off for 1.2 s more");
        assert_eq!(
            state(&StageStatus { waits_ms: Some(90_000), ..stage("a", StageState::Down) }),
            "down for 1m 30s more"
        );
    }

    #[test]
    fn the_table_is_aligned_and_tells_why() {
        let mut backing = stage("lease_recovery", StageState::BackingOff);
        backing.waits_ms = Some(900);
        backing.transient_in_row = 2;
        if let Some(last) = &mut backing.last {
            (last.end, last.error) = (CycleEnd::Transient, Some("connection\nrefused".to_owned()));
            last.counts.clear();
        }
        let mut blocked = stage("finalizer", StageState::Idle);
        if let Some(last) = &mut blocked.last {
            last.blocked_by.push("placement eu1".to_owned());
        }
        let runtime = RuntimeStatus {
            phase: Phase::Running,
            uptime_ms: 61_000,
            totals: Totals { cycles: 9, ..Totals::default() },
            control_silent_ms: 0,
            stages: vec![backing, blocked],
            mailboxes: Vec::new(),
        };
        let not_ready = vec![Lack { what: "lease_recovery".into(), why: "refused".into() }];
        let shown = text(&CoordinatorStatus { version: "1.0".into(), pid: 7, not_ready, runtime });
        let expected = [
            "coordinator 7 (runherd 1.0): running for 1m 1s, 9 cycles, not ready",
            "  lease_recovery: refused",
            "",
            "STAGE           STATE                        CYCLES  RESTARTS  LAST CYCLE",
            "lease_recovery  backing off for 900 ms more  3       0         a transient error in 12 ms, 3.2 s ago",
            "  connection refused (2 in a row)",
            "finalizer       idle, blocked                3       0         ok in 12 ms, 3.2 s ago: recovered 7",
            "  blocked by placement eu1",
        ];
        assert_eq!(shown.lines().collect::<Vec<_>>(), expected);
    }
}
