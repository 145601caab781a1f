//! The finalizer on real databases: a run ends once, as what its chunks say, and leaves nothing open behind it.
#![allow(clippy::unwrap_used, reason = "what is unexpected in a test fails it")]

use std::time::Duration;

use runherd_actors::model::{ClaimToken, RunId, RunStatus, ShardKey};
use runherd_actors::stages::finalizer::FinalizerPort;
use runherd_integration_tests::stagehand::client::parts;
use runherd_integration_tests::stagehand::{Stagehand, tick};
use runherd_integration_tests::until;
use serde_json::{Value, json};
use tokio::task::JoinSet;

const LIMIT: Duration = Duration::from_secs(60);

fn header(shards: i32, policy: Value) -> Value {
    json!({"queue": "q", "shards": shards, "policy": policy})
}

/// Lets one finalizer look whenever something is due, as a coordinator would, until the run has this status.
async fn until_status(hand: &Stagehand, run: RunId, status: &str) {
    let mut finalizer = hand.finalizer();
    until(format!("run {run} to be {status}"), LIMIT, async || {
        tick(&mut finalizer).await;
        (hand.status(run).await == status).then_some(())
    })
    .await;
    hand.assert_invariants().await;
}

/// What the run says of itself: succeeded, failed, cancelled, lost.
async fn totals(hand: &Stagehand, run: RunId) -> Vec<i64> {
    let select = "SELECT ARRAY[succeeded, failed, cancelled, lost] FROM runherd.runs WHERE run_id = $1";
    hand.control.value(select, &[&run.0]).await
}

/// Whether nothing of an ended run is left open: every guard closed, no seed, no lease of the finalizer, no intent.
async fn assert_closed(hand: &Stagehand, run: RunId) {
    let open = "SELECT count(*) FROM runherd.run_guards WHERE run_id = $1 AND status <> 'closed'";
    assert_eq!(hand.sum(open, &[&run.0]).await, 0);
    let left = "SELECT (SELECT count(*) FROM runherd.run_seeds WHERE run_id = $1)
        + (SELECT count(*) FROM runherd.run_finalizations WHERE run_id = $1)
        + (SELECT count(*) FROM runherd.run_intents WHERE run_id = $1)
        + (SELECT count(*) FROM runherd.runs WHERE run_id = $1 AND guards_closed_at IS NULL)";
    assert_eq!(hand.control.value::<i64>(left, &[&run.0]).await, 0);
}

#[tokio::test]
async fn a_run_whose_chunks_all_succeed_succeeds() {
    let hand = Stagehand::with_two_placements("a_run_whose_chunks_all_succeed", &[]).await;
    let run = hand.submit_split(header(4, json!({"window": 3})), &parts(6, 5)).await;
    tick(&mut hand.creation_recovery()).await;
    assert_eq!(hand.work_off(run).await, 30);
    until_status(&hand, run, "succeeded").await;
    assert_eq!((totals(&hand, run).await, hand.reason(run).await), (vec![30, 0, 0, 0], String::new()));
    assert_closed(&hand, run).await;
    let events = "SELECT json_agg(json_build_array(payload->>'event', payload->'sequence', payload->'succeeded', payload->>'status')
        ORDER BY event_id) FROM runherd.outbox_events WHERE dedupe_key LIKE 'run/%'";
    let expected = json!([["pending", 1, null, null], ["started", 2, null, null], ["finished", 3, 30, "succeeded"]]);
    assert_eq!(hand.control.value::<Value>(events, &[]).await, expected);
    // A message that arrives once more meets a finished chunk.
    for placement in hand.placements.values() {
        let chunk = "SELECT run_shard FROM runherd.chunks WHERE run_id = $1 LIMIT 1";
        let shard: i32 = placement.value(chunk, &[&run.0]).await;
        assert_eq!(placement.lease(run, shard, 0).await.0, "finished");
    }
}

