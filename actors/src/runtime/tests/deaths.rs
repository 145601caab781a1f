//! What becomes of stages that go wrong.

use super::*;
use crate::runtime::exit::Child;
use crate::runtime::status::{CycleEnd, Phase, StageState};

/// Runs a stage with these answers beside a healthy one, until the stage was made `lives` times and then ended a cycle.
fn survives(answers: Vec<Answer>, lives: usize) -> RuntimeHandle {
    let journal = Journal::default();
    let script = Script::new(answers).into_journal(&journal);
    let healthy = Script::default().into_journal(&journal);
    let mut kept = None;
    let specs = vec![deadline(script.spec("ill"), Duration::from_secs(3)), healthy.spec("healthy")];
    let outcome = run(settings(), specs, |handle| {
        kept = Some(handle.clone());
        async move {
            journal.until("ill", Happened::Made, lives).await;
            let ended = journal.count("ill", Happened::Ended);
            journal.until("ill", Happened::Ended, ended + 6).await;
            assert_eq!(journal.count("ill", Happened::Made), lives);
            assert_eq!(journal.count("healthy", Happened::Made), 1, "its sibling did not notice");
            assert_eq!(handle.status().stage("ill").unwrap().last.as_ref().unwrap().end, CycleEnd::Ok);
        }
    });
    assert_eq!(outcome, RunOutcome::Drained);
    kept.unwrap()
}

#[test]
fn a_panic_in_a_cycle_makes_a_fresh_stage() {
    let handle = survives(vec![Answer::ok(), Answer::Panic("boom"), Answer::Panic("bang")], 3);
    assert_eq!(handle.status().stage("ill").unwrap().restarts, 2);
}

#[test]
fn a_panic_in_the_factory_is_a_death_like_any_other() {
    let handle = survives(vec![Answer::PanicInFactory("no"), Answer::ok(), Answer::Panic("boom")], 2);
    assert_eq!(handle.status().stage("ill").unwrap().restarts, 2);
}

#[test]
fn a_fatal_error_restarts_at_once_and_failures_after_some() {
    survives(vec![Answer::Fatal("corrupt")], 2);
    let failed = Answer::Failed("odd");
    // Two failures, a success, and two more are not three in a row.
    survives(vec![failed.clone(), failed.clone(), Answer::ok(), failed.clone(), failed.clone()], 1);
    survives(vec![failed.clone(), failed.clone(), failed], 2);
}

#[test]
fn a_hang_is_aborted_after_its_deadline_and_holds_nobody_back() {
    let journal = Journal::default();
    let script = Script::new([Answer::Hang]).into_journal(&journal);
    let other = Script::default().into_journal(&journal);
    let specs = vec![deadline(script.spec("hung"), Duration::from_secs(30)), after(other.spec("other"), &["hung"])];
    run(settings(), specs, |handle| async move {
        journal.until("other", Happened::Ended, 5).await;
        let current = handle.status().stage("hung").unwrap().current.clone().unwrap();
        assert!(current.elapsed_ms >= 2000);
        journal.until("hung", Happened::Dropped, 1).await;
        let took = journal.times("hung", Happened::Dropped)[0] - journal.times("hung", Happened::Began)[0];
        assert!((30_950..31_100).contains(&took.as_millis()), "deadline and grace: {took:?}");
        journal.until("hung", Happened::Ended, 1).await;
        assert_eq!(handle.status().stage("hung").unwrap().restarts, 1);
    });
}

#[test]
fn a_cycle_that_heeds_its_token_at_the_deadline_lives_on() {
    let script = Script::new([Answer::UntilCancelled]);
    let specs = vec![deadline(script.spec("late"), Duration::from_secs(3))];
    let journal = script.journal().clone();
    run(settings(), specs, |handle| async move {
        journal.until("late", Happened::Ended, 3).await;
        assert_eq!(handle.status().stage("late").unwrap().restarts, 0);
        assert_eq!(journal.count("late", Happened::Made), 1);
    });
}

#[test]
fn deadlines_alone_never_escalate() {
    let script = Script::default().then_always(Answer::Hang);
    let specs = vec![deadline(script.spec("hung"), Duration::from_secs(1))];
    let journal = script.journal().clone();
    let outcome = run(RuntimeSettings { drain_grace: Duration::from_secs(9), ..settings() }, specs, |_| async move {
        journal.until("hung", Happened::Dropped, 50).await;
    });
    assert_ne!(outcome.exit_code(), 70);
}

