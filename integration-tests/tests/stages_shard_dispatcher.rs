//! shard_dispatcher on real databases: every chunk is handed out once, within its window, whoever competes or comes late.
#![allow(clippy::unwrap_used, reason = "what is unexpected in a test fails it")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use runherd_actors::model::{ClaimToken, RunId, RunStatus, ShardKey};
use runherd_actors::stages::finalizer::FinalizerPort;
use runherd_actors::stages::shard_dispatcher::{HandedOut, ShardDispatcherPort};
use runherd_integration_tests::stagehand::client::{Part, parts};
use runherd_integration_tests::stagehand::{Stagehand, tick};
use serde_json::{Value, json};
use tokio::task::JoinSet;

fn shard(run_id: RunId, run_shard: i32) -> ShardKey {
    ShardKey { run_id, run_shard }
}

fn header(shards: i32, policy: Value) -> Value {
    json!({"queue": "q", "shards": shards, "policy": policy})
}

/// Where shard 0 of a run stands: on its cursor, and on its placement.
async fn positions(hand: &Stagehand, run: RunId) -> (i64, i64) {
    let cursor = "SELECT next_chunk_no FROM runherd.dispatch_cursors WHERE run_id = $1 AND run_shard = 0";
    let position = "SELECT next_chunk_no FROM runherd.shard_positions WHERE run_id = $1 AND run_shard = 0";
    (hand.control.value(cursor, &[&run.0]).await, hand.only().value(position, &[&run.0]).await)
}

async fn cursor_status(hand: &Stagehand, run: RunId) -> String {
    let select = "SELECT status FROM runherd.dispatch_cursors WHERE run_id = $1 AND run_shard = 0";
    hand.control.value(select, &[&run.0]).await
}

/// Chunk-ready events of a run, oldest first.
async fn announced(hand: &Stagehand, run: RunId) -> Vec<String> {
    let select = "SELECT dedupe_key FROM runherd.outbox_events WHERE dedupe_key LIKE 'chunk-ready/' || $1::uuid || '/%'
        ORDER BY event_id";
    let mut all = Vec::new();
    for placement in hand.placements.values() {
        all.extend(placement.column::<String>(select, &[&run.0]).await);
    }
    all
}

/// One visit of every cursor: how many chunks were handed out.
async fn visit(hand: &Stagehand) -> u64 {
    hand.dispatch_now().await;
    let report = tick(&mut hand.dispatcher()).await;
    assert_eq!(report.blocked_by, Vec::<String>::new());
    hand.assert_invariants().await;
    report.counted("chunks")
}

#[tokio::test]
async fn the_window_fills_up_again_as_chunks_finish() {
    let hand = Stagehand::new("the_window_fills_up_again", &[]).await;
    let run = hand.created(header(1, json!({"window": 4, "max_attempts": 1})), &parts(1, 12)).await;
    let sql = hand.only();
    assert_eq!((visit(&hand).await, visit(&hand).await), (4, 0));
    let mut held = sql.hold_all(run).await;
    // Out of order: the oldest chunk stays in flight.
    assert_eq!(sql.complete(held.pop().unwrap()).await, "ok");
    assert_eq!((visit(&hand).await, visit(&hand).await), (1, 0));
    // Given back to be done again is in flight still; failed for good is not.
    assert_eq!(sql.release(held.pop().unwrap()).await, "ok");
    assert_eq!(visit(&hand).await, 0);
    assert_eq!(sql.fail(held.pop().unwrap(), true).await.1.unwrap(), "failed");
    assert_eq!((visit(&hand).await, positions(&hand, run).await), (1, (6, 6)));

    assert_eq!(sql.complete(held.pop().unwrap()).await, "ok");
    let rest = sql.hold_all(run).await;
    sql.complete_all(&rest).await;
    assert_eq!((visit(&hand).await, cursor_status(&hand, run).await), (4, "open".into()));
    sql.complete_all(&sql.hold_all(run).await).await;
    assert_eq!((visit(&hand).await, cursor_status(&hand, run).await), (2, "exhausted".into()));
    assert_eq!(positions(&hand, run).await, (12, 12));
    // Twelve hand-outs, and the release of one.
    assert_eq!(announced(&hand, run).await.len(), 13);
}

