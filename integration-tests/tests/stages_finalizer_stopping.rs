//! The finalizer on real databases, where a run is stopped: what is open is swept, what is finished stays, and whoever comes
//! late is told.
#![allow(clippy::unwrap_used, reason = "what is unexpected in a test fails it")]

use std::time::Duration;

use runherd_actors::model::RunId;
use runherd_integration_tests::stagehand::client::{Part, parts};
use runherd_integration_tests::stagehand::{Stagehand, tick};
use runherd_integration_tests::until;
use serde_json::{Value, json};
use tokio::task::JoinSet;

const LIMIT: Duration = Duration::from_secs(60);

fn header(shards: i32, policy: Value) -> Value {
    json!({"queue": "q", "shards": shards, "policy": policy})
}

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

async fn guards(hand: &Stagehand, run: RunId) -> Vec<String> {
    let select = "SELECT status || COALESCE('/' || outcome, '') FROM runherd.run_guards WHERE run_id = $1";
    let mut all = Vec::new();
    for placement in hand.placements.values() {
        all.extend(placement.column(select, &[&run.0]).await);
    }
    all
}

#[tokio::test]
async fn a_cancelled_run_keeps_what_is_done_and_refuses_what_comes_late() {
    let hand = Stagehand::with_two_placements("a_cancelled_run_keeps", &[("finalizer.sweep_batch", "3")]).await;
    let run = hand.submit_split(header(6, json!({"window": 7, "max_attempts": 1})), &parts(6, 20)).await;
    tick(&mut hand.creation_recovery()).await;
    hand.dispatch().await;
    let mut late = Vec::new();
    for sql in hand.placements.values() {
        let held = sql.hold_all(run).await;
        assert_eq!(sql.complete(held[2]).await, "ok");
        assert_eq!(sql.fail(held[3], false).await.0, "ok");
        late.push((held[0], held[1], held[2], held[4]));
    }
    assert_eq!(hand.cancel(run).await, "running");
    assert_eq!(hand.cancel(run).await, "running");
    until_status(&hand, run, "cancelled").await;

    assert_eq!(totals(&hand, run).await, [2, 2, 116, 0]);
    assert!(hand.reason(run).await.starts_with("cancelled by "));
    assert_eq!(guards(&hand, run).await, ["closed/cancelled", "closed/cancelled"]);
    for (sql, (complete, fail, completed, renew)) in hand.placements.values().zip(late) {
        assert_eq!(sql.complete(complete).await, "run_closed");
        assert_eq!((sql.fail(fail, true).await.0, sql.release(fail).await), ("run_closed".into(), "run_closed".into()));
        assert_eq!(sql.renew(renew).await, "run_closed");
        // Its answer was lost; that it was done is not.
        assert_eq!(sql.complete(completed).await, "ok");
        assert_eq!(sql.lease(run, renew.shard, 19).await.0, "finished");
    }
    assert_eq!(hand.run_events(run, "finished").await, 1);
    hand.dispatch().await;
    assert_eq!(tick(&mut hand.lease_recovery()).await.counts, []);
    hand.assert_invariants().await;
    // There is nothing to cancel any more.
    let again = hand.control.client().query_one("SELECT runherd.cancel_run($1)", &[&run.0]).await.unwrap_err();
    assert_eq!(again.code().unwrap().code(), "RH409");
}

#[tokio::test]
async fn a_run_is_cancelled_before_anything_was_handed_out() {
    let hand = Stagehand::with_two_placements("a_run_is_cancelled_before", &[]).await;
    let pending = hand.submit_split(header(4, json!({})), &parts(4, 3)).await;
    tick(&mut hand.creation_recovery()).await;
    let sealed = hand.submit_split(header(4, json!({})), &parts(4, 3)).await;
    let (unsealed, token) = hand.begin(header(4, json!({})), Some("key"), &parts(2, 3)).await;
    let (aborted, abort) = hand.begin(header(4, json!({})), None, &parts(2, 3)).await;
    for run in [pending, sealed, unsealed] {
        hand.cancel(run).await;
    }
    hand.control.run("SELECT runherd.abort_run($1, $2, 'line 7 is no JSON')", &[&aborted.0, &abort]).await;
    tick(&mut hand.finalizer()).await;
    for run in [pending, sealed, unsealed] {
        assert_eq!((hand.status(run).await, hand.run_events(run, "finished").await), ("cancelled".into(), 1));
    }
    assert_eq!((hand.status(aborted).await, hand.reason(aborted).await), ("failed".into(), "line 7 is no JSON".into()));
    assert_eq!((totals(&hand, pending).await, totals(&hand, sealed).await), (vec![0, 0, 12, 0], vec![0; 4]));
    // Where nothing was seeded yet, a closed guard stands as well.
    assert_eq!(guards(&hand, sealed).await, ["closed/cancelled", "closed/cancelled"]);
    // Its client can neither go on nor seal.
    for refused in
        ["SELECT runherd.append_part($1, $2, 2, 1, '[1]', '1 min')", "SELECT runherd.seal_run($1, $2, 2, '')"]
    {
        assert!(hand.control.client().query_one(refused, &[&unsealed.0, &token]).await.is_err());
    }
    expect_nothing_to_create(&hand).await;
}

