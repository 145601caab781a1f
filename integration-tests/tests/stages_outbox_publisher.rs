//! outbox_publisher between a real database and a real broker: what is committed is published, and the ledger says so only
//! when the broker said so.
#![allow(clippy::unwrap_used, reason = "what is unexpected in a test fails it")]

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use runherd::broker::outbox_publisher::BrokerPort;
use runherd_actors::model::ClaimToken;
use runherd_actors::stages::outbox_publisher::{
    FailedDelivery, Message, OUTBOX_SHARDS, OutboxPort, PublishOutcome, PublishPort, Settled, Settlement,
};
use runherd_integration_tests::rabbit::{Message as Received, Take};
use runherd_integration_tests::stagehand::client::{Part, parts};
use runherd_integration_tests::stagehand::{Sql, Stagehand, tick};
use runherd_integration_tests::until;
use serde_json::{Value, json};
use tokio::task::JoinSet;

const LIMIT: Duration = Duration::from_secs(60);
const CHUNKS: &str = "runherd.chunks.q";

/// Commits an event of outbox shard 0, as a state change does; its id.
async fn emit(sql: &Sql, exchange: &str, key: &str, body: &str) -> i64 {
    let insert = "WITH event AS (
            INSERT INTO runherd.outbox_events (outbox_shard, event_id, dedupe_key, kind, exchange, routing_key, headers, payload)
            SELECT 0, id, 'test/' || id, 'test', $1, $2, '{\"cause\":\"test\",\"generation\":7}', $3::text::json
            FROM nextval('runherd.outbox_event_id') AS id RETURNING event_id)
        INSERT INTO runherd.outbox_delivery_queue (outbox_shard, event_id) SELECT 0, event_id FROM event RETURNING event_id";
    sql.value(insert, &[&exchange, &key, &body]).await
}

/// An event and its delivery: (status, attempts, last error, parked in the queue); no attempts where no delivery is left.
async fn event(sql: &Sql, id: i64) -> (String, Option<i32>, String, bool) {
    let select =
        "SELECT e.status, q.attempts, COALESCE(q.last_error, ''), q.parked_at IS NOT NULL FROM runherd.outbox_events e
        LEFT JOIN runherd.outbox_delivery_queue q USING (outbox_shard, event_id) WHERE e.event_id = $1";
    let row = sql.rows(select, &[&id]).await.remove(0);
    (row.get(0), row.get(1), row.get(2), row.get(3))
}

fn published() -> (String, Option<i32>, String, bool) {
    ("published".to_owned(), None, String::new(), false)
}

async fn waiting(sql: &Sql) -> i64 {
    sql.value("SELECT count(*) FROM runherd.outbox_delivery_queue", &[]).await
}

/// Lets what was pushed back come due.
async fn due_now(sql: &Sql) {
    sql.run("UPDATE runherd.outbox_delivery_queue SET available_at = now() WHERE available_at > now()", &[]).await;
}

/// Every message in a queue, once `count` have arrived.
async fn received(hand: &Stagehand, queue: &str, count: usize) -> Vec<Received> {
    let rabbit = hand.world.rabbit();
    let mut all = Vec::new();
    until(format!("{count} messages in {queue}"), LIMIT, async || {
        all.extend(rabbit.get(queue, 1_000, Take::Remove).await);
        (all.len() >= count).then_some(())
    })
    .await;
    all
}

fn ids(messages: &[Received]) -> Vec<String> {
    messages.iter().map(|message| message.properties["message_id"].as_str().unwrap().to_owned()).collect()
}

/// A broker that answers everything with one outcome.
struct Always(PublishOutcome);

#[async_trait]
impl PublishPort for Always {
    async fn publish(&self, batch: Vec<Message>) -> Vec<PublishOutcome> {
        batch.iter().map(|_| self.0.clone()).collect()
    }

    fn blocked(&self) -> Option<String> {
        None
    }
}

