//! The life of a small run, step by step, as the stages and workers live it: with their own statements.

use std::time::Duration;

use runherd::config::{PoolConfig, SessionConfig};
use runherd::store::SessionSettings;
use runherd::store::verify::Installation;
use runherd::verify::{Options, Report, Scope, verify};
use runherd_integration_tests::World;
use runherd_integration_tests::herd::Herd;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, NoTls, Row};
use uuid::Uuid;

/// The databases of one installation, on which only the test works.
pub(crate) struct Books {
    /// All of them, by the names that the configuration gives them: `control` and `p1`.
    pub(crate) databases: Vec<(String, Config)>,
    pub(crate) control: Client,
    pub(crate) placement: Client,
    pub(crate) installation: Installation,
    /// Keeps them. Dropped last.
    _herd: Herd,
}

pub(crate) fn settings() -> SessionSettings {
    SessionSettings::new(&PoolConfig::default(), &SessionConfig::default(), false)
}

impl Books {
    /// A control database and one more placement, on which all shards of new runs are placed.
    pub(crate) async fn new(test: &str) -> Self {
        let herd = Herd::in_world(World::new(test).await, &["p1"]).await;
        let databases = herd.config().databases().unwrap();
        let [control, placement] = [0, 1].map(|index| connect(&databases[index].1));
        let (control, placement) = (control.await, placement.await);
        control.execute("UPDATE runherd.placements SET state = 'draining' WHERE name = 'control'", &[]).await.unwrap();
        let installation = Installation::open(&databases, &settings()).await.unwrap();
        Self { databases, control, placement, installation, _herd: herd }
    }

    pub(crate) async fn verify(&self, scope: Scope) -> Report {
        verify(&self.installation, scope, Options { pause: Duration::ZERO }).await.unwrap()
    }

    /// Everything was checked and holds, for all runs and for this one.
    pub(crate) async fn assert_ok(&self, run: Uuid, at: &str) -> Report {
        let of_run = self.verify(Scope::Run(run)).await;
        assert!(of_run.is_ok(), "{at}: {of_run:?}");
        let report = self.verify(Scope::All).await;
        assert!(report.is_ok(), "{at}: {report:?}");
        assert_eq!(report.passing, 0, "{at}");
        report
    }

    pub(crate) async fn placement_id(&self) -> i32 {
        one(&self.control, "SELECT placement_id FROM runherd.placements WHERE name = 'p1'", &[]).await.get(0)
    }
}

async fn connect(config: &Config) -> Client {
    let (client, connection) = config.connect(NoTls).await.unwrap();
    // Ends with the client.
    tokio::spawn(connection);
    client
}

pub(crate) async fn one(client: &Client, text: &str, params: &[&(dyn ToSql + Sync)]) -> Row {
    client.query_one(text, params).await.unwrap_or_else(|error| panic!("{text}: {error:?}"))
}

pub(crate) async fn run_sql(client: &Client, text: &str) {
    client.batch_execute(text).await.unwrap_or_else(|error| panic!("{text}: {error:?}"));
}

macro_rules! sql {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../sql/queries/", $name, ".sql"))
    };
}
pub(crate) use sql;

/// A run of two shards with one part in the first: 6 chunks, and nothing in the second.
pub(crate) async fn submit(books: &Books) -> Uuid {
    let header = serde_json::json!({ "queue": "q", "shards": 2, "policy": { "window": 4, "chunks_per_event": 2 } });
    let chunks = "[1,2,3,4,5,6]";
    let text = "SELECT runherd.submit_run($1::jsonb, ($2::text)::json)";
    one(&books.control, text, &[&header, &chunks]).await.get(0)
}

pub(crate) async fn seed(books: &Books, run: Uuid) {
    let policy = serde_json::json!({ "window": 4, "chunks_per_event": 2, "max_attempts": 1, "recovery_limit": 1,
        "release_limit": 1, "retry_delay_ms": 0, "retry_delay_max_ms": 0, "lease_ttl_max_ms": 60000,
        "max_chunk_time_ms": 60000, "redelivery_after_ms": 60000, "redelivery_after_max_ms": 60000 });
    let placement = books.placement_id().await;
    let parts =
        books.control.query(sql!("creation_recovery/next_parts"), &[&run, &placement, &-1_i32, &10_i64]).await.unwrap();
    assert_eq!(parts.len(), 1);
    for part in parts {
        let (no, shard, first): (i32, i32, i64) = (part.get(0), part.get(1), part.get(2));
        let (count, body): (i32, String) = (part.get("chunk_count"), part.get("body"));
        let params: &[&(dyn ToSql + Sync)] = &[&run, &shard, &no, &first, &count, &body, &"q", &policy];
        let result: String = one(&books.placement, sql!("creation_recovery/seed_part"), params).await.get(0);
        assert_eq!(result, "seeded");
    }
    let token: Uuid =
        one(&books.control, "SELECT creation_token FROM runherd.runs WHERE run_id = $1", &[&run]).await.get(0);
    one(&books.control, sql!("creation_recovery/record_placement"), &[&run, &token, &placement]).await;
}

pub(crate) async fn open(books: &Books, run: Uuid) {
    run_sql(&books.control, "BEGIN").await;
    books.control.execute(sql!("creation_recovery/insert_cursors"), &[&run]).await.unwrap();
    one(&books.control, sql!("creation_recovery/mark_pending"), &[&run]).await;
    run_sql(&books.control, "COMMIT").await;
}

