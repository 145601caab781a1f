//! The worker against real PostgreSQL and RabbitMQ: what it takes, commits, acknowledges, loses and gives back.
//!
//! The servers are at `RUNHERD_TEST_PG_URL` and `RUNHERD_TEST_AMQP_URL`, and `rabbitmqctl` must be allowed to manage the broker:
//! every test has a database and a vhost of its own.

// The lint's own exception for tests stops at the helpers they share.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::env;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use runherd::broker::topology::{EXCHANGE, chunk_queue, chunk_ready_key};
use runherd::broker::{BrokerSettings, BrokerState, BrokerUrl, Publisher, QueueType, silent};
use runherd::policy::Policy;
use runherd::store::worker::{EndAnswer, LeaseAnswer, LeaseKey, LeaseRefusal, Next, WorkerStore};
use runherd::store::{Database, SessionSettings};
use runherd::worker::command::{CommandHandler, CommandLimits};
use runherd::worker::{Builder, Chunk, ChunkError, Handler, Outcome, Progress, Totals, Worker, WorkerError};
use runherd_actors::model::{ChunkKey, LeaseToken, RunId};
use runherd_actors::stages::outbox_publisher::{Message, PublishOutcome};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::{Client, NoTls};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const QUEUE: &str = "q";

const HAND_OUT: &str = include_str!("../../sql/queries/shard_dispatcher/hand_out.sql");

/// A fresh database that is control database and placement, and a fresh vhost; both are removed at the end.
struct World {
    name: String,
    pg_url: String,
    amqp_url: String,
    client: Client,
    publisher: Publisher,
}

impl World {
    async fn new() -> Self {
        let name = format!("worker_test_{}", Uuid::new_v4().simple());
        let base =
            env::var("RUNHERD_TEST_PG_URL").unwrap_or("postgresql://postgres@127.0.0.1:5432/postgres".to_owned());
        connect(&base).await.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        let pg_url = with_path(&base, &name);
        runherd::store::migrate::migrate(&[("control".to_owned(), pg_url.parse().unwrap())], false).await.unwrap();
        let base = env::var("RUNHERD_TEST_AMQP_URL").unwrap_or("amqp://guest:guest@127.0.0.1:5672/%2f".to_owned());
        let amqp_url = with_path(&base, &name);
        let user = base.parse::<BrokerUrl>().unwrap().user().to_owned();
        rabbitmqctl(&["add_vhost", &name]).await;
        rabbitmqctl(&["set_permissions", "-p", &name, &user, ".*", ".*", ".*"]).await;
        let publisher = Publisher::start(settings(&amqp_url), "test", &silent());
        timeout(PATIENCE, publisher.state().wait_for(|state| *state == BrokerState::Connected)).await.unwrap().unwrap();
        publisher.declare_queues(vec![QUEUE.to_owned()]).await.unwrap();
        Self { client: connect(&pg_url).await, name, pg_url, amqp_url, publisher }
    }

    fn database(&self) -> Database {
        let session = SessionSettings {
            pool_size: 8,
            acquire_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(20),
            lock_timeout: Duration::from_secs(5),
            idle_in_transaction_session_timeout: Duration::from_secs(15),
            tcp_user_timeout: Duration::from_secs(15),
            fixed_plans: false,
        };
        Database::new("control", self.pg_url.parse().unwrap(), &session, None).unwrap()
    }

    fn store(&self) -> WorkerStore {
        WorkerStore::new(self.database())
    }

    fn builder(&self) -> Builder {
        Worker::builder(settings(&self.amqp_url), QUEUE).placement(self.database())
    }

    /// Submits a run of one shard with these payloads, and seeds it.
    async fn seed(&self, payloads: &[Value], policy: &Policy) -> RunId {
        let header = json!({ "queue": QUEUE, "shards": 1, "policy": policy.to_json() });
        let chunks = Value::from(payloads);
        let row = self
            .client
            .query_one(
                "SELECT runherd.submit_run($1::text::jsonb, $2::text::json)",
                &[&header.to_string(), &chunks.to_string()],
            )
            .await
            .unwrap();
        let run_id: Uuid = row.get(0);
        self.client
            .execute(
                "SELECT runherd.seed_part(s.run_id, s.run_shard, s.part_no, s.first_chunk_no, s.chunk_count, s.body, $2, $3::text::jsonb)
                 FROM (SELECT * FROM runherd.run_seeds WHERE run_id = $1 ORDER BY part_no) s",
                &[&run_id, &QUEUE, &policy.to_json().to_string()],
            )
            .await
            .unwrap();
        RunId(run_id)
    }

