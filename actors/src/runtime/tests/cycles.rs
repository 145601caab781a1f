//! When stages are ticked.

use super::*;

#[test]
fn families_run_in_order_and_instances_together() {
    let script = Script::default();
    let specs = vec![
        after(script.spec("finalizer"), &["dispatcher"]),
        after(script.spec("dispatcher/0"), &["recovery"]),
        after(script.spec("dispatcher/1"), &["recovery"]),
        script.spec("recovery"),
    ];
    let journal = script.journal().clone();
    run(settings(), specs, |_| async move {
        journal.until("finalizer", Happened::Ended, 3).await;
        let order = journal.order(Happened::Began);
        for cycle in order.chunks(4) {
            assert_eq!(cycle, ["recovery", "dispatcher/0", "dispatcher/1", "finalizer"]);
        }
        // One cycle a second, to the millisecond of tokio's timers.
        let times = journal.times("recovery", Happened::Began);
        assert!((times[1] - times[0]).abs_diff(Duration::from_secs(1)) <= Duration::from_millis(2), "{times:?}");
    });
}

#[test]
fn a_wave_waits_for_its_stages_but_not_past_the_budget() {
    let journal = Journal::default();
    let gate = Gate::default();
    let slow = Script::new([Answer::Await(gate.clone())]).into_journal(&journal);
    let quick = Script::default().into_journal(&journal);
    let specs = vec![slow.spec("slow"), quick.spec("quick"), after(quick.spec("next"), &["slow", "quick"])];
    let budget = settings().wave_budget;
    run(settings(), specs, |handle| async move {
        journal.until("next", Happened::Began, 1).await;
        let waited = journal.times("next", Happened::Began)[0] - journal.times("slow", Happened::Began)[0];
        assert!(waited >= budget && waited < budget * 2, "{waited:?}");
        assert_eq!(journal.count("quick", Happened::Began), 1);
        journal.until("next", Happened::Began, 3).await;
        assert_eq!(journal.count("slow", Happened::Began), 1, "never two at once");
        assert_eq!(handle.status().stage("slow").unwrap().current.as_ref().unwrap().iteration, 1);
        gate.open();
        journal.until("slow", Happened::Ended, 2).await;
    });
}

#[test]
fn more_means_now_and_due_means_then() {
    let script = Script::new([Answer::more(), Answer::more(), Answer::due_in(Duration::from_millis(300))]);
    let specs = vec![script.spec("eager")];
    let journal = script.journal().clone();
    run(settings(), specs, |_| async move {
        journal.until("eager", Happened::Began, 5).await;
        let times = journal.times("eager", Happened::Began);
        let since = |n: usize| (times[n] - times[0]).as_millis();
        assert!(since(2) < 10, "{times:?}");
        assert!((300..310).contains(&since(3)), "{times:?}");
        assert!((1000..1010).contains(&since(4)), "{times:?}");
    });
}

#[test]
fn a_wake_ticks_every_instance_and_wakes_coalesce_behind_a_running_cycle() {
    let journal = Journal::default();
    let gate = Gate::default();
    let busy = Script::new([Answer::Await(gate.clone())]).into_journal(&journal);
    let idle = Script::default().into_journal(&journal);
    let hour = Duration::from_secs(3600);
    let specs = vec![every(busy.spec("publisher/0"), hour), every(idle.spec("publisher/1"), hour)];
    run(settings(), specs, |handle| async move {
        journal.until("publisher/0", Happened::Began, 1).await;
        journal.until("publisher/1", Happened::Ended, 1).await;
        for _ in 0..5 {
            handle.wake("publisher");
        }
        handle.wake("nobody");
        journal.until("publisher/1", Happened::Ended, 2).await;
        gate.open();
        journal.until("publisher/0", Happened::Ended, 2).await;
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(journal.count("publisher/0", Happened::Began), 2, "five wakes are one tick");
    });
}

#[test]
fn a_report_wakes_another_family() {
    let journal = Journal::default();
    let dispatcher = Script::new([Answer::ok(), Answer::wakes("publisher")]).into_journal(&journal);
    let publisher = Script::default().into_journal(&journal);
    let specs = vec![dispatcher.spec("dispatcher"), every(publisher.spec("publisher"), Duration::from_secs(3600))];
    run(settings(), specs, |handle| async move {
        journal.until("publisher", Happened::Ended, 2).await;
        assert_eq!(journal.count("dispatcher", Happened::Ended), 2);
        let last = handle.status().stage("publisher").unwrap().cycles;
        assert_eq!(last, 2);
    });
}

#[test]
fn stages_with_a_period_run_beside_the_cycle() {
    let journal = Journal::default();
    let hung = Script::default().then_always(Answer::Await(Gate::default())).into_journal(&journal);
    let steady = Script::default().into_journal(&journal);
    let specs = vec![hung.spec("hung"), every(steady.spec("steady"), Duration::from_millis(100))];
    run(RuntimeSettings { drain_grace: Duration::ZERO, ..settings() }, specs, |_| async move {
        journal.until("steady", Happened::Ended, 11).await;
        let times = journal.times("steady", Happened::Began);
        let took = (times[10] - times[0]).as_millis();
        assert!((1000..1030).contains(&took), "{took}");
    });
}