#[tokio::test]
async fn failures_fail_a_run_unless_it_tolerates_them() {
    let hand = Stagehand::new("failures_fail_a_run", &[]).await;
    let mut runs = Vec::new();
    for tolerated in [None, Some(1), Some(2)] {
        let header = json!({"queue": "q", "shards": 2, "tolerated_failures": tolerated, "policy": {"max_attempts": 1}});
        runs.push(hand.dispatched(header, &parts(2, 3)).await);
    }
    for run in &runs {
        let held = hand.only().hold_all(*run).await;
        assert_eq!(hand.only().fail(held[0], true).await.1.unwrap(), "failed");
        assert_eq!(hand.only().fail(held[5], false).await.1.unwrap(), "failed");
        hand.only().complete_all(&held[1..5]).await;
    }
    until_status(&hand, runs[0], "failed").await;
    until_status(&hand, runs[1], "failed").await;
    until_status(&hand, runs[2], "succeeded").await;
    for run in &runs {
        assert_eq!(totals(&hand, *run).await, [4, 2, 0, 0]);
        assert_closed(&hand, *run).await;
    }
    assert_eq!(hand.reason(runs[0]).await, "2 chunks failed, 0 are tolerated");
    assert_eq!(
        (hand.reason(runs[1]).await, hand.reason(runs[2]).await),
        ("more than 1 chunks failed".into(), "".into())
    );
}

#[tokio::test]
async fn a_run_that_failed_too_often_is_stopped_early() {
    let hand = Stagehand::with_two_placements("a_run_that_failed_too_often", &[]).await;
    let header =
        json!({"queue": "q", "shards": 6, "tolerated_failures": 2, "policy": {"max_attempts": 1, "window": 4}});
    let run = hand.submit_split(header, &parts(6, 10)).await;
    tick(&mut hand.creation_recovery()).await;
    hand.dispatch().await;
    let placements: Vec<_> = hand.placements.values().collect();
    let held = [placements[0].hold_all(run).await, placements[1].hold_all(run).await];
    // As many as it tolerates, over all placements.
    assert_eq!(placements[0].fail(held[0][0], false).await.0, "ok");
    assert_eq!(placements[1].fail(held[1][0], false).await.0, "ok");
    hand.finalize_now().await;
    assert_eq!(tick(&mut hand.finalizer()).await.counts, []);
    assert_eq!(hand.status(run).await, "running");

    assert_eq!(placements[1].complete(held[1][1]).await, "ok");
    assert_eq!(placements[1].fail(held[1][2], false).await.0, "ok");
    until_status(&hand, run, "failed").await;
    assert_eq!(
        (totals(&hand, run).await, hand.reason(run).await),
        (vec![1, 3, 56, 0], "more than 2 chunks failed".into())
    );
    assert_eq!(placements[0].complete(held[0][1]).await, "run_closed");
    assert_closed(&hand, run).await;
}

#[tokio::test]
async fn a_run_beyond_its_deadline_fails_wherever_it_stands() {
    let hand = Stagehand::new("a_run_beyond_its_deadline", &[]).await;
    let header = json!({"queue": "q", "shards": 2, "deadline_ms": 3_600_000});
    let running = hand.dispatched(header.clone(), &parts(2, 3)).await;
    let pending = hand.created(header.clone(), &parts(2, 3)).await;
    let sealed = hand.submit(header.clone(), &parts(2, 3)).await;
    let (unsealed, _) = hand.begin(header, Some("key"), &parts(1, 3)).await;
    let runs = [running, pending, sealed, unsealed];
    let held = hand.only().hold(running, 0, 0).await;
    hand.finalize_now().await;
    assert_eq!(tick(&mut hand.finalizer()).await.counts, []);
    hand.control.run("UPDATE runherd.runs SET deadline_at = now() - interval '1 s'", &[]).await;
    hand.finalize_now().await;
    tick(&mut hand.finalizer()).await;
    for run in runs {
        assert_eq!((hand.status(run).await, hand.reason(run).await), ("failed".into(), "its deadline passed".into()));
        assert_closed(&hand, run).await;
    }
    assert_eq!((totals(&hand, running).await, totals(&hand, sealed).await), (vec![0, 0, 6, 0], vec![0, 0, 0, 0]));
    assert_eq!(hand.only().complete(held).await, "run_closed");
    hand.assert_invariants().await;
}