    /// Hands chunks of the run's one shard out, from this position.
    async fn hand_out(&self, run: RunId, from: i64, count: i64) {
        let rows = self.client.query(HAND_OUT, &[&run.0, &0_i32, &from, &count]).await.unwrap();
        assert_eq!(rows.len(), 1, "handed out");
    }

    /// Publishes what is in the outbox, due or not.
    async fn publish(&self) {
        let rows = self
            .client
            .query(
                "DELETE FROM runherd.outbox_delivery_queue q USING runherd.outbox_events e
                 WHERE q.event_id = e.event_id AND q.outbox_shard = e.outbox_shard AND e.kind = 'chunk.ready'
                 RETURNING e.event_id, e.dedupe_key, e.payload::text",
                &[],
            )
            .await
            .unwrap();
        let message = |row: &tokio_postgres::Row| message(row.get(0), row.get(1), row.get::<_, String>(2).into_bytes());
        for batch in rows.chunks(1000) {
            let outcomes = self.publisher.publish(batch.iter().map(message).collect()).await;
            assert!(outcomes.iter().all(|outcome| *outcome == PublishOutcome::Confirmed), "{outcomes:?}");
        }
    }

    /// Makes handed-out chunks due at once, so that no test waits for a delay.
    async fn make_due(&self) {
        self.client.execute("UPDATE runherd.active_chunks SET ready_at = now()", &[]).await.unwrap();
    }

    /// (status, attempts, outcome, error) of each chunk, in order.
    async fn chunks(&self) -> Vec<(String, i32, Option<String>, Option<String>)> {
        let rows = self
            .client
            .query("SELECT status, attempts::int, outcome::text, error FROM runherd.chunks ORDER BY chunk_no", &[])
            .await
            .unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1), row.get(2), row.get(3))).collect()
    }

    /// (ready, unacknowledged) messages in the queue: waits until they are these.
    async fn await_messages(&self, wanted: (u64, u64)) {
        let mut last = (u64::MAX, 0);
        let reached = timeout(PATIENCE, async {
            while last != wanted {
                let columns = ["name", "messages_ready", "messages_unacknowledged"];
                let mut arguments = vec!["list_queues", "-q", "-p", &self.name, "--formatter", "json"];
                arguments.extend(columns);
                let queues: Vec<HashMap<String, Value>> = serde_json::from_str(&rabbitmqctl(&arguments).await).unwrap();
                let queue = queues.into_iter().find(|queue| queue["name"] == chunk_queue(QUEUE)).unwrap();
                last = (queue[columns[1]].as_u64().unwrap(), queue[columns[2]].as_u64().unwrap());
            }
        });
        assert!(reached.await.is_ok(), "{last:?} instead of {wanted:?}");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let base = self.pg_url.replace(&self.name, "postgres");
        let _ = std::process::Command::new("rabbitmqctl").args(["delete_vhost", &self.name]).output();
        let drop = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        let _ = std::process::Command::new("psql").args([&base, "-qc", &drop]).output();
    }
}

