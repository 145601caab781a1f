//! The worker against real PostgreSQL and RabbitMQ: what it takes, commits, acknowledges, loses and gives back.
#![allow(clippy::unwrap_used, reason = "what is unexpected in a test fails it")]

#[path = "worker/fixture.rs"]
mod fixture;

use std::collections::HashMap;
use std::time::Duration;

use fixture::{Bench, Obedient, PATIENCE, Running, message, order, policy};
use runherd::policy::Policy;
use runherd::store::worker::{EndAnswer, LeaseAnswer, LeaseKey, LeaseRefusal, Next, WorkerStore};
use runherd::worker::command::{CommandHandler, CommandLimits};
use runherd_actors::model::{ChunkKey, LeaseToken};
use runherd_actors::stages::outbox_publisher::PublishOutcome;
use runherd_integration_tests::until;
use serde_json::json;
use tokio::time::timeout;
use uuid::Uuid;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_with_mixed_endings_is_acked_once_all_have_ended() {
    let bench = Bench::new("a_range_with_mixed_endings_is_acked_once_all_have_ended").await;
    let orders = ["succeed", "fail", "fail once", "panic", "hold", "succeed", "succeed", "succeed"].map(order);
    let run = bench.seed(&orders, &Policy { chunks_per_event: 8, max_attempts: 2, ..policy() }).await;
    bench.hand_out(run, 0, 8).await;
    bench.publish().await;
    let (handler, mut seen, hold) = Obedient::new();
    // A batch smaller than the range: it is leased in pieces.
    let worker = Running::start(bench.builder().concurrency(2).batch(2), handler);
    worker.until(|totals| totals.ended() == 7).await;
    bench.await_messages((0, 1)).await;
    hold.add_permits(1);
    worker.until(|totals| totals.ended() == 8).await;
    bench.await_messages((0, 0)).await;
    // The second attempts are announced one by one.
    bench.make_due().await;
    bench.publish().await;
    worker.until(|totals| totals.ended() == 10).await;
    let totals = worker.end().await;
    assert_eq!((totals.succeeded, totals.failed, totals.retried, totals.lost), (6, 2, 2, 0));
    bench.await_messages((0, 0)).await;
    let chunks = bench.chunks().await;
    assert_eq!(chunks[0], ("succeeded".to_owned(), 1, Some("{\"n\" : 0}".to_owned()), None));
    assert_eq!(chunks[1], ("failed".to_owned(), 1, None, Some("as ordered".to_owned())));
    assert_eq!(chunks[2], ("succeeded".to_owned(), 2, Some("2".to_owned()), None));
    assert_eq!(chunks[3], ("failed".to_owned(), 2, None, Some("the handler panicked: as ordered".to_owned())));
    assert!(chunks[4..].iter().all(|chunk| chunk.0 == "succeeded"), "{chunks:?}");
    let mut attempts = 0;
    while seen.try_recv().is_ok() {
        attempts += 1;
    }
    assert_eq!(attempts, 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_lease_cancels_the_handler_and_discards_its_result() {
    let bench = Bench::new("a_lost_lease_cancels_the_handler_and_discards_its_result").await;
    let run = bench.seed(&[order("hold"), order("succeed")], &policy()).await;
    bench.hand_out(run, 0, 2).await;
    bench.publish().await;
    let (handler, mut seen, _hold) = Obedient::new();
    let worker = Running::start(bench.builder().concurrency(2).lease_ttl(Duration::from_millis(600)), handler);
    worker.until(|totals| totals.succeeded == 1).await;
    let held = loop {
        let chunk = timeout(PATIENCE, seen.recv()).await.unwrap().unwrap();
        if chunk.key.chunk_no == 0 {
            break chunk;
        }
    };
    // The lease is renewed for longer than it lasts at once.
    let leased: String = "SELECT (expires_at > leased_at + interval '1 s')::text FROM runherd.active_chunks".to_owned();
    until("the lease to be renewed", PATIENCE, async || {
        let row = bench.client.query_one(&leased, &[]).await.unwrap();
        (row.get::<_, String>(0) == "true").then_some(())
    })
    .await;
    assert!(!held.cancelled.is_cancelled());
    // Somebody else has it now.
    let thief = Uuid::new_v4();
    bench.client.execute("UPDATE runherd.active_chunks SET lease_token = $1", &[&thief]).await.unwrap();
    timeout(PATIENCE, held.cancelled.cancelled()).await.unwrap();
    worker.until(|totals| totals.lost == 1).await;
    bench.await_messages((0, 0)).await;
    let row =
        bench.client.query_one("SELECT lease_token, attempts::int FROM runherd.active_chunks", &[]).await.unwrap();
    assert_eq!((row.get::<_, Uuid>(0), row.get::<_, i32>(1)), (thief, 0));
    assert_eq!(worker.end().await.lost, 1);
    assert_eq!(bench.chunks().await[0].0, "open");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_lets_work_end_and_releases_the_rest() {
    let bench = Bench::new("a_drain_lets_work_end_and_releases_the_rest").await;
    let run = bench.seed(&vec![order("hold"); 6], &Policy { chunks_per_event: 3, ..policy() }).await;
    bench.hand_out(run, 0, 6).await;
    bench.publish().await;
    let (handler, mut seen, hold) = Obedient::new();
    let worker = Running::start(bench.builder().concurrency(2).batch(2).grace(Duration::from_secs(2)), handler);
    for _ in 0..2 {
        timeout(PATIENCE, seen.recv()).await.unwrap().unwrap();
    }
    worker.until(|totals| totals.leased == 4).await;
    worker.drain.cancel();
    // The two that waited for a slot are given back at once.
    worker.until(|totals| totals.released == 2).await;
    hold.add_permits(1);
    let totals = worker.end().await;
    assert_eq!((totals.leased, totals.succeeded, totals.released), (4, 2, 2), "a permit serves one after the other");
    assert!(seen.try_recv().is_err(), "nothing began after the drain");
    // The second message went back: two of its chunks were never leased.
    bench.await_messages((1, 0)).await;
    let row = "SELECT count(*) FILTER (WHERE lease_token IS NULL), sum(releases)::bigint FROM runherd.active_chunks";
    let row = bench.client.query_one(row, &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (4, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_outlasts_the_grace_is_cancelled_and_released() {
    let bench = Bench::new("a_handler_that_outlasts_the_grace_is_cancelled_and_released").await;
    let run = bench.seed(&[order("hold")], &policy()).await;
    bench.hand_out(run, 0, 1).await;
    bench.publish().await;
    let (handler, mut seen, _hold) = Obedient::new();
    let worker = Running::start(bench.builder().grace(Duration::ZERO), handler);
    let chunk = timeout(PATIENCE, seen.recv()).await.unwrap().unwrap();
    let totals = worker.end().await;
    assert!(chunk.cancelled.is_cancelled());
    assert_eq!((totals.released, totals.retried), (1, 0));
    bench.await_messages((0, 0)).await;
    // It is announced again under a new generation, with no attempt charged.
    bench.publish().await;
    bench.await_messages((1, 0)).await;
    let row = "SELECT generation, attempts::int FROM runherd.active_chunks WHERE lease_token IS NULL";
    let row = bench.client.query_one(row, &[]).await.unwrap();
    assert_eq!((row.get::<_, i32>(0), row.get::<_, i32>(1)), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outages_lose_nothing() {
    const PART: i64 = 1000;
    let bench = Bench::new("outages_lose_nothing").await;
    let rabbit = bench.herd.world.rabbit();
    let mut known = rabbit.until_connected().await;
    let run = bench.seed(&vec![order("succeed"); 4 * PART as usize], &Policy { window: 10_000, ..policy() }).await;
    let (handler, _seen, _hold) = Obedient::new();
    let worker = Running::start(bench.builder().concurrency(4).batch(16), handler);
    for part in 0..4 {
        let connection = if part % 2 == 0 { None } else { Some(rabbit.fresh_connection(&mut known).await) };
        bench.hand_out(run, part * PART, PART).await;
        bench.publish().await;
        // In the middle of its work. (What an outage left without an answer may be missing in the totals.)
        let chunks = bench.succeeded(part * PART + 100).await;
        assert!(chunks < (part + 1) * PART, "{chunks} chunks: the part was over before the outage");
        match connection {
            Some(connection) => assert!(rabbit.close_connection(&connection).await),
            None => bench.terminate_others().await,
        }
        bench.succeeded((part + 1) * PART).await;
    }
    worker.end().await;
    bench.await_messages((0, 0)).await;
    assert_eq!(bench.herd.number("SELECT count(*) FROM runherd.active_chunks").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_that_comes_twice_has_one_effect_and_strangers_go_back() {
    let bench = Bench::new("an_event_that_comes_twice_has_one_effect_and_strangers_go_back").await;
    let run = bench.seed(&[order("succeed"), order("hold")], &policy()).await;
    bench.hand_out(run, 0, 2).await;
    let body = |placement: &str, chunk_no: i64| {
        json!({ "placement": placement, "run_id": run, "run_shard": 0, "first_chunk_no": chunk_no,
            "last_chunk_no": chunk_no, "generation": 0 })
        .to_string()
        .into_bytes()
    };
    let messages = vec![
        message(1, "a".to_owned(), body("control", 0)),
        message(2, "b".to_owned(), body("control", 0)),
        message(3, "c".to_owned(), body("control", 1)),
        message(4, "d".to_owned(), body("control", 1)),
        message(5, "e".to_owned(), body("control", 99)),
        message(6, "f".to_owned(), b"nonsense".to_vec()),
        message(7, "g".to_owned(), body("elsewhere", 0)),
    ];
    let outcomes = bench.publisher.publish(messages).await;
    assert!(outcomes.iter().all(|outcome| *outcome == PublishOutcome::Confirmed));
    let (handler, mut seen, hold) = Obedient::new();
    let worker = Running::start(bench.builder().concurrency(8), handler);
    for _ in 0..2 {
        timeout(PATIENCE, seen.recv()).await.unwrap().unwrap();
    }
    hold.add_permits(1);
    worker.until(|totals| totals.succeeded == 2).await;
    let totals = worker.end().await;
    assert_eq!(totals.leased, 2);
    bench.await_messages((1, 0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_work_on_chunks_and_are_stopped_by_a_drain() {
    let bench = Bench::new("commands_work_on_chunks_and_are_stopped_by_a_drain").await;
    let run = bench.seed(&[json!("abc"), json!(3), json!({ "k": 1 }), json!("sleep")], &policy()).await;
    bench.hand_out(run, 0, 4).await;
    bench.publish().await;
    let script = r#"case "$RUNHERD_PAYLOAD" in
        '"sleep"') exec sleep 1000 ;;
        3) echo "bad: $RUNHERD_CHUNK_NO" >&2; exit 65 ;;
        '"abc"') printf %s "$RUNHERD_PAYLOAD_TEXT" ;;
        *) cat ;;
    esac"#;
    let command = ["sh", "-c", script].map(Into::into).to_vec();
    let handler = CommandHandler::new(command, CommandLimits::default()).unwrap();
    let worker = Running::start(bench.builder().concurrency(2).grace(Duration::from_millis(10)), handler);
    worker.until(|totals| totals.ended() == 3 && totals.leased == 4).await;
    let totals = worker.end().await;
    assert_eq!((totals.succeeded, totals.failed, totals.released), (2, 1, 1));
    let chunks = bench.chunks().await;
    assert_eq!(chunks[0].2.as_deref(), Some("\"abc\""));
    assert_eq!((chunks[1].0.as_str(), chunks[1].3.as_deref()), ("failed", Some("exit status: 65: bad: 1")));
    assert_eq!(chunks[2].2.as_deref(), Some("{\"k\":1}"));
    assert_eq!(chunks[3].0, "open");
}

#[tokio::test]
async fn every_write_may_be_made_again_with_its_token() {
    let bench = Bench::new("every_write_may_be_made_again_with_its_token").await;
    let payload = json!({ "b": 1, "a": [1.5] });
    let run = bench.seed(&[payload, json!(1), json!(2), json!(3)], &policy()).await;
    bench.hand_out(run, 0, 4).await;
    let (store, token, ttl) = (WorkerStore::new(bench.database()), LeaseToken::fresh(), Duration::from_secs(60));
    store.check().await.unwrap();
    let key = |chunk_no| ChunkKey { run_id: run, run_shard: 0, chunk_no };
    let lease = |chunk_no| LeaseKey { chunk: key(chunk_no), token };
    for _ in 0..2 {
        let answers = store.lease(&[key(0), key(1), key(0), key(7)], token, "w", ttl).await.unwrap();
        let answers: HashMap<ChunkKey, LeaseAnswer> = answers.into_iter().collect();
        assert_eq!(answers.len(), 3);
        let LeaseAnswer::Leased(leased) = &answers[&key(0)] else { panic!("{answers:?}") };
        assert_eq!((leased.attempt, leased.generation), (1, 0));
        assert!(leased.granted > ttl / 2 && leased.granted <= ttl, "{leased:?}");
        assert_eq!(answers[&key(7)], LeaseAnswer::Refused(LeaseRefusal::Unknown));
    }
    let stranger = store.lease(&[key(0)], LeaseToken::fresh(), "w2", ttl).await.unwrap();
    assert_eq!(stranger, [(key(0), LeaseAnswer::Refused(LeaseRefusal::Held))]);
    let outcome = "{\"x\" :  1.0}";
    for _ in 0..2 {
        let answers = store.complete(&[(lease(0), outcome)]).await.unwrap();
        assert_eq!(answers, [(key(0), EndAnswer::Done(Next::Succeeded))]);
    }
    let zombie = LeaseKey { token: LeaseToken::fresh(), ..lease(0) };
    assert_eq!(store.complete(&[(zombie, "1")]).await.unwrap(), [(key(0), EndAnswer::Lost)]);
    let again = store.lease(&[key(0)], token, "w", ttl).await.unwrap();
    assert_eq!(again, [(key(0), LeaseAnswer::Refused(LeaseRefusal::Finished))]);
    assert_eq!(store.release(&[lease(1)]).await.unwrap(), [(key(1), EndAnswer::Done(Next::Release))]);
    assert_eq!(store.release(&[lease(1)]).await.unwrap(), [(key(1), EndAnswer::Lost)]);
    assert_eq!(bench.chunks().await[0].2.as_deref(), Some(outcome));
    assert!(store.complete(&[(lease(2), "no json")]).await.is_err());
}