#[tokio::test]
async fn committed_events_reach_their_queues_and_the_ledger_says_so() {
    let hand = Stagehand::with_two_placements("committed_events_reach", &[]).await;
    let run = hand.submit_split(json!({"queue": "q", "shards": 4}), &parts(4, 25)).await;
    tick(&mut hand.creation_recovery()).await;
    hand.dispatch().await;
    let mut reported = 0;
    for placement in hand.placements.keys() {
        let mut publisher = hand.outbox_publisher(*placement, hand.broker().await, 0);
        reported += tick(&mut publisher).await.counted("published");
        assert_eq!(tick(&mut publisher).await.counts, []);
    }
    assert_eq!(reported, 102);
    let proven = "SELECT count(*) FROM runherd.outbox_events WHERE status = 'published' AND proof = 'confirmed' AND published_at <= now()";
    assert_eq!(hand.sum(proven, &[]).await, 102);
    hand.assert_invariants().await;

    let (chunks, events) = (received(&hand, CHUNKS, 100).await, received(&hand, "runherd.events", 2).await);
    let mut keys = BTreeSet::new();
    for sql in hand.placements.values() {
        let ledger = "SELECT dedupe_key FROM runherd.outbox_events WHERE kind = 'chunk.ready'";
        keys.extend(sql.column::<String>(ledger, &[]).await);
    }
    assert_eq!((chunks.len(), ids(&chunks).into_iter().collect::<BTreeSet<_>>()), (100, keys));
    assert_eq!(ids(&events), [format!("run/{run}/pending"), format!("run/{run}/started")]);
}

#[tokio::test]
async fn a_message_carries_what_the_ledger_holds() {
    let hand = Stagehand::new("a_message_carries", &[]).await;
    let sql = hand.only();
    hand.world.rabbit().declare_queue("mine", json!({})).await;
    let body = r#"{"b" : 1,  "a":"é😀\u00e9", "b":2,"n":1.50e3 }"#;
    let broker = hand.broker().await;
    hand.world.rabbit().bind("runherd", "mine", "run.test").await;
    let id = emit(sql, "runherd", "run.test", body).await;
    assert_eq!(tick(&mut hand.outbox_publisher(hand.control_id(), broker, 0)).await.counts, [("published", 1)]);
    let message = received(&hand, "mine", 1).await.remove(0);
    assert_eq!((message.payload.as_str(), message.routing_key.as_str()), (body, "run.test"));
    let created = "SELECT extract(epoch FROM created_at)::bigint FROM runherd.outbox_events WHERE event_id = $1";
    let created: i64 = sql.value(created, &[&id]).await;
    let expected = json!({
        "message_id": format!("test/{id}"), "delivery_mode": 2, "type": "test", "app_id": "runherd",
        "content_type": "application/json", "timestamp": created, "headers": {"cause": "test", "generation": 7},
    });
    assert_eq!(message.properties, expected);
}

#[tokio::test]
async fn an_event_that_finds_no_queue_is_tried_ever_more_rarely_and_parked() {
    let settings = [
        ("outbox_publisher.max_attempts", "3"),
        ("outbox_publisher.retry_delay_min", "1m"),
        ("outbox_publisher.parked_delay", "2h"),
    ];
    let hand = Stagehand::new("an_event_that_finds_no_queue", &settings).await;
    let (sql, id) = (hand.only(), emit(hand.only(), "runherd", "nobody.listens", "{}").await);
    let mut publisher = hand.outbox_publisher(hand.control_id(), hand.broker().await, 0);
    let pushed_back = async |least: &str, most: &str| {
        let within =
            "SELECT available_at - now() BETWEEN $1::text::interval AND $2::text::interval AND claimed_until = 'epoch'
            FROM runherd.outbox_delivery_queue";
        assert!(sql.value::<bool>(within, &[&least, &most]).await, "between {least} and {most}");
        hand.assert_invariants().await;
    };
    let error = "returned: 312 NO_ROUTE".to_owned();
    assert_eq!(tick(&mut publisher).await.counts, [("pushed_back", 1)]);
    assert_eq!(event(sql, id).await, ("pending".into(), Some(1), error.clone(), false));
    pushed_back("20 s", "60 s").await;
    // Until it is due, it is left alone.
    assert_eq!(tick(&mut hand.outbox_publisher(hand.control_id(), hand.broker().await, 1)).await.counts, []);
    due_now(sql).await;
    tick(&mut hand.outbox_publisher(hand.control_id(), hand.broker().await, 1)).await;
    pushed_back("50 s", "120 s").await;
    due_now(sql).await;
    let report = tick(&mut hand.outbox_publisher(hand.control_id(), hand.broker().await, 1)).await;
    assert_eq!(report.counts, [("pushed_back", 1), ("parked", 1)]);
    assert_eq!(event(sql, id).await, ("parked".into(), Some(3), error.clone(), true));
    pushed_back("110 min", "120 min").await;
    // It stays parked, and is neither forgotten nor counted as parked again.
    due_now(sql).await;
    let report = tick(&mut hand.outbox_publisher(hand.control_id(), hand.broker().await, 1)).await;
    assert_eq!(report.counts, [("pushed_back", 1)]);
    assert_eq!(event(sql, id).await, ("parked".into(), Some(4), error, true));
    pushed_back("110 min", "120 min").await;
}

