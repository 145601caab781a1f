//! lease_recovery on real databases: chunks of dead workers come back, once each, and lost announcements are repeated.
#![allow(clippy::unwrap_used, reason = "what is unexpected in a test fails it")]

use runherd_actors::model::{RunId, RunStatus};
use runherd_actors::stages::finalizer::FinalizerPort;
use runherd_integration_tests::stagehand::client::parts;
use runherd_integration_tests::stagehand::{Sql, Stagehand, tick};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// A chunk's row in `active_chunks`, as far as recovery changes it.
#[derive(Debug, PartialEq, Eq)]
struct Active {
    generation: i32,
    recoveries: i32,
    attempts: i32,
    leased: bool,
}

async fn active(sql: &Sql, run: RunId, no: i64) -> Option<Active> {
    let select = "SELECT generation, recoveries, attempts, lease_token IS NOT NULL FROM runherd.active_chunks
        WHERE run_id = $1 AND run_shard = 0 AND chunk_no = $2";
    let row = sql.rows(select, &[&run.0, &no]).await.pop()?;
    Some(Active { generation: row.get(0), recoveries: row.get(1), attempts: row.get(2), leased: row.get(3) })
}

/// The event that announces a chunk of shard 0 at a generation: (cause, status, in the delivery queue).
async fn event(sql: &Sql, run: RunId, no: i64, generation: i32) -> Option<(String, String, bool)> {
    let select = "SELECT e.headers->>'cause', e.status, q.event_id IS NOT NULL
        FROM runherd.outbox_events e LEFT JOIN runherd.outbox_delivery_queue q USING (outbox_shard, event_id)
        WHERE e.dedupe_key = runherd.chunk_ready_key($1, 0, $2, $2, $3)";
    let row = sql.rows(select, &[&run.0, &no, &generation]).await.pop()?;
    Some((row.get(0), row.get(1), row.get(2)))
}

fn one_shard(policy: Value) -> Value {
    json!({"queue": "q", "shards": 1, "policy": policy})
}

#[tokio::test]
async fn an_expired_lease_is_cleared_and_the_chunk_announced_again() {
    let hand = Stagehand::new("an_expired_lease_is_cleared", &[("lease_recovery.spread", "0ms")]).await;
    let (sql, run) = (hand.only(), hand.dispatched(one_shard(json!({})), &parts(1, 3)).await);
    let held = sql.hold(run, 0, 1).await;
    assert_eq!(tick(&mut hand.lease_recovery()).await.counts, []);
    sql.expire_leases(run).await;
    // Until it is recovered, nobody else gets the chunk.
    assert_eq!(sql.lease(run, 0, 1).await.0, "held");
    let report = tick(&mut hand.lease_recovery()).await;
    assert_eq!(report.counts, [("requeued", 1)]);
    assert!(report.wakes.contains(&"outbox_publisher"));

    let again = Active { generation: 1, recoveries: 1, attempts: 0, leased: false };
    assert_eq!(active(sql, run, 1).await, Some(again));
    assert_eq!(event(sql, run, 1, 1).await, Some(("recovery".into(), "pending".into(), true)));
    let untouched = Active { generation: 0, recoveries: 0, attempts: 0, leased: false };
    assert_eq!(active(sql, run, 0).await, Some(untouched));
    hand.assert_invariants().await;

    // The worker that was only slow finds its lease lost, also after another one has finished the chunk.
    assert_eq!(sql.complete(held).await, "lost");
    let new = sql.hold(run, 0, 1).await;
    for status in
        [sql.complete(held).await, sql.fail(held, true).await.0, sql.release(held).await, sql.renew(held).await]
    {
        assert_eq!(status, "lost");
    }
    assert_eq!(sql.complete(new).await, "ok");
    assert_eq!(sql.complete(held).await, "lost");
    let finished = "SELECT (status, attempts, recoveries, finished_token = $2)::text FROM runherd.chunks
        WHERE run_id = $1 AND chunk_no = 1";
    assert_eq!(sql.value::<String>(finished, &[&run.0, &new.token]).await, "(succeeded,1,1,t)");
    hand.assert_invariants().await;
}

