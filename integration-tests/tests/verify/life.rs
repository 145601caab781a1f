//! The life of a small run, step by step, as the stages and workers live it: with their own statements.

use std::env;
use std::time::Duration;

use runherd::config::{PoolConfig, SessionConfig};
use runherd::store::SessionSettings;
use runherd::store::migrate::migrate;
use runherd::store::verify::Installation;
use runherd::verify::{Options, Report, Scope, verify};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, NoTls, Row};
use uuid::Uuid;

/// Databases of one installation, dropped at the end.
pub(crate) struct World {
    server: Config,
    pub(crate) databases: Vec<(String, Config)>,
    pub(crate) control: Client,
    pub(crate) placement: Client,
    pub(crate) installation: Installation,
}

pub(crate) fn server() -> Config {
    let url = env::var("RUNHERD_TEST_PG_URL").unwrap_or("postgresql://postgres@127.0.0.1:5432/postgres".to_owned());
    url.parse().unwrap()
}

pub(crate) async fn connect(config: &Config) -> Client {
    let (client, connection) = config.connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

pub(crate) fn settings() -> SessionSettings {
    SessionSettings::new(&PoolConfig::default(), &SessionConfig::default(), false)
}

impl World {
    /// A control database and one more placement, on which all shards of new runs are placed.
    pub(crate) async fn new() -> Self {
        let server = server();
        let admin = connect(&server).await;
        let tag = Uuid::new_v4().simple();
        let mut databases = Vec::new();
        for name in ["control", "p1"] {
            let database = format!("verify_{name}_{tag}");
            admin.batch_execute(&format!("CREATE DATABASE {database}")).await.unwrap();
            let mut config = server.clone();
            config.dbname(&database);
            databases.push((name.to_owned(), config));
        }
        migrate(&databases, false).await.unwrap();
        let control = connect(&databases[0].1).await;
        let placement = connect(&databases[1].1).await;
        control.execute("UPDATE runherd.placements SET state = 'draining' WHERE name = 'control'", &[]).await.unwrap();
        let installation = Installation::open(&databases, &settings()).await.unwrap();
        Self { server, databases, control, placement, installation }
    }

    pub(crate) async fn end(self) {
        let admin = connect(&self.server).await;
        for (_, config) in &self.databases {
            let name = config.get_dbname().unwrap();
            admin.batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)")).await.unwrap();
        }
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
pub(crate) async fn submit(world: &World) -> Uuid {
    let header = serde_json::json!({ "queue": "q", "shards": 2, "policy": { "window": 4, "chunks_per_event": 2 } });
    let chunks = "[1,2,3,4,5,6]";
    let text = "SELECT runherd.submit_run($1::jsonb, ($2::text)::json)";
    one(&world.control, text, &[&header, &chunks]).await.get(0)
}

pub(crate) async fn seed(world: &World, run: Uuid) {
    let policy = serde_json::json!({ "window": 4, "chunks_per_event": 2, "max_attempts": 1, "recovery_limit": 1,
        "release_limit": 1, "retry_delay_ms": 0, "retry_delay_max_ms": 0, "lease_ttl_max_ms": 60000,
        "max_chunk_time_ms": 60000, "redelivery_after_ms": 60000, "redelivery_after_max_ms": 60000 });
    let placement = world.placement_id().await;
    let parts =
        world.control.query(sql!("creation_recovery/next_parts"), &[&run, &placement, &-1_i32, &10_i64]).await.unwrap();
    assert_eq!(parts.len(), 1);
    for part in parts {
        let (no, shard, first): (i32, i32, i64) = (part.get(0), part.get(1), part.get(2));
        let (count, body): (i32, String) = (part.get("chunk_count"), part.get("body"));
        let params: &[&(dyn ToSql + Sync)] = &[&run, &shard, &no, &first, &count, &body, &"q", &policy];
        let result: String = one(&world.placement, sql!("creation_recovery/seed_part"), params).await.get(0);
        assert_eq!(result, "seeded");
    }
    let token: Uuid =
        one(&world.control, "SELECT creation_token FROM runherd.runs WHERE run_id = $1", &[&run]).await.get(0);
    one(&world.control, sql!("creation_recovery/record_placement"), &[&run, &token, &placement]).await;
}

pub(crate) async fn open(world: &World, run: Uuid) {
    run_sql(&world.control, "BEGIN").await;
    world.control.execute(sql!("creation_recovery/insert_cursors"), &[&run]).await.unwrap();
    one(&world.control, sql!("creation_recovery/mark_pending"), &[&run]).await;
    run_sql(&world.control, "COMMIT").await;
}

pub(crate) async fn start(world: &World, run: Uuid) {
    one(&world.control, sql!("shard_dispatcher/start_run"), &[&run]).await;
}

pub(crate) async fn hand_out(world: &World, run: Uuid, from: i64, chunks: i64) {
    one(&world.placement, sql!("shard_dispatcher/hand_out"), &[&run, &0_i32, &from, &chunks]).await;
}

/// Leases a chunk and completes it, or fails it for good.
pub(crate) async fn work(world: &World, run: Uuid, chunk: i64, succeed: bool) {
    let token = Uuid::new_v4();
    lease(world, run, chunk, token).await;
    if succeed {
        let text = "SELECT runherd.complete_chunk($1, 0, $2, $3, '{}')";
        let status: String = one(&world.placement, text, &[&run, &chunk, &token]).await.get(0);
        assert_eq!(status, "ok");
    } else {
        let text = "SELECT status, next FROM runherd.fail_chunk($1, 0, $2, $3, 'no', false)";
        let row = one(&world.placement, text, &[&run, &chunk, &token]).await;
        assert_eq!((row.get::<_, &str>(0), row.get::<_, &str>(1)), ("ok", "failed"));
    }
}

pub(crate) async fn lease(world: &World, run: Uuid, chunk: i64, token: Uuid) {
    let text = "SELECT status FROM runherd.lease_chunk($1, 0, $2, $3, 'w', '1 min')";
    let status: String = one(&world.placement, text, &[&run, &chunk, &token]).await.get(0);
    assert_eq!(status, "leased");
}

/// Publishes everything that waits in both databases, as the publisher settles it.
pub(crate) async fn publish_all(world: &World) {
    for client in [&world.control, &world.placement] {
        let token = Uuid::new_v4();
        for shard in 0..8_i16 {
            let params: &[&(dyn ToSql + Sync)] = &[&shard, &0_i64, &100_i64, &token, &"test", &60_000_i64];
            let claimed = client.query(sql!("outbox_publisher/claim"), params).await.unwrap();
            let ids: Vec<i64> = claimed.iter().map(|row| row.get("event_id")).collect();
            let (none, no_text): (Vec<i64>, Vec<String>) = (Vec::new(), Vec::new());
            let params: &[&(dyn ToSql + Sync)] =
                &[&shard, &token, &ids, &none, &no_text, &none, &3_i32, &60_000_i64, &none];
            one(client, sql!("outbox_publisher/settle"), params).await;
        }
    }
}

pub(crate) async fn advance(world: &World, run: Uuid) {
    world.placement.query(sql!("shard_dispatcher/advance_low"), &[&run, &0_i32, &100_i64]).await.unwrap();
}

/// Copies the position to the cursor, as a dispatcher does.
pub(crate) async fn move_cursor(world: &World, run: Uuid, position: i64) {
    let text = "SELECT lease_token FROM runherd.dispatch_cursors WHERE run_id = $1 AND run_shard = 0";
    let token: Uuid = one(&world.control, text, &[&run]).await.get(0);
    one(&world.control, sql!("shard_dispatcher/move_cursor"), &[&run, &0_i32, &token, &position, &0_i64]).await;
}

/// A run in the middle of its life: chunk 0 succeeded, 1 failed, 2 leased, 3 handed out, 4 and 5 not; events published.
pub(crate) async fn running(world: &World) -> Uuid {
    let run = submit(world).await;
    seed(world, run).await;
    open(world, run).await;
    start(world, run).await;
    hand_out(world, run, 0, 4).await;
    work(world, run, 0, true).await;
    work(world, run, 1, false).await;
    lease(world, run, 2, Uuid::new_v4()).await;
    publish_all(world).await;
    advance(world, run).await;
    run
}

/// A run that has ended: all succeeded but chunk 1, everything published, guard closed.
pub(crate) async fn ended(world: &World) -> Uuid {
    let run = running(world).await;
    run_sql(&world.placement, "UPDATE runherd.active_chunks SET lease_token = NULL, expires_at = NULL").await;
    work(world, run, 2, true).await;
    work(world, run, 3, true).await;
    finish(world, run, 4, 6).await;
    publish_all(world).await;
    run
}

/// Hands the rest out, completes it and ends the run.
pub(crate) async fn finish(world: &World, run: Uuid, from: i64, past: i64) {
    hand_out(world, run, from, past - from).await;
    for chunk in from..past {
        work(world, run, chunk, true).await;
    }
    advance(world, run).await;
    move_cursor(world, run, past).await;
    let marked = one(&world.placement, sql!("finalizer/mark_drained"), &[&run, &0_i32, &past]).await;
    let [succeeded, failed, cancelled, lost]: [i64; 4] = [0, 1, 2, 3].map(|column| marked.get(column));
    let params: &[&(dyn ToSql + Sync)] = &[&run, &0_i32, &succeeded, &failed, &cancelled, &lost];
    world.control.execute(sql!("finalizer/drain_cursor"), params).await.unwrap();
    one(&world.control, sql!("finalizer/finish_run"), &[&run]).await;
    world.placement.execute(sql!("finalizer/close_guard"), &[&run]).await.unwrap();
}