#[tokio::test]
async fn parked_events_are_published_by_themselves_once_their_queue_is_bound_again() {
    let settings = [
        ("outbox_publisher.max_attempts", "2"),
        ("outbox_publisher.retry_delay_min", "10ms"),
        ("outbox_publisher.retry_delay_max", "10ms"),
        ("outbox_publisher.parked_delay", "100ms"),
    ];
    let hand = Stagehand::new("parked_events_are_published", &settings).await;
    let (sql, rabbit) = (hand.only(), hand.world.rabbit());
    rabbit.declare_queue("mine", json!({})).await;
    for _ in 0..5 {
        emit(sql, "runherd", "mine.test", "{}").await;
    }
    let mut publisher = hand.outbox_publisher(hand.control_id(), hand.broker().await, 0);
    until("the events to be parked", LIMIT, async || {
        tick(&mut publisher).await;
        let parked = "SELECT count(*) FROM runherd.outbox_events WHERE status = 'parked' AND proof IS NULL";
        (sql.value::<i64>(parked, &[]).await == 5).then_some(())
    })
    .await;
    hand.assert_invariants().await;
    rabbit.bind("runherd", "mine", "mine.test").await;
    until("the outbox to be empty", LIMIT, async || {
        tick(&mut publisher).await;
        (waiting(sql).await == 0).then_some(())
    })
    .await;
    hand.assert_invariants().await;
    assert_eq!(ids(&received(&hand, "mine", 5).await).into_iter().collect::<BTreeSet<_>>().len(), 5);
}

#[tokio::test]
async fn a_queue_that_lost_its_binding_gets_it_back_with_the_next_attempt() {
    let hand = Stagehand::new("a_queue_that_lost_its_binding", &[("outbox_publisher.retry_delay_min", "10ms")]).await;
    let run = hand.dispatched(json!({"queue": "q", "shards": 1, "policy": {"window": 1}}), &parts(1, 6)).await;
    let (sql, rabbit) = (hand.only(), hand.world.rabbit());
    let mut publisher = hand.outbox_publisher(hand.control_id(), hand.broker().await, 0);
    assert_eq!(tick(&mut publisher).await.counts, [("published", 3)]);
    rabbit.delete_binding("runherd", CHUNKS, "chunk.ready.q").await;
    sql.run("UPDATE runherd.run_guards SET dispatch_window = 10 WHERE run_id = $1", &[&run.0]).await;
    hand.dispatch().await;
    assert_eq!(tick(&mut publisher).await.counts, [("pushed_back", 5)]);
    let published = "SELECT count(*) FROM runherd.outbox_events WHERE kind = 'chunk.ready' AND status = 'published'";
    assert_eq!(sql.value::<i64>(published, &[]).await, 1, "a returned event is never marked published");
    until("the outbox to be empty", LIMIT, async || {
        tick(&mut publisher).await;
        (waiting(sql).await == 0).then_some(())
    })
    .await;
    hand.assert_invariants().await;
    assert_eq!(ids(&received(&hand, CHUNKS, 6).await).into_iter().collect::<BTreeSet<_>>().len(), 6);
}