#[test]
fn transient_errors_back_off_and_never_restart() {
    let journal = Journal::default();
    let script = Script::new(vec![Answer::Transient("database down"); 300]).into_journal(&journal);
    let other = Script::default().into_journal(&journal);
    let specs = vec![script.spec("cut_off"), after(other.spec("other"), &["cut_off"])];
    let outcome = run(settings(), specs, |handle| async move {
        journal.until("cut_off", Happened::Ended, 20).await;
        let status = handle.status();
        let stage = status.stage("cut_off").unwrap();
        assert_eq!(stage.last.as_ref().unwrap().error.as_deref(), Some("doing what the script says: database down"));
        handle.wake("cut_off");
        let times = journal.times("cut_off", Happened::Began);
        let gaps: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps[0] < Duration::from_millis(255) && gaps[18] >= Duration::from_millis(7500), "{gaps:?}");
        let others = journal.count("other", Happened::Ended);
        journal.until("other", Happened::Ended, others + 3).await;
        let status = handle.status();
        assert_eq!(status.stage("cut_off").unwrap().state, StageState::BackingOff);
        assert!(status.stage("cut_off").unwrap().waits_ms.is_some());
        journal.until("cut_off", Happened::Ended, 301).await;
        tokio::task::yield_now().await;
        assert_eq!(journal.count("cut_off", Happened::Made), 1);
        assert_eq!(handle.status().stage("cut_off").unwrap().transient_in_row, 0);
    });
    assert_eq!(outcome, RunOutcome::Drained);
}

#[test]
fn too_many_deaths_of_one_escalate_with_their_history() {
    let script = Script::default().then_always(Answer::Panic("boom"));
    let journal = script.journal().clone();
    let specs = vec![script.spec("ill"), script.clone().then_always(Answer::ok()).spec("healthy")];
    let settings = RuntimeSettings { child_intensity: Intensity { count: 3, window: LIMIT }, ..settings() };
    let outcome = run(settings, specs, |_| async move {
        journal.until("healthy", Happened::Drained, 1).await;
        assert_eq!(journal.count("ill", Happened::Made), 4);
    });
    assert_eq!(outcome.exit_code(), 70);
    let RunOutcome::Escalated { stage, reason, history } = outcome else { panic!("{outcome:?}") };
    assert_eq!((stage.as_str(), history.len()), ("ill", 4));
    assert!(reason.starts_with("panicked: in its cycle: boom; "), "{reason}");
    assert!(history.iter().all(|line| line.ends_with("s panicked: in its cycle: boom")), "{history:?}");
}

#[test]
fn too_many_deaths_of_all_escalate() {
    let script = Script::default().then_always(Answer::Fatal("no"));
    let specs = (0..6).map(|n| script.spec(&format!("ill/{n}"))).collect();
    let settings = RuntimeSettings { total_intensity: Intensity { count: 5, window: LIMIT }, ..settings() };
    let journal = script.journal().clone();
    let outcome = run(settings, specs, |_| async move {
        for n in 0..6 {
            journal.until(&format!("ill/{n}"), Happened::Ended, 1).await;
        }
    });
    let RunOutcome::Escalated { reason, .. } = outcome else { panic!("{outcome:?}") };
    assert!(reason.contains("the stages' restarts"), "{reason}");
}

#[test]
fn deaths_far_apart_are_bad_luck_and_backoff_begins_anew() {
    let mut answers = Vec::new();
    for _ in 0..30 {
        answers.extend(vec![Answer::ok(); 100]);
        answers.push(Answer::Panic("now and then"));
    }
    let script = Script::new(answers);
    let specs = vec![script.spec("ill")];
    let journal = script.journal().clone();
    let limit = Backoff { min: Duration::from_millis(200), max: Duration::from_secs(60) };
    let settings = RuntimeSettings { restart_backoff: limit, ..settings() };
    let outcome = run(settings, specs, |_| async move {
        journal.until("ill", Happened::Made, 31).await;
        let down = journal.times("ill", Happened::Made)[30] - journal.times("ill", Happened::Dropped)[29];
        assert!(down <= Duration::from_millis(205), "{down:?}");
    });
    assert_eq!(outcome, RunOutcome::Drained);
}

#[test]
fn the_schedulers_death_is_survived() {
    let script = Script::default();
    let specs = vec![script.spec("stage"), script.spec("paused")];
    let journal = script.journal().clone();
    let outcome = run(settings(), specs, |handle| async move {
        journal.until("stage", Happened::Ended, 2).await;
        handle.pause("paused").unwrap();
        for _ in 0..3 {
            let ended = journal.count("stage", Happened::Ended);
            handle.crash(Some(Child::Scheduler));
            journal.until("stage", Happened::Ended, ended + 3).await;
        }
        assert!(journal.count("paused", Happened::Began) <= 3);
        assert_eq!(journal.count("stage", Happened::Made), 1);
    });
    assert_eq!(outcome, RunOutcome::Drained);
}