fn with_path(url: &str, path: &str) -> String {
    let (server, _) = url.rsplit_once('/').unwrap();
    format!("{server}/{path}")
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn rabbitmqctl(arguments: &[&str]) -> String {
    let output = Command::new("rabbitmqctl").args(arguments).output().await.unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn settings(url: &str) -> BrokerSettings {
    let mut settings = BrokerSettings::new(url.parse().unwrap());
    settings.topology.queue_type = QueueType::Classic;
    settings.reconnect_min = Duration::from_millis(20);
    settings.reconnect_max = Duration::from_millis(500);
    settings
}

fn message(event_id: i64, id: String, payload: Vec<u8>) -> Message {
    Message {
        event_id,
        dedupe_key: id,
        exchange: EXCHANGE.to_owned(),
        routing_key: chunk_ready_key(QUEUE),
        kind: "chunk.ready".to_owned(),
        created_at: 1_700_000_000,
        headers: serde_json::Map::new(),
        payload,
    }
}

fn policy() -> Policy {
    Policy { retry_delay: Duration::ZERO, retry_delay_max: Duration::ZERO, ..Policy::default() }
}

/// A worker that runs, and how to end it.
struct Running {
    drain: CancellationToken,
    progress: Arc<Progress>,
    task: JoinHandle<Result<Totals, WorkerError>>,
}

impl Running {
    fn start<H: Handler>(builder: Builder, handler: H) -> Self {
        let worker = builder.build(handler).unwrap();
        let drain = CancellationToken::new();
        let progress = worker.progress();
        Self { task: tokio::spawn(worker.run(drain.clone())), drain, progress }
    }

    async fn until(&self, reached: impl Fn(Totals) -> bool) {
        let waiting = async {
            while !reached(self.progress.totals()) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        assert!(timeout(PATIENCE, waiting).await.is_ok(), "{:?}", self.progress.totals());
    }

    async fn end(self) -> Totals {
        self.drain.cancel();
        timeout(PATIENCE, self.task).await.unwrap().unwrap().unwrap()
    }
}

/// Does what the payload says; what is `held` waits to be let go or cancelled.
struct Obedient {
    begun: mpsc::UnboundedSender<Chunk>,
    hold: Arc<tokio::sync::Semaphore>,
    attempts: Mutex<HashMap<ChunkKey, i32>>,
}

impl Obedient {
    fn new() -> (Self, mpsc::UnboundedReceiver<Chunk>, Arc<tokio::sync::Semaphore>) {
        let (begun, seen) = mpsc::unbounded_channel();
        let hold = Arc::new(tokio::sync::Semaphore::new(0));
        (Self { begun, hold: hold.clone(), attempts: Mutex::default() }, seen, hold)
    }
}

impl Handler for Obedient {
    async fn handle(&self, chunk: Chunk) -> Result<Outcome, ChunkError> {
        self.attempts.lock().unwrap().insert(chunk.key, chunk.attempt);
        let _ = self.begun.send(chunk.clone());
        let order: Value = chunk.payload_as()?;
        match order["do"].as_str().unwrap() {
            "succeed" => Ok(Outcome::from_json(&format!("{{\"n\" : {}}}", chunk.key.chunk_no))?),
            "fail" => Err(ChunkError::fatal("as ordered")),
            "fail once" if chunk.attempt == 1 => Err(ChunkError::retryable("the first time")),
            "fail once" => Ok(Outcome::of(&chunk.attempt)?),
            "panic" => panic!("as ordered"),
            "hold" => {
                tokio::select! {
                    _ = self.hold.acquire() => Ok(Outcome::null()),
                    () = chunk.cancelled.cancelled() => Err(ChunkError::retryable("cancelled")),
                }
            }
            other => panic!("{other}"),
        }
    }
}

fn order(what: &str) -> Value {
    json!({ "do": what })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_with_mixed_endings_is_acked_once_all_have_ended() {
    let world = World::new().await;
    let orders = ["succeed", "fail", "fail once", "panic", "hold", "succeed", "succeed", "succeed"].map(order);
    let run = world.seed(&orders, &Policy { chunks_per_event: 8, max_attempts: 2, ..policy() }).await;
    world.hand_out(run, 0, 8).await;
    world.publish().await;
    let (handler, mut seen, hold) = Obedient::new();
    // A batch smaller than the range: it is leased in pieces.
    let worker = Running::start(world.builder().concurrency(2).batch(2), handler);
    worker.until(|totals| totals.ended() == 7).await;
    world.await_messages((0, 1)).await;
    hold.add_permits(1);
    worker.until(|totals| totals.ended() == 8).await;
    world.await_messages((0, 0)).await;
    // The second attempts are announced one by one.
    world.make_due().await;
    world.publish().await;
    worker.until(|totals| totals.ended() == 10).await;
    let totals = worker.end().await;
    assert_eq!((totals.succeeded, totals.failed, totals.retried, totals.lost), (6, 2, 2, 0));
    world.await_messages((0, 0)).await;
    let chunks = world.chunks().await;
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
    let world = World::new().await;
    let run = world.seed(&[order("hold"), order("succeed")], &policy()).await;
    world.hand_out(run, 0, 2).await;
    world.publish().await;
    let (handler, mut seen, _hold) = Obedient::new();
    let worker = Running::start(world.builder().concurrency(2).lease_ttl(Duration::from_millis(600)), handler);
    worker.until(|totals| totals.succeeded == 1).await;
    let held = loop {
        let chunk = timeout(PATIENCE, seen.recv()).await.unwrap().unwrap();
        if chunk.key.chunk_no == 0 {
            break chunk;
        }
    };
    // The lease is renewed for longer than it lasts at once.
    let leased: String = "SELECT (expires_at > leased_at + interval '1 s')::text FROM runherd.active_chunks".to_owned();
    let renewed = async { while world.client.query_one(&leased, &[]).await.unwrap().get::<_, String>(0) != "true" {} };
    timeout(PATIENCE, renewed).await.unwrap();
    assert!(!held.cancelled.is_cancelled());
    // Somebody else has it now.
    let thief = Uuid::new_v4();
    world.client.execute("UPDATE runherd.active_chunks SET lease_token = $1", &[&thief]).await.unwrap();
    timeout(PATIENCE, held.cancelled.cancelled()).await.unwrap();
    worker.until(|totals| totals.lost == 1).await;
    world.await_messages((0, 0)).await;
    let row =
        world.client.query_one("SELECT lease_token, attempts::int FROM runherd.active_chunks", &[]).await.unwrap();
    assert_eq!((row.get::<_, Uuid>(0), row.get::<_, i32>(1)), (thief, 0));
    assert_eq!(worker.end().await.lost, 1);
    assert_eq!(world.chunks().await[0].0, "open");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_lets_work_end_and_releases_the_rest() {
    let world = World::new().await;
    let run = world.seed(&vec![order("hold"); 6], &Policy { chunks_per_event: 3, ..policy() }).await;
    world.hand_out(run, 0, 6).await;
    world.publish().await;
    let (handler, mut seen, hold) = Obedient::new();
    let worker = Running::start(world.builder().concurrency(2).batch(2).grace(Duration::from_secs(2)), handler);
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
    world.await_messages((1, 0)).await;
    let row = "SELECT count(*) FILTER (WHERE lease_token IS NULL), sum(releases)::bigint FROM runherd.active_chunks";
    let row = world.client.query_one(row, &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (4, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_outlasts_the_grace_is_cancelled_and_released() {
    let world = World::new().await;
    let run = world.seed(&[order("hold")], &policy()).await;
    world.hand_out(run, 0, 1).await;
    world.publish().await;
    let (handler, mut seen, _hold) = Obedient::new();
    let worker = Running::start(world.builder().grace(Duration::ZERO), handler);
    let chunk = timeout(PATIENCE, seen.recv()).await.unwrap().unwrap();
    let totals = worker.end().await;
    assert!(chunk.cancelled.is_cancelled());
    assert_eq!((totals.released, totals.retried), (1, 0));
    world.await_messages((0, 0)).await;
    // It is announced again under a new generation, with no attempt charged.
    world.publish().await;
    world.await_messages((1, 0)).await;
    let row = "SELECT generation, attempts::int FROM runherd.active_chunks WHERE lease_token IS NULL";
    let row = world.client.query_one(row, &[]).await.unwrap();
    assert_eq!((row.get::<_, i32>(0), row.get::<_, i32>(1)), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outages_lose_nothing() {
    let world = World::new().await;
    let count = 2_000;
    let run = world.seed(&vec![order("succeed"); count], &Policy { window: 10_000, ..policy() }).await;
    world.hand_out(run, 0, count as i64).await;
    world.publish().await;
    let (handler, _seen, _hold) = Obedient::new();
    let worker = Running::start(world.builder().concurrency(4).batch(16), handler);
    for part in 1..=4_u64 {
        worker.until(|totals| totals.succeeded >= part * 300).await;
        if part % 2 == 0 {
            rabbitmqctl(&["close_all_connections", "--vhost", &world.name, "a test closes this"]).await;
        } else {
            let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                WHERE datname = current_database() AND pid <> pg_backend_pid()";
            world.client.execute(kill, &[]).await.unwrap();
        }
    }
    let succeeded = "SELECT count(*) FROM runherd.chunks WHERE status = 'succeeded'";
    let all = async { while world.client.query_one(succeeded, &[]).await.unwrap().get::<_, i64>(0) < count as i64 {} };
    assert!(timeout(PATIENCE, all).await.is_ok(), "{:?}", worker.progress.totals());
    worker.end().await;
    world.await_messages((0, 0)).await;
    let left = world.client.query_one("SELECT count(*) FROM runherd.active_chunks", &[]).await.unwrap();
    assert_eq!(left.get::<_, i64>(0), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_that_comes_twice_has_one_effect_and_strangers_go_back() {
    let world = World::new().await;
    let run = world.seed(&[order("succeed"), order("hold")], &policy()).await;
    world.hand_out(run, 0, 2).await;
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
    let outcomes = world.publisher.publish(messages).await;
    assert!(outcomes.iter().all(|outcome| *outcome == PublishOutcome::Confirmed));
    let (handler, mut seen, hold) = Obedient::new();
    let worker = Running::start(world.builder().concurrency(8), handler);
    for _ in 0..2 {
        timeout(PATIENCE, seen.recv()).await.unwrap().unwrap();
    }
    hold.add_permits(1);
    worker.until(|totals| totals.succeeded == 2).await;
    let totals = worker.end().await;
    assert_eq!(totals.leased, 2);
    world.await_messages((1, 0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_work_on_chunks_and_are_stopped_by_a_drain() {
    let world = World::new().await;
    let run = world.seed(&[json!("abc"), json!(3), json!({ "k": 1 }), json!("sleep")], &policy()).await;
    world.hand_out(run, 0, 4).await;
    world.publish().await;
    let script = r#"case "$RUNHERD_PAYLOAD" in
        '"sleep"') exec sleep 1000 ;;
        3) echo "bad: $RUNHERD_CHUNK_NO" >&2; exit 65 ;;
        '"abc"') printf %s "$RUNHERD_PAYLOAD_TEXT" ;;
        *) cat ;;
    esac"#;
    let command = ["sh", "-c", script].map(Into::into).to_vec();
    let handler = CommandHandler::new(command, CommandLimits::default()).unwrap();
    let worker = Running::start(world.builder().concurrency(2).grace(Duration::from_millis(10)), handler);
    worker.until(|totals| totals.ended() == 3 && totals.leased == 4).await;
    let totals = worker.end().await;
    assert_eq!((totals.succeeded, totals.failed, totals.released), (2, 1, 1));
    let chunks = world.chunks().await;
    assert_eq!(chunks[0].2.as_deref(), Some("\"abc\""));
    assert_eq!((chunks[1].0.as_str(), chunks[1].3.as_deref()), ("failed", Some("exit status: 65: bad: 1")));
    assert_eq!(chunks[2].2.as_deref(), Some("{\"k\":1}"));
    assert_eq!(chunks[3].0, "open");
}

#[tokio::test]
async fn every_write_may_be_made_again_with_its_token() {
    let world = World::new().await;
    let payload = json!({ "b": 1, "a": [1.5] });
    let run = world.seed(&[payload, json!(1), json!(2), json!(3)], &policy()).await;
    world.hand_out(run, 0, 4).await;
    let (store, token, ttl) = (world.store(), LeaseToken::fresh(), Duration::from_secs(60));
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
    assert_eq!(world.chunks().await[0].2.as_deref(), Some(outcome));
    assert!(store.complete(&[(lease(2), "no json")]).await.is_err());
}

/// Not a test of rates: it says them. `cargo test --release -p runherd-integration-tests --test worker rate -- --ignored --nocapture`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it measures"]
async fn rate_of_a_handler_that_does_nothing() {
    struct Nothing;
    impl Handler for Nothing {
        async fn handle(&self, _chunk: Chunk) -> Result<Outcome, ChunkError> {
            Ok(Outcome::null())
        }
    }
    for (concurrency, batch, chunks_per_event) in [(8, 64, 1), (8, 256, 1), (8, 256, 100)] {
        let world = World::new().await;
        let count: u64 = 20_000;
        let payloads: Vec<Value> = (0..count).map(Value::from).collect();
        let run = world.seed(&payloads, &Policy { window: 100_000, chunks_per_event, ..policy() }).await;
        world.hand_out(run, 0, count as i64).await;
        world.publish().await;
        let began = Instant::now();
        let worker = Running::start(world.builder().concurrency(concurrency).batch(batch), Nothing);
        worker.until(|totals| totals.succeeded == count).await;
        let rate = count as f64 / began.elapsed().as_secs_f64();
        println!("concurrency {concurrency}, batch {batch}, {chunks_per_event} a message: {rate:.0} chunks/s");
        worker.end().await;
        world.await_messages((0, 0)).await;
    }
}