#[tokio::test]
async fn a_broker_that_is_away_costs_no_attempt() {
    let hand = Stagehand::new("a_broker_that_is_away", &[]).await;
    let (sql, control) = (hand.only(), hand.control_id());
    hand.dispatched(json!({"queue": "q", "shards": 3}), &parts(3, 10)).await;
    let untouched = async || {
        let touched = "SELECT count(*) FROM runherd.outbox_delivery_queue
            WHERE attempts > 0 OR last_error IS NOT NULL OR claimed_until > now() OR available_at > now()";
        assert_eq!((sql.value::<i64>(touched, &[]).await, waiting(sql).await), (0, 32));
        hand.assert_invariants().await;
    };
    // Nobody listens at that port.
    let away = hand.broker_at("amqp://guest:guest@127.0.0.1:1/v");
    let mut state = away.state();
    let refused = state.wait_for(|state| format!("{state:?}").contains("refused"));
    tokio::time::timeout(LIMIT, refused).await.unwrap().unwrap();
    let log = runherd::broker::silent();
    let report = tick(&mut hand.outbox_publisher(control, BrokerPort::new(away, log), 0)).await;
    assert_eq!(report.counts, []);
    assert!(report.blocked_by[0].contains("broker") && report.due_in.is_some(), "{report:?}");
    untouched().await;
    // It went away when the batch was claimed already, or without a word about it.
    for outcome in [PublishOutcome::NotSent("gone".to_owned()), PublishOutcome::Unknown("silence".to_owned())] {
        let report = tick(&mut hand.outbox_publisher(control, Always(outcome), 0)).await;
        assert_eq!(report.counts, [("again", 32)]);
        assert!(report.blocked_by[0].contains("broker"), "{report:?}");
        untouched().await;
    }
    let report = tick(&mut hand.outbox_publisher(control, hand.broker().await, 0)).await;
    assert_eq!((report.counts, waiting(sql).await), (vec![("published", 32)], 0));
}

#[tokio::test]
async fn a_full_queue_and_what_amqp_cannot_carry_cost_an_attempt_each() {
    let hand = Stagehand::new("a_full_queue", &[]).await;
    let (sql, rabbit) = (hand.only(), hand.world.rabbit());
    let broker = hand.broker().await;
    rabbit.declare_queue("full", json!({"x-max-length": 1, "x-overflow": "reject-publish"})).await;
    rabbit.bind("runherd", "full", "to.full").await;
    let mut events = Vec::new();
    for key in ["to.full", "to.full", "to.nobody"] {
        events.push(emit(sql, "runherd", key, "{}").await);
    }
    sql.run("UPDATE runherd.outbox_events SET headers = '{\"flag\": true}' WHERE event_id = $1", &[&events[2]]).await;
    let report = tick(&mut hand.outbox_publisher(hand.control_id(), broker, 0)).await;
    assert_eq!(report.counts, [("published", 1), ("pushed_back", 2)]);
    assert_eq!(event(sql, events[0]).await, published());
    assert_eq!(event(sql, events[1]).await, ("pending".into(), Some(1), "nacked".into(), false));
    let refused = event(sql, events[2]).await;
    assert!(refused.1 == Some(1) && refused.2.contains("flag"), "{refused:?}");
    hand.assert_invariants().await;
}

#[tokio::test]
async fn a_poisonous_event_pays_alone() {
    let hand = Stagehand::new("a_poisonous_event", &[("outbox_publisher.retry_delay_min", "1m")]).await;
    let sql = hand.only();
    let mut good = Vec::new();
    let mut poison = 0;
    for number in 0..21 {
        // The broker closes the channel on an exchange that it does not know.
        match number {
            10 => poison = emit(sql, "no-such-exchange", "chunk.ready.q", "{}").await,
            _ => good.push(emit(sql, "runherd", "chunk.ready.q", "{}").await),
        }
    }
    let mut publisher = hand.outbox_publisher(hand.control_id(), hand.broker().await, 0);
    until("the others to be published", LIMIT, async || {
        tick(&mut publisher).await;
        let charged = "SELECT count(*) FROM runherd.outbox_delivery_queue WHERE attempts > 0 AND event_id <> $1";
        assert_eq!(sql.value::<i64>(charged, &[&poison]).await, 0);
        (waiting(sql).await == 1).then_some(())
    })
    .await;
    for id in &good {
        assert_eq!(event(sql, *id).await, published());
    }
    let (status, attempts, error, _) = event(sql, poison).await;
    assert_eq!((status.as_str(), attempts), ("pending", Some(1)));
    assert!(error.contains("no-such-exchange"), "{error}");
    hand.assert_invariants().await;
    // What came twice came under the same id.
    let arrived: BTreeSet<String> = ids(&received(&hand, CHUNKS, 20).await).into_iter().collect();
    assert_eq!(arrived, good.iter().map(|id| format!("test/{id}")).collect());
}

