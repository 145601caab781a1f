//! How runs end.

use super::*;
use crate::runtime::status::{Phase, StageState};

#[test]
fn a_drain_lets_cycles_finish_and_stops_in_reverse() {
    let journal = Journal::default();
    let late = Script::new([Answer::UntilCancelled]).into_journal(&journal);
    let quick = Script::default().into_journal(&journal);
    let specs = vec![
        late.spec("creation"),
        after(quick.spec("recovery"), &["creation"]),
        after(quick.spec("finalizer"), &["recovery"]),
    ];
    let (told, kept) = (journal.clone(), journal);
    let mut handle = None;
    let outcome = run(settings(), specs, |given| {
        handle = Some(given);
        async move { told.until("finalizer", Happened::Ended, 2).await }
    });
    assert_eq!((outcome.exit_code(), outcome), (0, RunOutcome::Drained));
    assert_eq!(kept.count("creation", Happened::Ended), 1);
    assert_eq!(kept.order(Happened::Drained), ["finalizer", "recovery", "creation"]);
    let status = handle.unwrap().status();
    assert_eq!(status.phase, Phase::Ended);
    assert!(status.stages.iter().all(|stage| stage.state == StageState::Stopped));
}

#[test]
fn cycles_that_outlast_the_grace_are_aborted_and_named() {
    let journal = Journal::default();
    let hung = Script::new([Answer::Hang]).into_journal(&journal);
    let quick = Script::default().into_journal(&journal);
    let specs = vec![deadline(hung.spec("hung"), LIMIT), quick.spec("quick")];
    let kept = journal.clone();
    let outcome = run(settings(), specs, |_| async move { journal.until("quick", Happened::Ended, 2).await });
    assert_eq!(outcome, RunOutcome::Forced { unfinished: vec!["hung".to_owned()] });
    assert_eq!(kept.order(Happened::Drained), ["quick"]);
}

#[test]
fn a_second_order_ends_the_run_at_once() {
    let script = Script::new([Answer::Hang]);
    let journal = script.journal().clone();
    let outcome = run(settings(), vec![script.spec("hung")], |handle| async move {
        journal.until("hung", Happened::Began, 1).await;
        handle.drain();
        handle.drain();
    });
    assert_eq!((outcome.exit_code(), outcome), (75, RunOutcome::Forced { unfinished: vec!["hung".to_owned()] }));
}

#[test]
fn a_drain_does_not_wait_for_a_stage_that_is_down() {
    let script = Script::new([Answer::Panic("boom")]);
    let journal = script.journal().clone();
    let slow = Backoff { min: LIMIT, max: LIMIT };
    let outcome =
        run(RuntimeSettings { restart_backoff: slow, ..settings() }, vec![script.spec("ill")], |_| async move {
            journal.until("ill", Happened::Dropped, 1).await;
        });
    assert_eq!(outcome, RunOutcome::Drained);
}

#[test]
fn a_run_without_stages_drains() {
    assert_eq!(run(settings(), Vec::new(), |_| async {}), RunOutcome::Drained);
}

#[test]
fn an_order_given_before_the_run_is_obeyed() {
    let script = Script::default();
    let registry = Registry::new(vec![script.spec("stage")]).unwrap();
    let runtime = Runtime::new(Logger::root(Discard, o!()), settings(), registry);
    runtime.handle().drain();
    let tokio = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    assert_eq!(runtime.run(Arc::new(tokio)), RunOutcome::Drained);
}