#[tokio::test]
async fn a_deadline_is_met_by_itself() {
    let hand = Stagehand::new("a_deadline_is_met_by_itself", &[]).await;
    let run = hand.dispatched(json!({"queue": "q", "shards": 1, "deadline_ms": 700}), &parts(1, 3)).await;
    until_status(&hand, run, "failed").await;
    let late = "SELECT finished_at >= deadline_at FROM runherd.runs WHERE run_id = $1";
    assert!(hand.control.value::<bool>(late, &[&run.0]).await);
}

#[tokio::test]
async fn a_run_of_nothing_succeeds() {
    let hand = Stagehand::new("a_run_of_nothing", &[]).await;
    let run = hand.created(header(3, json!({})), &[]).await;
    until_status(&hand, run, "succeeded").await;
    assert_eq!((hand.run_events(run, "started").await, totals(&hand, run).await), (1, vec![0; 4]));
    assert_closed(&hand, run).await;
}

#[tokio::test]
async fn a_pause_stops_hand_out_only() {
    let hand = Stagehand::new("a_pause_stops_hand_out_only", &[]).await;
    let partly = hand.dispatched(header(1, json!({"window": 2})), &parts(1, 3)).await;
    let wholly = hand.dispatched(header(1, json!({})), &parts(1, 2)).await;
    for run in [partly, wholly] {
        hand.control.value::<String>("SELECT runherd.pause_run($1)", &[&run.0]).await;
    }
    assert_eq!(tick(&mut hand.finalizer()).await.counted("paused"), 2);
    let paused = "SELECT count(*) FROM runherd.runs WHERE paused AND NOT EXISTS (SELECT 1 FROM runherd.run_intents)";
    assert_eq!(hand.control.value::<i64>(paused, &[]).await, 2);
    // What is handed out goes on, and a run that has nothing to hand out ends.
    assert_eq!((hand.complete_everything(partly).await, hand.complete_everything(wholly).await), (2, 2));
    hand.dispatch().await;
    until_status(&hand, wholly, "succeeded").await;
    assert_eq!((hand.status(partly).await, hand.complete_everything(partly).await), ("running".into(), 0));

    hand.control.value::<String>("SELECT runherd.resume_run($1)", &[&partly.0]).await;
    assert_eq!(hand.work_off(partly).await, 1);
    until_status(&hand, partly, "succeeded").await;
}

/// A run of two shards of five chunks: the first one is done and marked drained, the second is done and not looked at yet.
async fn half_drained(hand: &Stagehand) -> RunId {
    let run = hand.dispatched(header(2, json!({})), &parts(2, 5)).await;
    let (sql, held) = (hand.only(), hand.only().hold_all(run).await);
    sql.complete_all(&held[..5]).await;
    assert_eq!(tick(&mut hand.finalizer()).await.counted("shards_drained"), 1);
    sql.complete_all(&held[5..]).await;
    let drained = "SELECT array_agg(status ORDER BY run_shard) FROM runherd.dispatch_cursors";
    assert_eq!(hand.control.value::<Vec<String>>(drained, &[]).await, ["drained", "exhausted"]);
    run
}

#[tokio::test]
async fn a_drained_mark_that_the_placement_lost_is_made_again() {
    let hand = Stagehand::new("a_drained_mark_that_was_lost", &[]).await;
    let run = half_drained(&hand).await;
    hand.only().run("UPDATE runherd.shard_positions SET drained_at = NULL", &[]).await;
    hand.finalize_now().await;
    assert_eq!(tick(&mut hand.finalizer()).await.counted("undrained"), 1);
    until_status(&hand, run, "succeeded").await;
    assert_eq!(totals(&hand, run).await, [10, 0, 0, 0]);
}