#[tokio::test]
async fn what_a_dead_publisher_claimed_is_published_by_another() {
    let hand = Stagehand::new("what_a_dead_publisher_claimed", &[]).await;
    let (sql, control) = (hand.only(), hand.control_id());
    let mut events = Vec::new();
    for _ in 0..6 {
        events.push(emit(sql, "runherd", "chunk.ready.q", "{}").await);
    }
    let (port, zombie, other) = (hand.outbox_port(control), ClaimToken::fresh(), ClaimToken::fresh());
    let claimed = async |token| -> Vec<i64> {
        port.claim(0, 0, 10, token).await.unwrap().iter().map(|claimed| claimed.message.event_id).collect()
    };
    assert_eq!((claimed(zombie).await, claimed(other).await), (events.clone(), vec![]));
    assert_eq!(tick(&mut hand.outbox_publisher(control, hand.broker().await, 0)).await.counts, []);
    let expire = "UPDATE runherd.outbox_delivery_queue SET claimed_until = now() - interval '1 s'";
    sql.run(expire, &[]).await;

    // Its settlement comes late: another one holds the events, and later they are published.
    let failed = |event_id: i64| FailedDelivery { event_id, error: "late".to_owned(), delay: Duration::from_secs(60) };
    let late = Settlement {
        confirmed: events[..2].to_vec(),
        failed: events[2..4].iter().map(|id| failed(*id)).collect(),
        again: events[4..].to_vec(),
    };
    assert_eq!(claimed(other).await, events);
    assert_eq!(port.settle(0, zombie, &late).await.unwrap(), Settled::default());
    let held = "SELECT count(*) FROM runherd.outbox_delivery_queue WHERE claim_token = $1 AND claimed_until > now() AND attempts = 0";
    assert_eq!(sql.value::<i64>(held, &[&other.0]).await, 6);
    hand.assert_invariants().await;
    sql.run(expire, &[]).await;
    let report = tick(&mut hand.outbox_publisher(control, hand.broker().await, 0)).await;
    assert_eq!((report.counts, waiting(sql).await), (vec![("published", 6)], 0));
    assert_eq!(port.settle(0, zombie, &late).await.unwrap(), Settled::default());
    for id in events {
        assert_eq!(event(sql, id).await, published());
    }
    hand.assert_invariants().await;
}

#[tokio::test]
async fn deliveries_that_somebody_holds_locked_are_passed_over_without_waiting() {
    let hand = Stagehand::new("deliveries_that_are_locked", &[]).await;
    let (sql, control) = (hand.only(), hand.control_id());
    let (locked, free) =
        (emit(sql, "runherd", "chunk.ready.q", "{}").await, emit(sql, "runherd", "chunk.ready.q", "{}").await);
    let other = hand.another().await;
    other.run("BEGIN", &[]).await;
    other.rows("SELECT 1 FROM runherd.outbox_delivery_queue WHERE event_id = $1 FOR UPDATE", &[&locked]).await;
    // Waiting would end in an error of the cycle.
    assert_eq!(tick(&mut hand.outbox_publisher(control, hand.broker().await, 0)).await.counts, [("published", 1)]);
    assert_eq!(event(sql, free).await, published());
    other.run("COMMIT", &[]).await;
    assert_eq!(tick(&mut hand.outbox_publisher(control, hand.broker().await, 0)).await.counts, [("published", 1)]);
    assert_eq!(event(sql, locked).await, published());
}