#[test]
fn paused_stages_are_not_waited_for_and_resume_at_once() {
    let script = Script::default();
    let specs = vec![script.spec("first"), after(script.spec("second"), &["first"])];
    let journal = script.journal().clone();
    run(settings(), specs, |handle| async move {
        journal.until("second", Happened::Ended, 1).await;
        assert_eq!(handle.pause("first"), Ok(1));
        assert!(handle.pause("third").is_err());
        journal.until("second", Happened::Ended, 4).await;
        assert_eq!(journal.count("first", Happened::Began), 1);
        assert!(handle.status().stage("first").unwrap().paused);
        handle.tick("first").unwrap();
        journal.until("first", Happened::Ended, 2).await;
        let at = tokio::time::Instant::now();
        handle.resume("first").unwrap();
        journal.until("first", Happened::Ended, 3).await;
        assert!(at.elapsed() < Duration::from_millis(5));
    });
}

#[test]
fn the_cycle_is_jittered() {
    let script = Script::default();
    let specs = vec![script.spec("stage")];
    let journal = script.journal().clone();
    run(RuntimeSettings { cycle_jitter: 0.2, ..settings() }, specs, |_| async move {
        journal.until("stage", Happened::Began, 60).await;
        let times = journal.times("stage", Happened::Began);
        let gaps: Vec<u128> = times.windows(2).map(|pair| (pair[1] - pair[0]).as_millis()).collect();
        assert!(gaps.iter().all(|gap| (800..=1205).contains(gap)), "{gaps:?}");
        let (least, most) = (gaps.iter().min().unwrap(), gaps.iter().max().unwrap());
        assert!(most - least > 100, "{gaps:?}");
    });
}

#[test]
fn an_hour_passes_quickly() {
    let journal = Journal::default();
    let quiet = Script::default();
    let flaky = Script::new((0..200).map(|_| Answer::Transient("down"))).into_journal(&journal);
    let specs = vec![
        quiet.spec("creation"),
        after(flaky.spec("recovery"), &["creation"]),
        after(quiet.spec("finalizer"), &["recovery"]),
    ];
    let began = std::time::Instant::now();
    let outcome = run(settings(), specs, |handle| async move {
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let status = handle.status();
        assert!((3550..=3601).contains(&status.totals.cycles), "{}", status.totals.cycles);
        assert_eq!(status.stage("recovery").unwrap().restarts, 0);
        assert_eq!(journal.count("recovery", Happened::Made), 1);
        assert!(status.mailboxes.iter().all(|mailbox| mailbox.dead_letters == 0 && mailbox.rejected == 0));
    });
    assert_eq!(outcome, RunOutcome::Drained);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[test]
fn full_mailboxes_delay_but_lose_nothing() {
    let script = Script::default();
    let names: Vec<String> = (0..8).map(|n| format!("crowd/{n}")).collect();
    let specs = names.iter().map(|name| script.spec(name)).collect();
    let journal = script.journal().clone();
    let outcome = run(RuntimeSettings { mailbox_capacity: 1, ..settings() }, specs, |handle| async move {
        for name in &names {
            journal.until(name, Happened::Ended, 5).await;
        }
        let status = handle.status();
        let overseer = status.mailboxes.iter().find(|mailbox| mailbox.actor == "overseer").unwrap();
        assert!(overseer.rejected > 0, "{overseer:?}");
        assert!(status.mailboxes.iter().all(|mailbox| mailbox.dead_letters == 0));
        assert!(status.uptime_ms < 6000, "{}", status.uptime_ms);
    });
    assert_eq!(outcome, RunOutcome::Drained);
}

#[test]
fn status_is_plain_data() {
    let script = Script::new([Answer::Transient("down")]);
    let journal = script.journal().clone();
    run(settings(), vec![script.spec("stage/0")], |handle| async move {
        journal.until("stage/0", Happened::Ended, 1).await;
        while handle.status().stages[0].transient_in_row == 0 {
            tokio::task::yield_now().await;
        }
        let status = serde_json::to_value(handle.status()).unwrap();
        let stage = &status["stages"][0];
        assert_eq!((&stage["state"], &stage["family"]), (&"backing_off".into(), &"stage".into()));
        assert_eq!((&stage["last"]["end"], &stage["last"]["reason"]), (&"transient".into(), &"cycle".into()));
        assert!(stage["waits_ms"].as_u64().is_some_and(|waits| waits <= 250), "{stage}");
        assert_eq!(status["phase"], "running");
        assert!(status["mailboxes"][0]["wait"]["p99_us"].is_u64());
    });
}