#[tokio::test]
async fn work_that_the_placement_lost_is_handed_out_and_done_again() {
    let hand = Stagehand::new("work_that_the_placement_lost", &[]).await;
    let run = half_drained(&hand).await;
    // A failover: of the first shard, the hand-out of the last two chunks and all that followed from it.
    for lost in [
        "UPDATE runherd.shard_positions SET next_chunk_no = 3, low_chunk_no = 3, succeeded = 3, drained_at = NULL WHERE run_shard = 0",
        "UPDATE runherd.chunks SET status = 'open', outcome = NULL, finished_at = NULL, finished_token = NULL
         WHERE run_shard = 0 AND chunk_no >= 3",
        "DELETE FROM runherd.outbox_delivery_queue q USING runherd.outbox_events e WHERE e.event_id = q.event_id
         AND e.payload->>'run_shard' = '0' AND (e.payload->>'first_chunk_no')::int >= 3",
        "DELETE FROM runherd.outbox_events e WHERE e.payload->>'run_shard' = '0' AND (e.payload->>'first_chunk_no')::int >= 3",
    ] {
        assert!(hand.only().run(lost, &[]).await > 0);
    }
    hand.assert_invariants().await;
    hand.finalize_now().await;
    let report = tick(&mut hand.finalizer()).await;
    assert_eq!((report.counted("undrained"), report.counted("reopened")), (1, 1));
    assert!(report.wakes.contains(&"shard_dispatcher"));
    assert_eq!((hand.status(run).await, hand.work_off(run).await), ("running".into(), 2));
    until_status(&hand, run, "succeeded").await;
    assert_eq!(totals(&hand, run).await, [10, 0, 0, 0]);
}

#[tokio::test]
async fn a_run_waits_for_a_placement_that_is_offline() {
    let hand = Stagehand::with_two_placements("a_run_waits_for_a_placement", &[]).await;
    let run = hand.submit_split(header(4, json!({})), &parts(4, 2)).await;
    tick(&mut hand.creation_recovery()).await;
    assert_eq!(hand.work_off(run).await, 8);
    let set = "UPDATE runherd.placements SET state = $1 WHERE name = 'p2'";
    hand.control.run(set, &[&"offline"]).await;
    until("the coordinator to see it offline", LIMIT, async || hand.router.placements().await.unwrap().skipped.pop())
        .await;
    let mut finalizer = hand.finalizer();
    for _ in 0..3 {
        hand.finalize_now().await;
        assert!(tick(&mut finalizer).await.blocked_by[0].contains("p2"));
    }
    assert_eq!(hand.status(run).await, "running");
    hand.control.run(set, &[&"active"]).await;
    until_status(&hand, run, "succeeded").await;
}

#[tokio::test]
async fn a_finalizer_that_died_is_followed_by_another() {
    let hand = Stagehand::new("a_finalizer_that_died", &[]).await;
    let run = hand.dispatched(header(2, json!({})), &parts(2, 2)).await;
    hand.complete_everything(run).await;
    let (port, zombie) = (hand.finalizer_port(), ClaimToken::fresh());
    assert_eq!(port.claim_runs(zombie, 10).await.unwrap(), [run]);
    assert_eq!(tick(&mut hand.finalizer()).await.counts, []);
    // The claim itself says when to look again, should nobody give it back.
    let followed = "SELECT look_after = expires_at AND expires_at > now() FROM runherd.run_finalizations";
    assert!(hand.control.value::<bool>(followed, &[]).await);
    hand.control.run("UPDATE runherd.run_finalizations SET expires_at = now(), look_after = now()", &[]).await;

    // Another one holds it now; the zombie can neither end it nor give it back, though every shard is drained.
    let holder = ClaimToken::fresh();
    assert_eq!(port.claim_runs(holder, 10).await.unwrap(), [run]);
    drain(&hand, run).await;
    assert_eq!(port.finish_run(run, zombie).await.unwrap(), None);
    assert!(!port.renew(run, zombie).await.unwrap());
    port.yield_run(run, zombie, Duration::ZERO).await.unwrap();
    assert!(hand.control.value::<bool>(followed, &[]).await);
    assert_eq!(port.finish_run(run, holder).await.unwrap(), Some(RunStatus::Succeeded));
    assert_eq!(port.finish_run(run, zombie).await.unwrap(), None);
    port.yield_run(run, holder, Duration::ZERO).await.unwrap();
    until("its guard to be closed", LIMIT, async || {
        (tick(&mut hand.finalizer()).await.counted("guards_closed") == 1).then_some(())
    })
    .await;
    assert_closed(&hand, run).await;
    assert_eq!(hand.run_events(run, "finished").await, 1);
    hand.assert_invariants().await;
}