#[tokio::test]
async fn a_window_larger_than_a_statement_is_filled_in_several() {
    let hand = Stagehand::new("a_window_larger_than_a_statement", &[]).await;
    let run =
        hand.created(header(1, json!({"window": 100_000, "chunks_per_event": 100})), &[Part::range(0, 1, 6_000)]).await;
    let mut dispatcher = hand.dispatcher();
    let report = tick(&mut dispatcher).await;
    assert_eq!((report.counted("chunks"), report.due_in), (5_000, Some(Duration::ZERO)));
    assert_eq!(tick(&mut dispatcher).await.counted("chunks"), 1_000);
    assert_eq!((announced(&hand, run).await.len(), cursor_status(&hand, run).await), (60, "exhausted".into()));
    hand.assert_invariants().await;
}

#[tokio::test]
async fn a_hand_out_from_an_old_position_changes_nothing() {
    let hand = Stagehand::new("a_hand_out_from_an_old_position", &[]).await;
    let run = hand.created(header(1, json!({})), &parts(1, 20)).await;
    let (port, placement, key) = (hand.dispatcher_port(0, 1), hand.control_id(), shard(run, 0));
    let hand_out = async |from, count| port.hand_out(placement, key, from, count).await.unwrap();
    assert_eq!(hand_out(0, 3).await, Some(HandedOut { next_chunk_no: 3, events: 3 }));
    let replayed = async || {
        assert_eq!(hand_out(0, 3).await, None);
        assert_eq!(hand_out(0, 5).await, None);
        assert_eq!(hand_out(2, 3).await, None);
        assert_eq!((announced(&hand, run).await.len(), positions(&hand, run).await), (3, (0, 3)));
        hand.assert_invariants().await;
    };
    replayed().await;
    let held = hand.only().hold_all(run).await;
    replayed().await;
    hand.only().complete_all(&held).await;
    replayed().await;
    // Nothing beyond the end, either.
    assert_eq!(hand_out(3, 18).await, None);
    assert_eq!(hand_out(3, 17).await, Some(HandedOut { next_chunk_no: 20, events: 17 }));
    assert_eq!(hand_out(3, 17).await, None);
    hand.assert_invariants().await;
}

#[tokio::test]
async fn a_run_that_somebody_holds_locked_is_passed_over_without_waiting() {
    let hand = Stagehand::new("a_run_that_somebody_holds_locked", &[]).await;
    let locked = hand.created(header(1, json!({})), &parts(1, 2)).await;
    let free = hand.created(header(1, json!({})), &parts(1, 3)).await;
    let other = hand.another().await;
    other.run("BEGIN", &[]).await;
    other.rows("SELECT 1 FROM runherd.runs WHERE run_id = $1 FOR UPDATE", &[&locked.0]).await;
    // Waiting would end in an error of the cycle.
    assert_eq!(visit(&hand).await, 3);
    assert_eq!((hand.status(locked).await, hand.status(free).await), ("pending".into(), "running".into()));
    other.run("COMMIT", &[]).await;
    assert_eq!(visit(&hand).await, 2);
}

#[tokio::test]
async fn nothing_is_handed_out_under_a_closed_guard_and_a_lost_intent_is_restated() {
    let hand = Stagehand::new("nothing_is_handed_out_under_a_closed_guard", &[]).await;
    let run = hand.created(header(2, json!({})), &parts(2, 3)).await;
    let (port, placement) = (hand.dispatcher_port(0, 1), hand.control_id());
    // The control database failed over and lost what closed the guard.
    hand.finalizer_port().cancel_guard(placement, run, RunStatus::Failed).await.unwrap();
    assert_eq!(port.hand_out(placement, shard(run, 0), 0, 3).await.unwrap(), None);
    assert_eq!((announced(&hand, run).await.len(), positions(&hand, run).await), (0, (0, 0)));

    let report = tick(&mut hand.dispatcher()).await;
    assert_eq!((report.counted("closed_guards"), report.counted("chunks")), (2, 0));
    assert!(report.wakes.contains(&"finalizer"));
    tick(&mut hand.finalizer()).await;
    assert_eq!((hand.status(run).await, announced(&hand, run).await.len()), ("failed".into(), 0));
    hand.assert_invariants().await;
}