#[test]
fn a_scheduler_that_keeps_dying_escalates() {
    let script = Script::default();
    let specs = vec![script.spec("stage")];
    let settings = RuntimeSettings { child_intensity: Intensity { count: 0, window: LIMIT }, ..settings() };
    let outcome = run(settings, specs, |handle| async move {
        handle.crash(Some(Child::Scheduler));
        while handle.status().phase != Phase::Draining {
            tokio::task::yield_now().await;
        }
    });
    assert!(matches!(outcome, RunOutcome::Escalated { stage, .. } if stage == "scheduler"));
}

#[test]
fn the_death_of_an_actor_takes_its_cycle_along() {
    let script = Script::new([Answer::Hang]);
    let specs = vec![script.spec("stage")];
    let journal = script.journal().clone();
    let outcome = run(settings(), specs, |handle| async move {
        journal.until("stage", Happened::Began, 1).await;
        handle.crash(Some(Child::Stage(0)));
        journal.until("stage", Happened::Ended, 1).await;
        let (dropped, made) = (journal.times("stage", Happened::Dropped), journal.times("stage", Happened::Made));
        assert!(dropped[0] <= made[1], "never two copies");
    });
    assert_eq!(outcome, RunOutcome::Drained);
}

#[test]
fn the_overseers_death_ends_the_run() {
    let script = Script::default();
    let outcome = run(settings(), vec![script.spec("stage")], |handle| async move { handle.crash(None) });
    assert!(matches!(outcome, RunOutcome::Escalated { stage, .. } if stage == "overseer"));
}

/// Three deaths are allowed to each stage, and four to all together.
fn strict() -> RuntimeSettings {
    let window = Duration::from_secs(300);
    let (child_intensity, total_intensity) = (Intensity { count: 3, window }, Intensity { count: 4, window });
    RuntimeSettings { child_intensity, total_intensity, ..settings() }
}

#[test]
fn an_inessential_stage_is_given_up_and_the_others_go_on() {
    let journal = Journal::default();
    let script = Script::default().then_always(Answer::Panic("boom")).into_journal(&journal);
    let other = Script::default().into_journal(&journal);
    let specs = vec![script.spec("ill").inessential(), after(other.spec("other"), &["ill"])];
    let outcome = run(strict(), specs, |handle| async move {
        journal.until("ill", Happened::Dropped, 4).await;
        let ended = journal.count("other", Happened::Ended);
        journal.until("other", Happened::Ended, ended + 200).await;
        assert_eq!(journal.count("ill", Happened::Made), 4, "it is not restarted any more");
        let status = handle.status();
        assert_eq!(status.stage("ill").unwrap().state, StageState::Stopped);
        assert_eq!(handle.tick("ill"), Ok(1));
        journal.until("other", Happened::Ended, ended + 210).await;
        assert_eq!(journal.count("ill", Happened::Made), 4, "not by an operator either");
    });
    assert_eq!(outcome, RunOutcome::Drained);
}

#[test]
fn the_deaths_of_inessential_stages_do_not_count_among_those_of_all() {
    let journal = Journal::default();
    let dying = |times| Script::new(vec![Answer::Panic("boom"); times]).into_journal(&journal);
    let specs =
        vec![dying(3).spec("spare/0").inessential(), dying(3).spec("spare/1").inessential(), dying(3).spec("needed")];
    let waiting = journal.clone();
    let outcome = run(strict(), specs, |_| async move {
        for stage in ["spare/0", "spare/1", "needed"] {
            waiting.until(stage, Happened::Made, 4).await;
            waiting.until(stage, Happened::Ended, 3).await;
        }
    });
    assert_eq!(outcome, RunOutcome::Drained);
}

#[test]
fn a_wedged_stage_ends_the_run_even_if_it_is_inessential() {
    let gate = Gate::default();
    let script = Script::new([Answer::Hog(gate.clone())]);
    let spec = script.spec("stuck").inessential().deadline(Duration::from_millis(50));
    let short = Duration::from_millis(50);
    let settings = RuntimeSettings { cancel_grace: short, abort_grace: short, ..settings() };
    let journal = script.journal().clone();
    let outcome = run_threaded(settings, vec![spec], |handle| async move {
        journal.until("stuck", Happened::Held, 1).await;
        while handle.status().phase != Phase::Ended {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        gate.open();
    });
    assert!(matches!(&outcome, RunOutcome::Escalated { stage, .. } if stage == "stuck"), "{outcome:?}");
}

#[test]
fn a_stage_may_say_how_many_failures_restart_it() {
    for (limit, made) in [(1, 4), (2, 2), (5, 1)] {
        let script = Script::new(vec![Answer::Failed("odd"); 3]);
        let journal = script.journal().clone();
        let outcome = run(settings(), vec![script.spec("ill").failures_before_restart(limit)], |_| async move {
            journal.until("ill", Happened::Ended, 6).await;
            assert_eq!(journal.count("ill", Happened::Made), made, "{limit}");
        });
        assert_eq!(outcome, RunOutcome::Drained);
    }
}