#[tokio::test]
async fn at_the_recovery_limit_the_chunk_fails_with_that_reason() {
    let hand = Stagehand::new("at_the_recovery_limit", &[("lease_recovery.spread", "0ms")]).await;
    let run = hand.dispatched(one_shard(json!({"recovery_limit": 2, "window": 1})), &parts(1, 2)).await;
    let never = hand.dispatched(one_shard(json!({"recovery_limit": 0})), &parts(1, 1)).await;
    let (sql, mut stage) = (hand.only(), hand.lease_recovery());
    sql.hold(never, 0, 0).await;
    sql.expire_leases(never).await;
    assert_eq!(tick(&mut stage).await.counts, [("failed", 1)]);
    for generation in 1..=2 {
        sql.hold(run, 0, 0).await;
        sql.expire_leases(run).await;
        assert_eq!(tick(&mut stage).await.counts, [("requeued", 1)]);
        assert_eq!(active(sql, run, 0).await.unwrap().generation, generation);
    }
    let last = sql.hold(run, 0, 0).await;
    sql.expire_leases(run).await;
    let report = tick(&mut stage).await;
    assert_eq!(report.counts, [("failed", 1)]);
    assert!(report.wakes.contains(&"shard_dispatcher"), "its window has room now");

    assert_eq!((active(sql, run, 0).await, event(sql, run, 0, 3).await), (None, None));
    let chunk = "SELECT status || ': ' || error FROM runherd.chunks WHERE run_id = $1 AND chunk_no = 0";
    let error: String = sql.value(chunk, &[&run.0]).await;
    assert_eq!(error, "failed: recovery limit reached: the lease expired 3 times, last with worker a worker");
    assert_eq!(sql.complete(last).await, "lost");
    assert_eq!(hand.work_off(run).await, 1);
    hand.finalize_now().await;
    tick(&mut hand.finalizer()).await;
    assert_eq!((hand.status(run).await, hand.status(never).await), ("failed".into(), "failed".into()));
    hand.assert_invariants().await;
}

#[tokio::test]
async fn what_is_renewed_or_finished_before_the_sweep_is_left_alone() {
    let hand = Stagehand::new("what_is_renewed_or_finished", &[]).await;
    let (sql, run) = (hand.only(), hand.dispatched(one_shard(json!({})), &parts(1, 3)).await);
    let (renewed, finished, dead) = (sql.hold(run, 0, 0).await, sql.hold(run, 0, 1).await, sql.hold(run, 0, 2).await);
    sql.expire_leases(run).await;
    assert_eq!(sql.renew(renewed).await, "ok");
    assert_eq!(sql.complete(finished).await, "ok");
    assert_eq!(tick(&mut hand.lease_recovery()).await.counts, [("requeued", 1)]);
    let kept = Active { generation: 0, recoveries: 0, attempts: 0, leased: true };
    assert_eq!(active(sql, run, 0).await, Some(kept));
    assert_eq!((sql.complete(renewed).await, sql.complete(dead).await), ("ok".into(), "lost".into()));
    hand.assert_invariants().await;
}

#[tokio::test]
async fn sweepers_at_the_same_time_recover_each_lease_once() {
    let hand = Stagehand::with_two_placements("sweepers_at_the_same_time", &[("lease_recovery.batch", "40")]).await;
    let run = hand.submit_split(json!({"queue": "q", "shards": 6}), &parts(6, 50)).await;
    tick(&mut hand.creation_recovery()).await;
    hand.dispatch().await;
    for placement in hand.placements.values() {
        placement.hold_all(run).await;
        placement.expire_leases(run).await;
    }
    let mut sweeping = JoinSet::new();
    for _ in 0..4 {
        let mut stage = hand.lease_recovery();
        sweeping.spawn(async move {
            let mut requeued = 0;
            loop {
                let report = tick(&mut stage).await;
                requeued += report.counted("requeued");
                if !report.more {
                    return requeued;
                }
            }
        });
    }
    let mut requeued: u64 = sweeping.join_all().await.into_iter().sum();
    // A sweeper that met only what the others held has passed it by; the next cycle finds it.
    requeued += tick(&mut hand.lease_recovery()).await.counted("requeued");
    assert_eq!(requeued, 300);
    let once =
        "SELECT count(*) FROM runherd.active_chunks WHERE generation = 1 AND recoveries = 1 AND lease_token IS NULL";
    assert_eq!(hand.sum(once, &[]).await, 300);
    let events = "SELECT count(*) FROM runherd.outbox_events WHERE headers->>'cause' = 'recovery'";
    assert_eq!(hand.sum(events, &[]).await, 300);
    hand.assert_invariants().await;
}