/// Marks every shard of a run drained, step by step as the stage does.
async fn drain(hand: &Stagehand, run_id: RunId) {
    let port = hand.finalizer_port();
    for cursor in port.exhausted_cursors(run_id, 100).await.unwrap() {
        let shard = ShardKey { run_id, run_shard: cursor.run_shard };
        port.advance_low(cursor.placement, shard, 100).await.unwrap();
        let totals = port.mark_drained(cursor.placement, shard, cursor.chunk_count).await.unwrap().unwrap();
        port.drain_cursor(shard, totals).await.unwrap();
    }
}

#[tokio::test]
async fn a_cancel_that_comes_before_the_end_is_heeded() {
    let hand = Stagehand::new("a_cancel_before_the_end", &[]).await;
    let run = hand.dispatched(header(2, json!({})), &parts(2, 2)).await;
    hand.complete_everything(run).await;
    let (port, token) = (hand.finalizer_port(), ClaimToken::fresh());
    port.claim_runs(token, 10).await.unwrap();
    drain(&hand, run).await;
    // After the last look at the run, and before the statement that would end it.
    hand.cancel(run).await;
    assert_eq!(port.finish_run(run, token).await.unwrap(), None);
    port.yield_run(run, token, Duration::ZERO).await.unwrap();
    until_status(&hand, run, "cancelled").await;
    assert_eq!((totals(&hand, run).await, hand.run_events(run, "finished").await), (vec![4, 0, 0, 0], 1));
}

#[tokio::test]
async fn a_signal_during_a_look_is_not_lost() {
    let hand = Stagehand::new("a_signal_during_a_look", &[]).await;
    let run = hand.dispatched(header(1, json!({"window": 1})), &parts(1, 2)).await;
    let (port, token) = (hand.finalizer_port(), ClaimToken::fresh());
    hand.finalize_now().await;
    // Nothing asks for a look while chunks are left; this one is the slow periodical one.
    hand.control.run("UPDATE runherd.run_finalizations SET look_after = now()", &[]).await;
    assert_eq!(port.claim_runs(token, 10).await.unwrap(), [run]);
    assert_eq!(hand.work_off(run).await, 2);
    port.yield_run(run, token, Duration::from_secs(3_600)).await.unwrap();
    until_status(&hand, run, "succeeded").await;
}

#[tokio::test]
async fn finalizers_at_the_same_time_end_each_run_once() {
    let hand = Stagehand::with_two_placements("finalizers_at_the_same_time", &[("finalizer.batch", "4")]).await;
    let mut runs = Vec::new();
    for _ in 0..12 {
        runs.push(hand.submit(header(4, json!({})), &parts(4, 3)).await);
    }
    while tick(&mut hand.creation_recovery()).await.did_something() {}
    for run in &runs {
        assert_eq!(hand.work_off(*run).await, 12);
    }
    let mut ending = JoinSet::new();
    for _ in 0..3 {
        let mut finalizer = hand.finalizer();
        ending.spawn(async move {
            let mut finished = 0;
            loop {
                let report = tick(&mut finalizer).await;
                finished += report.counted("runs_finished");
                if !report.more && !report.did_something() {
                    return finished;
                }
            }
        });
    }
    ending.join_all().await;
    for run in runs {
        until_status(&hand, run, "succeeded").await;
        assert_eq!(hand.run_events(run, "finished").await, 1);
        assert_closed(&hand, run).await;
    }
}
