//! Stages that hold their thread.

use super::*;
use crate::runtime::exit::Child;
use crate::runtime::status::StageState;

/// Short in real time, but long enough for a loaded machine.
fn hurried() -> RuntimeSettings {
    RuntimeSettings {
        cycle_interval: Duration::from_millis(20),
        wave_budget: Duration::from_millis(20),
        cancel_grace: Duration::from_millis(20),
        abort_grace: Duration::from_millis(200),
        ..settings()
    }
}

async fn until_state(handle: &RuntimeHandle, stage: &str, state: StageState) {
    while handle.status().stage(stage).unwrap().state != state {
        tokio::task::yield_now().await;
    }
}

#[test]
fn a_hog_leaves_its_siblings_alive() {
    let journal = Journal::default();
    let gate = Gate::default();
    let hog = Script::new([Answer::Hog(gate.clone())]).into_journal(&journal);
    let other = Script::default().into_journal(&journal);
    let specs = vec![deadline(hog.spec("hog"), LIMIT), after(other.spec("other"), &["hog"])];
    let outcome = run_threaded(hurried(), specs, |_| async move {
        journal.until("hog", Happened::Held, 1).await;
        let ended = journal.count("other", Happened::Ended);
        journal.until("other", Happened::Ended, ended + 10).await;
        assert_eq!(journal.count("hog", Happened::Ended), 0);
        gate.open();
        journal.until("hog", Happened::Ended, 2).await;
        assert_eq!(journal.count("hog", Happened::Made), 1);
    });
    assert_eq!(outcome, RunOutcome::Drained);
}

#[test]
fn a_wedged_cycle_escalates_and_is_never_doubled() {
    let journal = Journal::default();
    let gate = Gate::default();
    let hog = Script::default().then_always(Answer::Hog(gate.clone())).into_journal(&journal);
    let other = Script::default().into_journal(&journal);
    let specs = vec![deadline(hog.spec("hog"), Duration::from_millis(20)), other.spec("other")];
    let kept = journal.clone();
    let outcome = run_threaded(hurried(), specs, |_| async move {
        journal.until("other", Happened::Drained, 1).await;
    });
    gate.open();
    let RunOutcome::Escalated { stage, reason, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(stage, "hog");
    assert!(reason.starts_with("wedged"), "{reason}");
    assert_eq!((kept.count("hog", Happened::Made), kept.count("hog", Happened::Began)), (1, 1));
}

#[test]
fn a_cycle_that_finishes_after_its_abort_is_not_wedged() {
    let journal = Journal::default();
    let gate = Gate::default();
    let hog = Script::new([Answer::Hog(gate.clone())]).into_journal(&journal);
    let specs = vec![deadline(hog.spec("hog"), Duration::from_millis(20))];
    let patient = RuntimeSettings { abort_grace: Duration::from_secs(600), ..hurried() };
    let outcome = run_threaded(patient, specs, |handle| async move {
        journal.until("hog", Happened::Held, 1).await;
        until_state(&handle, "hog", StageState::Aborting).await;
        gate.open();
        journal.until("hog", Happened::Ended, 3).await;
        let stage = handle.status().stage("hog").cloned().unwrap();
        assert!(stage.cycles >= 3, "{stage:?}");
    });
    assert_eq!(outcome, RunOutcome::Drained);
}

#[test]
fn a_stage_wedged_at_shutdown_is_left_behind() {
    let journal = Journal::default();
    let gate = Gate::default();
    let hog = Script::new([Answer::Hog(gate.clone())]).into_journal(&journal);
    let other = Script::default().into_journal(&journal);
    let specs = vec![deadline(hog.spec("hog"), LIMIT), other.spec("other")];
    let kept = journal.clone();
    let hasty = RuntimeSettings { drain_grace: Duration::from_millis(20), ..hurried() };
    let outcome = run_threaded(hasty, specs, |_| async move {
        journal.until("hog", Happened::Held, 1).await;
        journal.until("other", Happened::Ended, 1).await;
    });
    gate.open();
    assert_eq!(outcome, RunOutcome::Forced { unfinished: vec!["hog".to_owned()] });
    assert_eq!(kept.order(Happened::Drained), ["other"]);
}

#[test]
fn the_successor_of_a_dead_actor_waits_for_its_hog() {
    let journal = Journal::default();
    let gate = Gate::default();
    let hog = Script::new([Answer::Hog(gate.clone())]).into_journal(&journal);
    let specs = vec![deadline(hog.spec("hog"), LIMIT)];
    let patient = RuntimeSettings { abort_grace: Duration::from_secs(600), ..hurried() };
    run_threaded(patient, specs, |handle| async move {
        journal.until("hog", Happened::Held, 1).await;
        handle.crash(Some(Child::Stage(0)));
        until_state(&handle, "hog", StageState::Down).await;
        assert_eq!(journal.count("hog", Happened::Made), 1);
        gate.open();
        journal.until("hog", Happened::Made, 2).await;
        assert!(journal.times("hog", Happened::Ended)[0] <= journal.times("hog", Happened::Made)[1]);
    });
}