async fn expect_nothing_to_create(hand: &Stagehand) {
    hand.control.run("UPDATE runherd.runs SET creation_expires_at = now() - interval '1 d'", &[]).await;
    assert_eq!(tick(&mut hand.creation_recovery()).await.counts, []);
    hand.assert_invariants().await;
}

#[tokio::test]
async fn the_first_stop_that_was_asked_for_decides() {
    let hand = Stagehand::new("the_first_stop_decides", &[]).await;
    let run = hand.dispatched(header(1, json!({})), &parts(1, 3)).await;
    let fail = "INSERT INTO runherd.run_intents (run_id, intent, requested_at, requested_by, reason)
        VALUES ($1, 'fail', now() - interval '1 min', 'an operator', 'bad data')";
    hand.cancel(run).await;
    hand.control.run(fail, &[&run.0]).await;
    hand.control.value::<String>("SELECT runherd.pause_run($1)", &[&run.0]).await;
    until_status(&hand, run, "failed").await;
    assert_eq!(
        (hand.reason(run).await, guards(&hand, run).await),
        ("bad data".into(), vec!["closed/failed".to_owned()])
    );
    assert_eq!(hand.control.value::<i64>("SELECT count(*) FROM runherd.run_intents", &[]).await, 0);
}

#[tokio::test]
async fn an_intent_that_lost_the_race_is_dropped() {
    let hand = Stagehand::new("an_intent_that_lost_the_race", &[]).await;
    let run = hand.dispatched(header(1, json!({})), &parts(1, 1)).await;
    hand.complete_everything(run).await;
    until_status(&hand, run, "succeeded").await;
    let late = "INSERT INTO runherd.run_intents (run_id, intent, requested_by) VALUES ($1, $2, 'a client')";
    for intent in ["cancel", "pause"] {
        hand.control.run(late, &[&run.0, &intent]).await;
    }
    tick(&mut hand.finalizer()).await;
    assert_eq!(hand.control.value::<i64>("SELECT count(*) FROM runherd.run_intents", &[]).await, 0);
    assert_eq!((hand.status(run).await, hand.run_events(run, "finished").await), ("succeeded".into(), 1));
    hand.assert_invariants().await;
}

#[tokio::test]
async fn a_cancel_that_races_the_end_leaves_one_end() {
    let hand = Stagehand::new("a_cancel_that_races_the_end", &[("creation_recovery.batch", "100")]).await;
    let mut runs = Vec::new();
    for _ in 0..30 {
        runs.push(hand.submit(header(2, json!({})), &parts(2, 2)).await);
    }
    tick(&mut hand.creation_recovery()).await;
    hand.dispatch().await;
    for run in &runs {
        hand.complete_everything(*run).await;
    }
    let mut racing = JoinSet::new();
    for _ in 0..2 {
        let mut finalizer = hand.finalizer();
        racing.spawn(async move {
            while tick(&mut finalizer).await.did_something() {}
            0
        });
    }
    let canceller = hand.another().await;
    let all = runs.clone();
    racing.spawn(async move {
        let mut asked = 0;
        for run in all {
            match canceller.client().query_one("SELECT runherd.cancel_run($1)", &[&run.0]).await {
                Ok(_) => asked += 1,
                Err(refused) => assert_eq!(refused.code().unwrap().code(), "RH409"),
            }
        }
        asked
    });
    let asked: usize = racing.join_all().await.into_iter().sum();
    let (mut cancelled, mut finalizer) = (0, hand.finalizer());
    for run in &runs {
        let status = until("the run to end", LIMIT, async || {
            tick(&mut finalizer).await;
            Some(hand.status(*run).await).filter(|status| status == "succeeded" || status == "cancelled")
        })
        .await;
        cancelled += usize::from(status == "cancelled");
        // All its chunks were done before anybody asked.
        assert_eq!((totals(&hand, *run).await, hand.run_events(*run, "finished").await), (vec![4, 0, 0, 0], 1));
    }
    assert!(cancelled <= asked, "{cancelled} of {asked}");
    assert_eq!(hand.control.value::<i64>("SELECT count(*) FROM runherd.run_intents", &[]).await, 0);
    hand.assert_invariants().await;
}