#[tokio::test]
async fn whoever_lost_a_cursor_cannot_move_it() {
    let hand = Stagehand::new("whoever_lost_a_cursor", &[]).await;
    let run = hand.created(header(1, json!({"window": 2})), &parts(1, 6)).await;
    let (port, placement, key) = (hand.dispatcher_port(0, 1), hand.control_id(), shard(run, 0));
    let (zombie, holder) = (ClaimToken::fresh(), ClaimToken::fresh());
    let claim = async |token| port.claim_cursors(token, 10, &[placement]).await.unwrap().len();
    assert_eq!((claim(zombie).await, claim(holder).await), (1, 0));
    hand.control.run("UPDATE runherd.dispatch_cursors SET lease_expires_at = now() - interval '1 s'", &[]).await;
    assert_eq!(claim(holder).await, 1);
    port.start_run(run).await.unwrap();
    assert!(port.hand_out(placement, key, 0, 2).await.unwrap().is_some());

    assert!(!port.move_cursor(key, zombie, 0, Duration::ZERO).await.unwrap());
    assert!(!port.move_cursor(key, zombie, 6, Duration::ZERO).await.unwrap());
    port.yield_cursors(zombie, Duration::ZERO).await.unwrap();
    let leased = "SELECT (next_chunk_no, status, lease_token = $1, lease_expires_at > now())::text FROM runherd.dispatch_cursors";
    assert_eq!(hand.control.value::<String>(leased, &[&holder.0]).await, "(0,open,t,t)");
    assert!(port.move_cursor(key, holder, 2, Duration::ZERO).await.unwrap());
    assert_eq!(positions(&hand, run).await, (2, 2));
    hand.assert_invariants().await;
}

#[tokio::test]
async fn a_cursor_follows_its_placement_up_and_down() {
    let hand = Stagehand::new("a_cursor_follows_its_placement", &[]).await;
    let (run, sql) = (hand.created(header(1, json!({"window": 3})), &parts(1, 10)).await, hand.only());
    // Somebody handed out a window and died before it could move the cursor.
    hand.dispatcher_port(0, 1).hand_out(hand.control_id(), shard(run, 0), 0, 3).await.unwrap();
    assert_eq!(positions(&hand, run).await, (0, 3));
    assert_eq!((visit(&hand).await, positions(&hand, run).await), (0, (3, 3)));

    let window = "UPDATE runherd.run_guards SET dispatch_window = $1::int WHERE run_id = '";
    let window = format!("{window}{run}'");
    sql.run(&window, &[&6]).await;
    assert_eq!((visit(&hand).await, positions(&hand, run).await), (3, (6, 6)));
    // The placement fails over, and loses the second window.
    for lost in [
        "DELETE FROM runherd.outbox_delivery_queue q USING runherd.active_chunks a WHERE q.event_id = a.event_id AND a.chunk_no >= 3",
        "DELETE FROM runherd.outbox_events e USING runherd.active_chunks a WHERE e.event_id = a.event_id AND a.chunk_no >= 3",
        "DELETE FROM runherd.active_chunks WHERE chunk_no >= 3",
        "UPDATE runherd.shard_positions SET next_chunk_no = 3",
    ] {
        assert!(sql.run(lost, &[]).await > 0);
    }
    sql.run(&window, &[&3]).await;
    assert_eq!((visit(&hand).await, positions(&hand, run).await), (0, (3, 3)));
    assert_eq!(hand.work_off(run).await, 10);
    hand.assert_invariants().await;
}