pub(crate) async fn start(books: &Books, run: Uuid) {
    one(&books.control, sql!("shard_dispatcher/start_run"), &[&run]).await;
}

pub(crate) async fn hand_out(books: &Books, run: Uuid, from: i64, chunks: i64) {
    one(&books.placement, sql!("shard_dispatcher/hand_out"), &[&run, &0_i32, &from, &chunks]).await;
}

/// Leases a chunk and completes it, or fails it for good.
pub(crate) async fn work(books: &Books, run: Uuid, chunk: i64, succeed: bool) {
    let token = Uuid::new_v4();
    lease(books, run, chunk, token).await;
    if succeed {
        let text = "SELECT runherd.complete_chunk($1, 0, $2, $3, '{}')";
        let status: String = one(&books.placement, text, &[&run, &chunk, &token]).await.get(0);
        assert_eq!(status, "ok");
    } else {
        let text = "SELECT status, next FROM runherd.fail_chunk($1, 0, $2, $3, 'no', false)";
        let row = one(&books.placement, text, &[&run, &chunk, &token]).await;
        assert_eq!((row.get::<_, &str>(0), row.get::<_, &str>(1)), ("ok", "failed"));
    }
}

pub(crate) async fn lease(books: &Books, run: Uuid, chunk: i64, token: Uuid) {
    let text = "SELECT status FROM runherd.lease_chunk($1, 0, $2, $3, 'w', '1 min')";
    let status: String = one(&books.placement, text, &[&run, &chunk, &token]).await.get(0);
    assert_eq!(status, "leased");
}

/// Publishes everything that waits in both databases, as the publisher settles it.
pub(crate) async fn publish_all(books: &Books) {
    for client in [&books.control, &books.placement] {
        let (token, coordinator) = (Uuid::new_v4(), Uuid::new_v4());
        for shard in 0..8_i16 {
            let params: &[&(dyn ToSql + Sync)] = &[&shard, &0_i64, &100_i64, &token, &coordinator, &60_000_i64];
            let claimed = client.query(sql!("outbox_publisher/claim"), params).await.unwrap();
            let ids: Vec<i64> = claimed.iter().map(|row| row.get("event_id")).collect();
            let (none, no_text): (Vec<i64>, Vec<String>) = (Vec::new(), Vec::new());
            let params: &[&(dyn ToSql + Sync)] =
                &[&shard, &token, &ids, &none, &no_text, &none, &3_i32, &60_000_i64, &none];
            one(client, sql!("outbox_publisher/settle"), params).await;
        }
    }
}

pub(crate) async fn advance(books: &Books, run: Uuid) {
    books.placement.query(sql!("shard_dispatcher/advance_low"), &[&run, &0_i32, &100_i64]).await.unwrap();
}

/// Copies the position to the cursor, as a dispatcher does.
pub(crate) async fn move_cursor(books: &Books, run: Uuid, position: i64) {
    let text = "SELECT lease_token FROM runherd.dispatch_cursors WHERE run_id = $1 AND run_shard = 0";
    let token: Uuid = one(&books.control, text, &[&run]).await.get(0);
    one(&books.control, sql!("shard_dispatcher/move_cursor"), &[&run, &0_i32, &token, &position, &0_i64]).await;
}

/// A run in the middle of its life: chunk 0 succeeded, 1 failed, 2 leased, 3 handed out, 4 and 5 not; events published.
pub(crate) async fn running(books: &Books) -> Uuid {
    let run = submit(books).await;
    seed(books, run).await;
    open(books, run).await;
    start(books, run).await;
    hand_out(books, run, 0, 4).await;
    work(books, run, 0, true).await;
    work(books, run, 1, false).await;
    lease(books, run, 2, Uuid::new_v4()).await;
    publish_all(books).await;
    advance(books, run).await;
    run
}

/// A run that has ended: all succeeded but chunk 1, everything published, guard closed.
pub(crate) async fn ended(books: &Books) -> Uuid {
    let run = running(books).await;
    run_sql(&books.placement, "UPDATE runherd.active_chunks SET lease_token = NULL, expires_at = NULL").await;
    work(books, run, 2, true).await;
    work(books, run, 3, true).await;
    finish(books, run, 4, 6).await;
    publish_all(books).await;
    run
}

/// Hands the rest out, completes it and ends the run.
pub(crate) async fn finish(books: &Books, run: Uuid, from: i64, past: i64) {
    hand_out(books, run, from, past - from).await;
    for chunk in from..past {
        work(books, run, chunk, true).await;
    }
    advance(books, run).await;
    move_cursor(books, run, past).await;
    let marked = one(&books.placement, sql!("finalizer/mark_drained"), &[&run, &0_i32, &past]).await;
    let [succeeded, failed, cancelled, lost]: [i64; 4] = [0, 1, 2, 3].map(|column| marked.get(column));
    let params: &[&(dyn ToSql + Sync)] = &[&run, &0_i32, &succeeded, &failed, &cancelled, &lost];
    books.control.execute(sql!("finalizer/drain_cursor"), params).await.unwrap();
    one(&books.control, sql!("finalizer/finish_run"), &[&run]).await;
    books.placement.execute(sql!("finalizer/close_guard"), &[&run]).await.unwrap();
}