#[tokio::test]
async fn stretches_and_batches_are_bounded_and_reach_everything() {
    let settings = [("lease_recovery.scan_rows", "7"), ("lease_recovery.batch", "3"), ("lease_recovery.spread", "0ms")];
    let hand = Stagehand::new("stretches_and_batches", &settings).await;
    let run = hand.dispatched(json!({"queue": "q", "shards": 5}), &parts(5, 6)).await;
    let sql = hand.only();
    assert_eq!(sql.hold_all(run).await.len(), 30);
    sql.expire_leases(run).await;
    let mut stage = hand.lease_recovery();
    let mut requeued = Vec::new();
    while requeued.iter().sum::<u64>() < 30 {
        assert!(requeued.len() < 20, "{requeued:?}");
        let report = tick(&mut stage).await;
        requeued.push(report.counted("requeued"));
    }
    assert!(requeued.iter().all(|requeued| (1..=3).contains(requeued)), "{requeued:?}");

    // The same for announcements, in cycles of one stage that finds nothing to recover.
    published(sql, "10 min").await;
    sql.run("UPDATE runherd.active_chunks SET ready_at = now() - interval '10 min'", &[]).await;
    let mut redelivered = Vec::new();
    while redelivered.iter().sum::<u64>() < 30 {
        assert!(redelivered.len() < 40, "{redelivered:?}");
        redelivered.push(tick(&mut stage).await.counted("redelivered"));
    }
    assert!(redelivered.iter().all(|redelivered| *redelivered <= 3), "{redelivered:?}");
    hand.assert_invariants().await;
}

#[tokio::test]
async fn chunks_of_a_stopped_run_are_left_alone_and_hold_up_no_others() {
    let settings = [("lease_recovery.batch", "2"), ("lease_recovery.spread", "0ms")];
    let hand = Stagehand::new("chunks_of_a_stopped_run", &settings).await;
    let sql = hand.only();
    let stopped = hand.dispatched(one_shard(json!({})), &parts(1, 5)).await;
    let live = hand.dispatched(json!({"queue": "q", "shards": 2}), &parts(2, 3)).await;
    for no in 0..3 {
        sql.hold(stopped, 0, no).await;
        // In a later shard, and so behind those of the other run.
        sql.hold(live, 1, no).await;
    }
    hand.finalizer_port().cancel_guard(hand.control_id(), stopped, RunStatus::Cancelled).await.unwrap();
    published(sql, "1 h").await;
    sql.run("UPDATE runherd.active_chunks SET ready_at = now() - interval '1 h'", &[]).await;
    for run in [stopped, live] {
        sql.expire_leases(run).await;
    }
    let mut stage = hand.lease_recovery();
    let reports = [tick(&mut stage).await, tick(&mut stage).await, tick(&mut stage).await, tick(&mut stage).await];
    assert_eq!(reports.iter().map(|report| report.counted("requeued")).sum::<u64>(), 3);
    assert_eq!(reports.iter().map(|report| report.counted("redelivered")).sum::<u64>(), 3);
    let left = "SELECT count(*) FROM runherd.active_chunks WHERE run_id = $1 AND generation = 0";
    assert_eq!(sql.value::<i64>(left, &[&stopped.0]).await, 5);
    let pending = "SELECT count(*) FROM runherd.outbox_events WHERE status = 'pending' AND dedupe_key LIKE '%' || $1::uuid || '%'";
    assert_eq!(sql.value::<i64>(pending, &[&stopped.0]).await, 0);
    hand.assert_invariants().await;
}

/// Says of every pending event that it was published this long ago.
async fn published(sql: &Sql, ago: &str) {
    let publish = "WITH sent AS (DELETE FROM runherd.outbox_delivery_queue RETURNING outbox_shard, event_id)
        UPDATE runherd.outbox_events e
        SET status = 'published', published_at = now() - $1::text::interval, proof = 'confirmed'
        FROM sent s WHERE e.outbox_shard = s.outbox_shard AND e.event_id = s.event_id";
    sql.run(publish, &[&ago]).await;
}

/// Chunk-ready events of a run, oldest first: (id, key, status, redeliveries).
async fn chunk_events(sql: &Sql, run: RunId) -> Vec<(i64, String, String, i32)> {
    let select = "SELECT event_id, dedupe_key, status, redeliveries FROM runherd.outbox_events
        WHERE dedupe_key LIKE 'chunk-ready/' || $1::uuid || '/%' ORDER BY event_id";
    let rows = sql.rows(select, &[&run.0]).await;
    rows.iter().map(|row| (row.get(0), row.get(1), row.get(2), row.get(3))).collect()
}

async fn handed_out_long_ago(sql: &Sql, run: RunId) {
    sql.run("UPDATE runherd.active_chunks SET ready_at = now() - interval '1 d' WHERE run_id = $1", &[&run.0]).await;
}