#[tokio::test]
async fn paused_runs_and_runs_with_an_intent_are_passed_over() {
    let hand = Stagehand::new("paused_runs_and_runs_with_an_intent", &[]).await;
    let free = hand.created(header(1, json!({})), &parts(1, 2)).await;
    let paused = hand.created(header(1, json!({})), &parts(1, 3)).await;
    let cancelled = hand.created(header(1, json!({})), &parts(1, 5)).await;
    let pause = "SELECT runherd.pause_run($1)";
    hand.control.value::<String>(pause, &[&paused.0]).await;
    hand.cancel(cancelled).await;
    assert_eq!(visit(&hand).await, 2);
    assert_eq!((hand.status(free).await, hand.status(paused).await), ("running".into(), "pending".into()));
    // Applied, the pause still holds; so it does after the intent is gone.
    tick(&mut hand.finalizer()).await;
    assert_eq!(hand.status(cancelled).await, "cancelled");
    assert_eq!((visit(&hand).await, hand.status(paused).await), (0, "pending".into()));
    hand.control.value::<String>("SELECT runherd.resume_run($1)", &[&paused.0]).await;
    assert_eq!((visit(&hand).await, announced(&hand, cancelled).await.len()), (3, 0));
}

#[tokio::test]
async fn priority_goes_first_and_then_whoever_waited_longest() {
    let hand = Stagehand::new(
        "priority_goes_first",
        &[("shard_dispatcher.cursors_per_pass", "1"), ("shard_dispatcher.full_delay", "1m")],
    )
    .await;
    let mut runs = Vec::new();
    for priority in [0, -5, 10, 0] {
        let header = json!({"queue": "q", "shards": 1, "priority": priority, "policy": {"window": 1}});
        runs.push(hand.created(header, &parts(1, 9)).await);
    }
    let mut dispatcher = hand.dispatcher();
    for _ in 0..4 {
        assert_eq!(tick(&mut dispatcher).await.counted("chunks"), 1);
    }
    let served: Vec<String> = hand
        .control
        .column(
            "SELECT payload->>'run_id' FROM runherd.outbox_events
        WHERE kind = 'chunk.ready' ORDER BY event_id",
            &[],
        )
        .await;
    assert_eq!(served, [2, 0, 3, 1].map(|run: usize| runs[run].to_string()));
    // All are due, and every window has room: of two with the same priority, the one that was served first.
    for run in &runs {
        hand.complete_everything(*run).await;
    }
    let due = "UPDATE runherd.dispatch_cursors SET next_dispatch_at = next_dispatch_at - interval '1 h'";
    hand.control.run(due, &[]).await;
    hand.control.run("UPDATE runherd.dispatch_cursors SET priority = 0", &[]).await;
    assert_eq!(tick(&mut dispatcher).await.counted("chunks"), 1);
    assert_eq!(announced(&hand, runs[2]).await.len(), 2);
    hand.assert_invariants().await;
}

#[tokio::test]
async fn the_dispatchers_of_a_process_share_the_shards_evenly() {
    let hand = Stagehand::with_two_placements(
        "the_dispatchers_of_a_process",
        &[("creation_recovery.batch", "200"), ("creation_recovery.parts_per_pass", "2000")],
    )
    .await;
    let mut runs = BTreeMap::new();
    for shards in [1, 2, 7].into_iter().chain([1; 48]) {
        let run = hand.submit(header(shards, json!({})), &parts(shards.unsigned_abs() as usize, 1)).await;
        runs.insert(run, shards);
    }
    let report = tick(&mut hand.creation_recovery()).await;
    assert_eq!(report.counted("runs_opened"), 51, "{report:?}");
    let reachable: Vec<i32> = hand.placements.keys().copied().collect();
    let mut owned: BTreeMap<RunId, Vec<i64>> = runs.keys().map(|run| (*run, vec![0; 3])).collect();
    let mut shards = BTreeSet::new();
    for instance in 0..3 {
        // Only what can be reached is claimed; in two steps, so that nothing is left.
        for placement in &reachable {
            let port = hand.dispatcher_port(instance, 3);
            for cursor in port.claim_cursors(ClaimToken::fresh(), 1_000, &[*placement]).await.unwrap() {
                assert_eq!(cursor.placement, *placement);
                assert!(shards.insert(cursor.shard), "claimed twice");
                owned.get_mut(&cursor.shard.run_id).unwrap()[usize::try_from(instance).unwrap()] += 1;
            }
        }
    }
    assert_eq!(shards.len(), 1 + 2 + 7 + 48);
    for (run, owned) in &owned {
        let (least, most) = (owned.iter().min().unwrap(), owned.iter().max().unwrap());
        assert!(most - least <= 1, "{} shards: {owned:?}", runs[run]);
    }
    let singles = (0..3).map(|instance| owned.values().map(|owned| owned[instance]).sum::<i64>()).collect::<Vec<_>>();
    assert!(singles.iter().all(|owned| *owned > 6), "{singles:?}");
}

