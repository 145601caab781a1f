//! A database with chunks, a queue that announces them, and a worker inside the test with a handler that does as it is told.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use runherd::broker::topology::{EXCHANGE, chunk_queue, chunk_ready_key};
use runherd::broker::{BrokerSettings, BrokerState, Publisher, QueueType, silent};
use runherd::policy::Policy;
use runherd::store::Database;
use runherd::worker::{Builder, Chunk, ChunkError, Handler, Outcome, Progress, Totals, Worker, WorkerError};
use runherd_actors::model::{ChunkKey, RunId};
use runherd_actors::stages::outbox_publisher::{Message, PublishOutcome};
use runherd_integration_tests::herd::Herd;
use runherd_integration_tests::until;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Longer than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const QUEUE: &str = "q";

const HAND_OUT: &str = include_str!("../../../sql/queries/shard_dispatcher/hand_out.sql");

/// A database that is control database and placement, and a virtual host with the queue; no coordinator.
pub(crate) struct Bench {
    pub(crate) herd: Herd,
    pub(crate) client: Client,
    pub(crate) publisher: Publisher,
}

impl Bench {
    pub(crate) async fn new(test: &str) -> Self {
        let herd = Herd::new(test).await;
        let publisher = Publisher::start(settings(&herd), "test", &silent());
        timeout(PATIENCE, publisher.state().wait_for(|state| *state == BrokerState::Connected)).await.unwrap().unwrap();
        publisher.declare_queues(vec![QUEUE.to_owned()]).await.unwrap();
        Self { client: herd.world.pg(herd.world.database()).await, herd, publisher }
    }

    pub(crate) fn database(&self) -> Database {
        self.herd.pools().remove(0)
    }

    pub(crate) fn builder(&self) -> Builder {
        Worker::builder(settings(&self.herd), QUEUE).placement(self.database())
    }

    /// Submits a run of one shard with these payloads, and seeds it.
    pub(crate) async fn seed(&self, payloads: &[Value], policy: &Policy) -> RunId {
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
    pub(crate) async fn hand_out(&self, run: RunId, from: i64, count: i64) {
        let rows = self.client.query(HAND_OUT, &[&run.0, &0_i32, &from, &count]).await.unwrap();
        assert_eq!(rows.len(), 1, "handed out");
    }

    /// Publishes what is in the outbox, due or not.
    pub(crate) async fn publish(&self) {
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
    pub(crate) async fn make_due(&self) {
        self.client.execute("UPDATE runherd.active_chunks SET ready_at = now()", &[]).await.unwrap();
    }

    /// (status, attempts, outcome, error) of each chunk, in order.
    pub(crate) async fn chunks(&self) -> Vec<(String, i32, Option<String>, Option<String>)> {
        let rows = self
            .client
            .query("SELECT status, attempts::int, outcome::text, error FROM runherd.chunks ORDER BY chunk_no", &[])
            .await
            .unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1), row.get(2), row.get(3))).collect()
    }

    /// Waits until at least so many chunks have succeeded; answers how many.
    pub(crate) async fn succeeded(&self, least: i64) -> i64 {
        let query = "SELECT count(*) FROM runherd.chunks WHERE status = 'succeeded'";
        until(format!("{least} chunks to succeed"), PATIENCE, async || {
            let count: i64 = self.client.query_one(query, &[]).await.unwrap().get(0);
            (count >= least).then_some(count)
        })
        .await
    }

    /// Ends all connections to the database but this one, as an administrator would.
    pub(crate) async fn terminate_others(&self) {
        let query = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid()";
        let ended: i64 = self.client.query_one(query, &[]).await.unwrap().get(0);
        assert!(ended > 0, "nobody was connected");
    }

    /// Waits until so many messages, ready and unacknowledged, are in the queue.
    pub(crate) async fn await_messages(&self, (ready, unacknowledged): (u64, u64)) {
        self.herd.world.rabbit().until_depth(&chunk_queue(QUEUE), ready, unacknowledged).await;
    }
}

/// Classic queues: their figures are never old.
fn settings(herd: &Herd) -> BrokerSettings {
    let mut settings = BrokerSettings::new(herd.world.amqp_url().parse().unwrap());
    settings.topology.queue_type = QueueType::Classic;
    settings.reconnect_min = Duration::from_millis(20);
    settings.reconnect_max = Duration::from_millis(500);
    settings
}

pub(crate) fn message(event_id: i64, id: String, payload: Vec<u8>) -> Message {
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

pub(crate) fn policy() -> Policy {
    Policy { retry_delay: Duration::ZERO, retry_delay_max: Duration::ZERO, ..Policy::default() }
}

/// A worker that runs, and how to end it.
pub(crate) struct Running {
    pub(crate) drain: CancellationToken,
    pub(crate) progress: Arc<Progress>,
    task: JoinHandle<Result<Totals, WorkerError>>,
}

impl Running {
    pub(crate) fn start<H: Handler>(builder: Builder, handler: H) -> Self {
        let worker = builder.build(handler).unwrap();
        let drain = CancellationToken::new();
        let progress = worker.progress();
        Self { task: tokio::spawn(worker.run(drain.clone())), drain, progress }
    }

    pub(crate) async fn until(&self, reached: impl Fn(Totals) -> bool) {
        let reached = async || reached(self.progress.totals()).then_some(());
        until("the totals of the worker", PATIENCE, reached).await;
    }

    pub(crate) async fn end(self) -> Totals {
        self.drain.cancel();
        timeout(PATIENCE, self.task).await.unwrap().unwrap().unwrap()
    }
}

/// Does what the payload says; what is `held` waits to be let go or cancelled.
pub(crate) struct Obedient {
    begun: mpsc::UnboundedSender<Chunk>,
    hold: Arc<tokio::sync::Semaphore>,
    attempts: Mutex<HashMap<ChunkKey, i32>>,
}

impl Obedient {
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<Chunk>, Arc<tokio::sync::Semaphore>) {
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

pub(crate) fn order(what: &str) -> Value {
    json!({ "do": what })
}