#[tokio::test]
async fn publishers_at_the_same_time_settle_every_event_once() {
    let hand = Stagehand::new("publishers_at_the_same_time", &[("outbox_publisher.batch", "20")]).await;
    hand.dispatched(json!({"queue": "q", "shards": 8}), &vec![Part::of(100); 8]).await;
    let mut publishing = JoinSet::new();
    for instance in 0..3 {
        let mut publisher = hand.outbox_publisher(hand.control_id(), hand.broker().await, instance);
        publishing.spawn(async move {
            let mut published = 0;
            loop {
                let report = tick(&mut publisher).await;
                assert_eq!((report.counted("again"), report.counted("pushed_back")), (0, 0));
                published += report.counted("published");
                if !report.more && !report.did_something() {
                    return published;
                }
            }
        });
    }
    let published: u64 = publishing.join_all().await.into_iter().sum();
    assert_eq!((published, waiting(hand.only()).await), (802, 0));
    let messages = ids(&received(&hand, CHUNKS, 800).await);
    assert_eq!((messages.len(), messages.iter().collect::<BTreeSet<_>>().len()), (800, 800));
    hand.assert_invariants().await;
}

#[tokio::test]
async fn an_event_that_commits_behind_the_others_is_not_passed_over() {
    let hand = Stagehand::new("an_event_that_commits_behind", &[]).await;
    let sql = hand.only();
    let early = emit(sql, "runherd", "chunk.ready.q", "{}").await;
    // A transaction that took its number first and is still open.
    let slow = "WITH q AS (DELETE FROM runherd.outbox_delivery_queue WHERE event_id = $1)
        DELETE FROM runherd.outbox_events WHERE event_id = $1";
    sql.run(slow, &[&early]).await;
    emit(sql, "runherd", "chunk.ready.q", "{}").await;
    let mut publisher = hand.outbox_publisher(hand.control_id(), hand.broker().await, 0);
    assert_eq!(tick(&mut publisher).await.counts, [("published", 1)]);
    sql.run("SELECT setval('runherd.outbox_event_id', $1, false)", &[&early]).await;
    assert_eq!(emit(sql, "runherd", "chunk.ready.q", "{}").await, early);
    until("the event to be published", LIMIT, async || {
        tick(&mut publisher).await;
        (event(sql, early).await == published()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_announcement_that_is_repeated_keeps_its_message_id() {
    let hand = Stagehand::new("an_announcement_that_is_repeated", &[]).await;
    let run = hand.dispatched(json!({"queue": "q", "shards": 1}), &parts(1, 1)).await;
    let (sql, control) = (hand.only(), hand.control_id());
    let mut publisher = hand.outbox_publisher(control, hand.broker().await, 0);
    tick(&mut publisher).await;
    sql.run("UPDATE runherd.outbox_events SET published_at = now() - interval '1 d'", &[]).await;
    sql.run("UPDATE runherd.active_chunks SET ready_at = now() - interval '1 d'", &[]).await;
    assert_eq!(tick(&mut hand.lease_recovery()).await.counts, [("redelivered", 1)]);
    assert_eq!(tick(&mut hand.outbox_publisher(control, hand.broker().await, 0)).await.counts, [("published", 1)]);
    let key = format!("chunk-ready/{run}/0/0-0/0");
    let messages = received(&hand, CHUNKS, 2).await;
    assert_eq!(ids(&messages), [key.clone(), key]);
    let bodies: Vec<Value> = messages.iter().map(|message| serde_json::from_str(&message.payload).unwrap()).collect();
    assert_eq!(bodies[0], bodies[1]);
    hand.assert_invariants().await;
}

#[tokio::test]
async fn every_outbox_shard_is_visited() {
    let hand = Stagehand::new("every_outbox_shard", &[]).await;
    hand.dispatched(json!({"queue": "q", "shards": 8}), &parts(8, 1)).await;
    let shards = "SELECT count(DISTINCT outbox_shard) FROM runherd.outbox_events WHERE kind = 'chunk.ready'";
    assert_eq!(hand.control.value::<i64>(shards, &[]).await, i64::from(OUTBOX_SHARDS));
    // Whichever shard it begins with.
    let report = tick(&mut hand.outbox_publisher(hand.control_id(), hand.broker().await, 5)).await;
    assert_eq!((report.counts, waiting(hand.only()).await), (vec![("published", 10)], 0));
}