#[tokio::test]
async fn an_announcement_without_effect_is_repeated_under_its_own_key_ever_more_rarely() {
    let hand = Stagehand::new("an_announcement_without_effect", &[]).await;
    let policy = json!({"redelivery_after_ms": 300_000, "redelivery_after_max_ms": 900_000});
    let (sql, run) = (hand.only(), hand.dispatched(one_shard(policy), &parts(1, 1)).await);
    let first = chunk_events(sql, run).await.remove(0);
    let mut stage = hand.lease_recovery();
    handed_out_long_ago(sql, run).await;
    // What waits in the delivery queue is not lost.
    assert_eq!(tick(&mut stage).await.counts, []);
    // 5 min, then 10 min, then the cap of 15 min, for ever.
    for (times, (soon, due)) in
        (1..).zip([("4 min", "6 min"), ("9 min", "11 min"), ("14 min", "16 min"), ("14 min", "16 min")])
    {
        published(sql, soon).await;
        assert_eq!(tick(&mut stage).await.counts, [], "published {soon} ago, time {times}");
        let due_now = "UPDATE runherd.outbox_events SET published_at = now() - $1::text::interval WHERE event_id = $2";
        sql.run(due_now, &[&due, &first.0]).await;
        let report = tick(&mut stage).await;
        assert_eq!(report.counts, [("redelivered", 1)], "published {due} ago, time {times}");
        assert!(report.wakes.contains(&"outbox_publisher"));
        assert_eq!(chunk_events(sql, run).await, [(first.0, first.1.clone(), "pending".to_owned(), times)]);
        assert_eq!(tick(&mut stage).await.counts, []);
        hand.assert_invariants().await;
    }
    // Every copy may lease, the first as well as the last.
    let lease = "SELECT generation FROM runherd.lease_chunk($1, 0, 0, gen_random_uuid(), 'w', '1 min')";
    assert_eq!(sql.value::<i32>(lease, &[&run.0]).await, 0);
}

#[tokio::test]
async fn only_what_nobody_leased_is_announced_again() {
    let hand = Stagehand::new("only_what_nobody_leased", &[]).await;
    let sql = hand.only();
    let leased = hand.dispatched(one_shard(json!({})), &parts(1, 1)).await;
    let retried = hand.dispatched(one_shard(json!({"retry_delay_ms": 600_000})), &parts(1, 1)).await;
    let ranges = hand.dispatched(one_shard(json!({"chunks_per_event": 3})), &parts(1, 6)).await;
    let held = sql.hold(leased, 0, 0).await;
    // The announcement of its retry is older than the retry itself may be.
    assert_eq!(sql.fail(sql.hold(retried, 0, 0).await, true).await, ("ok".into(), Some("retry".into())));
    // Of the first range all are held or finished, of the second one chunk is not.
    for no in 0..5 {
        let held = sql.hold(ranges, 0, no).await;
        if no % 2 == 0 {
            assert_eq!(sql.complete(held).await, "ok");
        }
    }
    published(sql, "1 d").await;
    for run in [leased, ranges] {
        handed_out_long_ago(sql, run).await;
    }
    assert_eq!(tick(&mut hand.lease_recovery()).await.counts, [("redelivered", 1)]);
    let pending = chunk_events(sql, ranges).await.into_iter().filter(|event| event.2 == "pending");
    assert_eq!(pending.map(|event| event.1).collect::<Vec<_>>(), [format!("chunk-ready/{ranges}/0/3-5/0")]);
    assert_eq!(sql.complete(held).await, "ok");
    hand.assert_invariants().await;
}

#[tokio::test]
async fn sweepers_at_the_same_time_repeat_each_announcement_once() {
    let hand = Stagehand::new("sweepers_repeat_each_once", &[]).await;
    let (sql, run) = (hand.only(), hand.dispatched(json!({"queue": "q", "shards": 4}), &parts(4, 50)).await);
    published(sql, "1 d").await;
    handed_out_long_ago(sql, run).await;
    let mut sweeping = JoinSet::new();
    for _ in 0..4 {
        let mut stage = hand.lease_recovery();
        sweeping.spawn(async move { tick(&mut stage).await.counted("redelivered") });
    }
    let mut redelivered: u64 = sweeping.join_all().await.into_iter().sum();
    redelivered += tick(&mut hand.lease_recovery()).await.counted("redelivered");
    assert_eq!(redelivered, 200);
    assert!(chunk_events(sql, run).await.iter().all(|event| event.3 == 1));
    hand.assert_invariants().await;
}