#[tokio::test]
async fn an_event_announces_a_range_of_one_shard() {
    let hand = Stagehand::new("an_event_announces_a_range", &[]).await;
    let whole = hand.created(header(1, json!({"chunks_per_event": 4})), &parts(1, 10)).await;
    let narrow = hand.created(header(1, json!({"chunks_per_event": 4, "window": 6})), &parts(1, 10)).await;
    assert_eq!(visit(&hand).await, 16);
    let keys = |run: RunId, ranges: &[&str]| {
        ranges.iter().map(|range| format!("chunk-ready/{run}/0/{range}/0")).collect::<Vec<_>>()
    };
    assert_eq!(announced(&hand, whole).await, keys(whole, &["0-3", "4-7", "8-9"]));
    assert_eq!(announced(&hand, narrow).await, keys(narrow, &["0-3", "4-5"]));
    let last = "SELECT json_build_array(routing_key, exchange, kind, headers, payload) FROM runherd.outbox_events
        WHERE dedupe_key LIKE '%/8-9/0'";
    let last: Value = hand.control.value(last, &[]).await;
    let run = whole.to_string();
    assert_eq!(
        last,
        json!(["chunk.ready.q", "runherd", "chunk.ready", {"placement": "control", "generation": 0, "cause": "dispatch"},
            {"placement": "control", "run_id": run, "run_shard": 0, "first_chunk_no": 8, "last_chunk_no": 9, "generation": 0}])
    );
}

/// Hands out a run with eight dispatchers at the same time; each chunk and each event once, and one start.
async fn race(hand: &Stagehand, instances: i32) {
    let run = hand.submit(header(24, json!({"window": 7, "chunks_per_event": 3})), &parts(24, 20)).await;
    tick(&mut hand.creation_recovery()).await;
    let mut started = 0;
    let mut chunks = 0;
    while chunks < 480 {
        hand.dispatch_now().await;
        let mut racing = JoinSet::new();
        for number in 0..8 {
            let mut dispatcher = hand.dispatcher_of(number % instances, instances);
            racing.spawn(async move { tick(&mut dispatcher).await });
        }
        let reports = racing.join_all().await;
        for report in reports {
            assert_eq!(report.blocked_by, Vec::<String>::new());
            started += report.counted("runs_started");
            chunks += report.counted("chunks");
        }
        hand.assert_invariants().await;
        hand.complete_everything(run).await;
    }
    assert_eq!((started, chunks, hand.status(run).await), (1, 480, "running".into()));
    assert_eq!(hand.run_events(run, "started").await, 1);
    let finished = "SELECT count(*) FROM runherd.chunks WHERE run_id = $1 AND status = 'succeeded' AND attempts = 1";
    assert_eq!(hand.sum(finished, &[&run.0]).await, 480);
    let announced = "SELECT COALESCE(sum((payload->>'last_chunk_no')::bigint - (payload->>'first_chunk_no')::bigint + 1), 0)::bigint
        FROM runherd.outbox_events WHERE dedupe_key LIKE 'chunk-ready/' || $1::uuid || '/%'";
    assert_eq!(hand.sum(announced, &[&run.0]).await, 480);
}

#[tokio::test]
async fn eight_dispatchers_of_one_process_hand_out_a_run_exactly() {
    let hand = Stagehand::with_two_placements("eight_dispatchers_of_one_process", &[]).await;
    race(&hand, 8).await;
}

#[tokio::test]
async fn eight_processes_hand_out_a_run_exactly() {
    let hand = Stagehand::with_two_placements("eight_processes", &[]).await;
    race(&hand, 1).await;
}