#[tokio::test]
async fn workers_that_finish_while_a_run_is_swept_are_counted_as_they_were_answered() {
    let hand = Stagehand::new("workers_that_finish_while_swept", &[("finalizer.sweep_batch", "20")]).await;
    let run = hand.dispatched(header(4, json!({})), &parts(4, 60)).await;
    let held = hand.only().hold_all(run).await;
    hand.cancel(run).await;
    let mut racing = JoinSet::new();
    for number in 0..3 {
        let sql = hand.another().await;
        let mine: Vec<_> = held.iter().copied().skip(number).step_by(3).collect();
        racing.spawn(async move {
            let mut done = 0;
            for held in mine {
                match sql.complete(held).await.as_str() {
                    "ok" => done += 1,
                    // It read the guard before that was closed, and lost its row to the sweep.
                    "lost" => {}
                    refused => assert_eq!(refused, "run_closed"),
                }
            }
            done
        });
    }
    let mut finalizer = hand.finalizer();
    racing.spawn(async move {
        while tick(&mut finalizer).await.did_something() {}
        0
    });
    let done: i64 = racing.join_all().await.into_iter().sum();
    until_status(&hand, run, "cancelled").await;
    assert_eq!(totals(&hand, run).await, [done, 0, 240 - done, 0]);
}

#[tokio::test]
async fn a_stopped_run_waits_for_a_placement_that_is_offline() {
    let hand = Stagehand::with_two_placements("a_stopped_run_waits", &[]).await;
    let run = hand.submit_split(header(4, json!({})), &parts(4, 2)).await;
    tick(&mut hand.creation_recovery()).await;
    hand.dispatch().await;
    let set = "UPDATE runherd.placements SET state = $1 WHERE name = 'p2'";
    hand.control.run(set, &[&"offline"]).await;
    until("the coordinator to see it offline", LIMIT, async || hand.router.placements().await.unwrap().skipped.pop())
        .await;
    hand.cancel(run).await;
    let mut finalizer = hand.finalizer();
    tick(&mut finalizer).await;
    // What can be reached is swept meanwhile.
    let open = "SELECT count(*) FROM runherd.chunks WHERE status = 'open'";
    assert_eq!((hand.status(run).await, hand.control.value::<i64>(open, &[]).await), ("cancelling".into(), 0));
    assert!(hand.sum(open, &[]).await > 0);
    hand.assert_invariants().await;
    hand.control.run(set, &[&"active"]).await;
    until_status(&hand, run, "cancelled").await;
    assert_eq!(totals(&hand, run).await, [0, 0, 8, 0]);
}

#[tokio::test]
async fn what_no_run_stands_behind_is_stopped_after_a_grace() {
    let settings = [("finalizer.orphan_grace", "1h"), ("finalizer.sweep_batch", "2")];
    let hand = Stagehand::new("what_no_run_stands_behind", &settings).await;
    let (orphan, other) = (
        hand.dispatched(header(1, json!({"window": 30})), &[Part::of(40)]).await,
        hand.dispatched(header(1, json!({})), &parts(1, 3)).await,
    );
    let held = hand.only().hold(orphan, 0, 0).await;
    assert_eq!(hand.only().complete(hand.only().hold(orphan, 0, 1).await).await, "ok");
    // The control database failed over, and lost the run.
    hand.control.run("DELETE FROM runherd.runs WHERE run_id = $1", &[&orphan.0]).await;
    let mut finalizer = hand.finalizer();
    assert_eq!(tick(&mut finalizer).await.counts, []);
    assert_eq!(guards(&hand, orphan).await, ["open"]);

    hand.only().run("UPDATE runherd.run_guards SET created_at = now() - interval '2 h'", &[]).await;
    let report = tick(&mut finalizer).await;
    assert!(report.counted("orphans") == 1 && report.counted("chunks_cancelled") > 0, "{report:?}");
    assert_eq!(
        (guards(&hand, orphan).await, hand.only().complete(held).await),
        (vec!["cancelled/cancelled".to_owned()], "run_closed".into())
    );
    until("the orphan to be closed", LIMIT, async || {
        tick(&mut finalizer).await;
        (guards(&hand, orphan).await == ["closed/cancelled"]).then_some(())
    })
    .await;
    let ends = "SELECT array_agg(n ORDER BY status) FROM (SELECT status, count(*) AS n FROM runherd.chunks
        WHERE run_id = $1 GROUP BY status) s";
    assert_eq!(hand.only().value::<Vec<i64>>(ends, &[&orphan.0]).await, [39, 1]);
    assert_eq!(hand.only().value::<i64>("SELECT count(*) FROM runherd.active_chunks", &[]).await, 3);
    assert_eq!(tick(&mut finalizer).await.counts, []);
    // Runs that the control database knows are none of this.
    assert_eq!((guards(&hand, other).await, hand.complete_everything(other).await), (vec!["open".to_owned()], 3));
    until_status(&hand, other, "succeeded").await;
}
