//! `runherd verify` against real PostgreSQL: it passes at every step of a run's life, and each kind of damage is reported under
//! its own invariant, with the key of what was damaged.
//!
//! The server is at `RUNHERD_TEST_PG_URL`, as a role that may create databases. Every test has databases of its own.

// The lint's own exception for tests stops at the helpers they share.
#![allow(clippy::unwrap_used)]

use std::env;
use std::time::Duration;

use runherd::config::{PoolConfig, SessionConfig};
use runherd::store::SessionSettings;
use runherd::store::migrate::migrate;
use runherd::store::verify::Installation;
use runherd::verify::{Invariant, Options, Report, RunRef, RunRefError, Scope, verify};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, NoTls, Row};
use uuid::Uuid;

/// Databases of one installation, dropped at the end.
struct World {
    server: Config,
    databases: Vec<(String, Config)>,
    control: Client,
    placement: Client,
    installation: Installation,
}

fn server() -> Config {
    let url = env::var("RUNHERD_TEST_PG_URL").unwrap_or("postgresql://postgres@127.0.0.1:5432/postgres".to_owned());
    url.parse().unwrap()
}

async fn connect(config: &Config) -> Client {
    let (client, connection) = config.connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

fn settings() -> SessionSettings {
    SessionSettings::new(&PoolConfig::default(), &SessionConfig::default(), false)
}

impl World {
    /// A control database and one more placement, on which all shards of new runs are placed.
    async fn new() -> Self {
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

    async fn end(self) {
        let admin = connect(&self.server).await;
        for (_, config) in &self.databases {
            let name = config.get_dbname().unwrap();
            admin.batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)")).await.unwrap();
        }
    }

    async fn verify(&self, scope: Scope) -> Report {
        verify(&self.installation, scope, Options { pause: Duration::ZERO }).await.unwrap()
    }

    /// Everything was checked and holds, for all runs and for this one.
    async fn assert_ok(&self, run: Uuid, at: &str) -> Report {
        let of_run = self.verify(Scope::Run(run)).await;
        assert!(of_run.is_ok(), "{at}: {of_run:?}");
        let report = self.verify(Scope::All).await;
        assert!(report.is_ok(), "{at}: {report:?}");
        assert_eq!(report.passing, 0, "{at}");
        report
    }

    async fn placement_id(&self) -> i32 {
        one(&self.control, "SELECT placement_id FROM runherd.placements WHERE name = 'p1'", &[]).await.get(0)
    }
}

async fn one(client: &Client, text: &str, params: &[&(dyn ToSql + Sync)]) -> Row {
    client.query_one(text, params).await.unwrap_or_else(|error| panic!("{text}: {error:?}"))
}

async fn run_sql(client: &Client, text: &str) {
    client.batch_execute(text).await.unwrap_or_else(|error| panic!("{text}: {error:?}"));
}

macro_rules! sql {
    ($name:literal) => {
        include_str!(concat!("../../sql/queries/", $name, ".sql"))
    };
}

/// A run of two shards with one part in the first: 6 chunks, and nothing in the second.
async fn submit(world: &World) -> Uuid {
    let header = serde_json::json!({ "queue": "q", "shards": 2, "policy": { "window": 4, "chunks_per_event": 2 } });
    let chunks = "[1,2,3,4,5,6]";
    let text = "SELECT runherd.submit_run($1::jsonb, ($2::text)::json)";
    one(&world.control, text, &[&header, &chunks]).await.get(0)
}

async fn seed(world: &World, run: Uuid) {
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

async fn open(world: &World, run: Uuid) {
    run_sql(&world.control, "BEGIN").await;
    world.control.execute(sql!("creation_recovery/insert_cursors"), &[&run]).await.unwrap();
    one(&world.control, sql!("creation_recovery/mark_pending"), &[&run]).await;
    run_sql(&world.control, "COMMIT").await;
}

async fn start(world: &World, run: Uuid) {
    one(&world.control, sql!("shard_dispatcher/start_run"), &[&run]).await;
}

async fn hand_out(world: &World, run: Uuid, from: i64, chunks: i64) {
    one(&world.placement, sql!("shard_dispatcher/hand_out"), &[&run, &0_i32, &from, &chunks]).await;
}

/// Leases a chunk and completes it, or fails it for good.
async fn work(world: &World, run: Uuid, chunk: i64, succeed: bool) {
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

async fn lease(world: &World, run: Uuid, chunk: i64, token: Uuid) {
    let text = "SELECT status FROM runherd.lease_chunk($1, 0, $2, $3, 'w', '1 min')";
    let status: String = one(&world.placement, text, &[&run, &chunk, &token]).await.get(0);
    assert_eq!(status, "leased");
}

/// Publishes everything that waits in both databases, as the publisher settles it.
async fn publish_all(world: &World) {
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

async fn advance(world: &World, run: Uuid) {
    world.placement.query(sql!("shard_dispatcher/advance_low"), &[&run, &0_i32, &100_i64]).await.unwrap();
}

/// Copies the position to the cursor, as a dispatcher does.
async fn move_cursor(world: &World, run: Uuid, position: i64) {
    let text = "SELECT lease_token FROM runherd.dispatch_cursors WHERE run_id = $1 AND run_shard = 0";
    let token: Uuid = one(&world.control, text, &[&run]).await.get(0);
    one(&world.control, sql!("shard_dispatcher/move_cursor"), &[&run, &0_i32, &token, &position, &0_i64]).await;
}

/// A run in the middle of its life: chunk 0 succeeded, 1 failed, 2 leased, 3 handed out, 4 and 5 not; events published.
async fn running(world: &World) -> Uuid {
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
async fn ended(world: &World) -> Uuid {
    let run = running(world).await;
    run_sql(&world.placement, "UPDATE runherd.active_chunks SET lease_token = NULL, expires_at = NULL").await;
    work(world, run, 2, true).await;
    work(world, run, 3, true).await;
    finish(world, run, 4, 6).await;
    publish_all(world).await;
    run
}

/// Hands the rest out, completes it and ends the run.
async fn finish(world: &World, run: Uuid, from: i64, past: i64) {
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

#[tokio::test]
async fn it_passes_at_every_step_of_a_run() {
    let world = World::new().await;
    let run = submit(&world).await;
    world.assert_ok(run, "submitted").await;
    seed(&world, run).await;
    world.assert_ok(run, "seeded").await;
    open(&world, run).await;
    world.assert_ok(run, "opened").await;
    start(&world, run).await;
    hand_out(&world, run, 0, 4).await;
    world.assert_ok(run, "handed out").await;
    work(&world, run, 0, true).await;
    work(&world, run, 1, false).await;
    publish_all(&world).await;
    world.assert_ok(run, "published").await;
    advance(&world, run).await;
    let report = world.assert_ok(run, "half done").await;
    let checked = report.checked;
    assert_eq!((checked.runs, checked.ended_runs, checked.shards, checked.chunks), (1, 0, 1, 6));
    assert_eq!((checked.active_rows, checked.events, checked.published), (2, 4, 4));
    work(&world, run, 2, true).await;
    work(&world, run, 3, true).await;
    finish(&world, run, 4, 6).await;
    let report = world.assert_ok(run, "ended").await;
    assert_eq!((report.checked.ended_runs, report.checked.events, report.checked.published), (1, 6, 4));
    world.end().await;
}

#[tokio::test]
async fn it_passes_while_a_run_is_cancelled() {
    let world = World::new().await;
    let run = running(&world).await;
    one(&world.control, "SELECT runherd.cancel_run($1)", &[&run]).await;
    one(&world.control, sql!("finalizer/apply_intents"), &[&run]).await;
    world.assert_ok(run, "cancelling").await;
    world.placement.execute(sql!("finalizer/cancel_guard"), &[&run, &"cancelled"]).await.unwrap();
    world.assert_ok(run, "guard cancelled").await;
    for stretch in 0..2 {
        one(&world.placement, sql!("finalizer/sweep_shard"), &[&run, &0_i32, &2_i64]).await;
        world.assert_ok(run, &format!("swept {stretch}")).await;
        one(&world.placement, sql!("finalizer/pass_swept"), &[&run, &0_i32, &2_i64]).await;
        world.assert_ok(run, &format!("passed {stretch}")).await;
    }
    let swept = one(&world.placement, sql!("finalizer/swept_totals"), &[&run]).await;
    let [succeeded, failed, cancelled, lost]: [i64; 4] = [1, 2, 3, 4].map(|column| swept.get(column));
    assert_eq!((swept.get::<_, bool>(0), succeeded, failed, cancelled, lost), (true, 1, 1, 4, 0));
    let params: &[&(dyn ToSql + Sync)] = &[&run, &succeeded, &failed, &cancelled, &lost];
    one(&world.control, sql!("finalizer/finish_stopped_run"), params).await;
    world.assert_ok(run, "cancelled").await;
    world.end().await;
}

/// Where damage is done.
#[derive(Clone, Copy, Debug)]
enum At {
    Control,
    Placement,
}

/// Does the damage, and expects exactly these violations; then undoes it, and expects none. `{run}` in a text is the run.
async fn damage(world: &World, run: Uuid, at: At, text: &str, undo: &str, expected: &[(Invariant, &str)]) {
    let client = match at {
        At::Control => &world.control,
        At::Placement => &world.placement,
    };
    let put = |text: &str| text.replace("{run}", &run.to_string());
    run_sql(client, &put(text)).await;
    let mut wanted: Vec<(Invariant, String)> = expected.iter().map(|(invariant, key)| (*invariant, put(key))).collect();
    wanted.sort();
    for scope in [Scope::All, Scope::Run(run)] {
        // A row of the queue without its event belongs to no run that anybody could tell.
        if scope != Scope::All && text.contains("outbox_delivery_queue VALUES (0, 999999)") {
            continue;
        }
        let report = world.verify(scope).await;
        let mut found: Vec<(Invariant, String)> =
            report.violations.iter().map(|violation| (violation.invariant, violation.key.clone())).collect();
        found.sort();
        assert_eq!(found, wanted, "{text} {scope:?}: {report:#?}");
        assert!(report.unchecked.is_empty());
    }
    run_sql(client, &put(undo)).await;
    world.assert_ok(run, &format!("undone: {text}")).await;
}

#[tokio::test]
async fn each_damage_to_a_live_run_is_reported_under_its_invariant() {
    use At::{Control, Placement};
    use Invariant::{I1, I2, I3, I4, I5, I6};
    let world = World::new().await;
    let run = running(&world).await;
    world.assert_ok(run, "before").await;
    // Constraints that would keep the damage from being done; what verify looks for is what gets past them.
    run_sql(&world.control, "ALTER TABLE runherd.runs DROP CONSTRAINT runs_check1").await;
    run_sql(&world.placement, "ALTER TABLE runherd.shard_positions DROP CONSTRAINT shard_positions_check1").await;
    let keep = "CREATE TABLE kept AS SELECT * FROM runherd.";
    let cases: &[(At, String, &str, &[(Invariant, &str)])] = &[
        // I1: a chunk that is gone, at the end and in the middle.
        (Placement, format!("{keep}chunks WHERE chunk_no = 5; DELETE FROM runherd.chunks WHERE chunk_no = 5"),
            "INSERT INTO runherd.chunks SELECT * FROM kept; DROP TABLE kept", &[(I1, "{run}/0")]),
        (Placement, "UPDATE runherd.chunks SET chunk_no = 7 WHERE chunk_no = 5".into(),
            "UPDATE runherd.chunks SET chunk_no = 5 WHERE chunk_no = 7", &[(I1, "{run}/0")]),
        (Placement, "UPDATE runherd.seeded_parts SET chunk_count = 5".into(),
            "UPDATE runherd.seeded_parts SET chunk_count = 6", &[(I1, "{run}/0")]),
        // I1: an open chunk that was handed out and that nobody would ever look at again.
        (Placement, format!("{keep}active_chunks WHERE chunk_no = 3; DELETE FROM runherd.active_chunks WHERE chunk_no = 3"),
            "INSERT INTO runherd.active_chunks SELECT * FROM kept; DROP TABLE kept", &[(I1, "{run}/0/3")]),
        // I1: active before it was handed out; active and not there.
        (Placement, "INSERT INTO runherd.active_chunks (run_shard, run_id, chunk_no, event_id) VALUES (0, '{run}', 5, 1)".into(),
            "DELETE FROM runherd.active_chunks WHERE chunk_no = 5", &[(I1, "{run}/0/5")]),
        (Placement, "INSERT INTO runherd.active_chunks (run_shard, run_id, chunk_no, event_id) VALUES (0, '{run}', 9, 1)".into(),
            "DELETE FROM runherd.active_chunks WHERE chunk_no = 9", &[(I1, "{run}/0/9")]),
        // I1: counted wrong.
        (Placement, "UPDATE runherd.shard_positions SET succeeded = 2, failed = 0".into(),
            "UPDATE runherd.shard_positions SET succeeded = 1, failed = 1", &[(I1, "{run}/0")]),
        (Control, "UPDATE runherd.dispatch_cursors SET chunk_count = 5 WHERE run_shard = 0; \
            UPDATE runherd.runs SET chunk_count = 5; UPDATE runherd.run_placements SET expected_chunks = 5".into(),
            "UPDATE runherd.dispatch_cursors SET chunk_count = 6 WHERE run_shard = 0; \
            UPDATE runherd.runs SET chunk_count = 6; UPDATE runherd.run_placements SET expected_chunks = 6", &[(I1, "{run}/0")]),
        (Control, "UPDATE runherd.runs SET chunk_count = 7".into(), "UPDATE runherd.runs SET chunk_count = 6", &[(I1, "{run}")]),
        (Control, format!("{keep}dispatch_cursors; DELETE FROM runherd.dispatch_cursors WHERE run_shard = 1"),
            "INSERT INTO runherd.dispatch_cursors (run_id, run_shard, placement_id, chunk_count, status) \
            SELECT run_id, run_shard, placement_id, chunk_count, status FROM kept WHERE run_shard = 1; DROP TABLE kept",
            &[(I1, "{run}")]),
        // I2.
        (Control, "UPDATE runherd.run_placements SET seeded_at = NULL".into(),
            "UPDATE runherd.run_placements SET seeded_at = now()", &[(I2, "{run}")]),
        (Control, "UPDATE runherd.runs SET sealed_at = NULL".into(),
            "UPDATE runherd.runs SET sealed_at = now()", &[(I2, "{run}")]),
        // I3.
        (Placement, "INSERT INTO runherd.active_chunks (run_shard, run_id, chunk_no, event_id) VALUES (0, '{run}', 0, 1)".into(),
            "DELETE FROM runherd.active_chunks WHERE chunk_no = 0", &[(I3, "{run}/0/0")]),
        // I4: finished without a trace of who did it; failed without an error; open with an outcome.
        (Placement, format!("{keep}chunks WHERE chunk_no = 0; UPDATE runherd.chunks SET finished_token = NULL WHERE chunk_no = 0"),
            "DELETE FROM runherd.chunks WHERE chunk_no = 0; INSERT INTO runherd.chunks SELECT * FROM kept; DROP TABLE kept",
            &[(I4, "{run}/0/0")]),
        (Placement, "UPDATE runherd.chunks SET error = NULL WHERE chunk_no = 1".into(),
            "UPDATE runherd.chunks SET error = 'no' WHERE chunk_no = 1", &[(I4, "{run}/0/1")]),
        (Placement, "UPDATE runherd.chunks SET failed_at = NULL WHERE chunk_no = 1".into(),
            "UPDATE runherd.chunks SET failed_at = now() WHERE chunk_no = 1", &[(I4, "{run}/0/1")]),
        (Placement, "UPDATE runherd.chunks SET outcome = '1' WHERE chunk_no = 2".into(),
            "UPDATE runherd.chunks SET outcome = NULL WHERE chunk_no = 2", &[(I4, "{run}/0/2")]),
        // I5.
        (Placement, "UPDATE runherd.run_guards SET dispatch_window = 1".into(),
            "UPDATE runherd.run_guards SET dispatch_window = 4", &[(I5, "{run}/0")]),
        // I6: a run that was announced as finished and is not.
        (Control, "INSERT INTO runherd.outbox_events (outbox_shard, event_id, dedupe_key, kind, routing_key, headers, payload, \
            status, published_at, proof) VALUES (0, 999999, 'run/{run}/finished', 'x', 'x', '{}', '{}', 'published', now(), 'y')".into(),
            "DELETE FROM runherd.outbox_events WHERE event_id = 999999", &[(I6, "{run}")]),
    ];
    for (at, text, undo, expected) in cases {
        damage(&world, run, *at, text, undo, expected).await;
    }
    world.end().await;
}

#[tokio::test]
async fn each_damage_to_an_ended_run_is_reported() {
    use At::{Control, Placement};
    use Invariant::{I1, I6};
    let world = World::new().await;
    let run = ended(&world).await;
    world.assert_ok(run, "before").await;
    let keep = "CREATE TABLE kept AS SELECT * FROM runherd.";
    let cases: &[(At, String, &str, &[(Invariant, &str)])] = &[
        (Control, "UPDATE runherd.runs SET succeeded = 4".into(), "UPDATE runherd.runs SET succeeded = 5", &[(I6, "{run}")]),
        (Control, format!("{keep}outbox_events WHERE kind = 'run.finished'; DELETE FROM runherd.outbox_events WHERE kind = 'run.finished'"),
            "INSERT INTO runherd.outbox_events SELECT * FROM kept; DROP TABLE kept", &[(I6, "{run}")]),
        // Announced twice: nothing but the unique index prevents it.
        (Control, "DROP INDEX runherd.outbox_events_dedupe_key; INSERT INTO runherd.outbox_events \
            SELECT outbox_shard, 999999, dedupe_key, kind, exchange, routing_key, headers, payload, status, redeliveries, created_at, \
            published_at, proof FROM runherd.outbox_events WHERE kind = 'run.finished'".into(),
            "DELETE FROM runherd.outbox_events WHERE event_id = 999999; \
            CREATE UNIQUE INDEX outbox_events_dedupe_key ON runherd.outbox_events (dedupe_key)", &[(I6, "{run}")]),
        // Still handed out, with no chunk that it could belong to.
        (Placement, "INSERT INTO runherd.active_chunks (run_shard, run_id, chunk_no, event_id) VALUES (0, '{run}', 9, 1)".into(),
            "DELETE FROM runherd.active_chunks", &[(I6, "{run}/0/9")]),
        // A chunk that is open again, with a position to match; the totals do not.
        (Placement, format!("{keep}chunks WHERE chunk_no = 5; UPDATE runherd.shard_positions SET low_chunk_no = 5, succeeded = 4; \
            UPDATE runherd.chunks SET status = 'open', outcome = NULL, finished_token = NULL, finished_at = NULL WHERE chunk_no = 5"),
            "DELETE FROM runherd.chunks WHERE chunk_no = 5; INSERT INTO runherd.chunks SELECT * FROM kept; DROP TABLE kept; \
            UPDATE runherd.shard_positions SET low_chunk_no = 6, succeeded = 5", &[(I6, "{run}"), (I6, "{run}/0/5")]),
        // What a failover of the placement lost after the run had ended.
        (Placement, format!("{keep}chunks; DELETE FROM runherd.chunks"),
            "INSERT INTO runherd.chunks SELECT * FROM kept; DROP TABLE kept", &[(I1, "{run}/0"), (I1, "{run}/0"), (I6, "{run}")]),
    ];
    for (at, text, undo, expected) in cases {
        damage(&world, run, *at, text, undo, expected).await;
    }
    // Retention takes the positions first; from then on the run is being removed here, and that is no damage.
    run_sql(&world.placement, "DELETE FROM runherd.shard_positions").await;
    world.assert_ok(run, "positions removed").await;
    run_sql(&world.placement, "DELETE FROM runherd.chunks WHERE chunk_no < 3").await;
    world.assert_ok(run, "half removed").await;
    world.end().await;
}

#[tokio::test]
async fn each_damage_to_an_outbox_is_reported() {
    use At::{Control, Placement};
    use Invariant::{I7, I8};
    let world = World::new().await;
    let run = running(&world).await;
    hand_out(&world, run, 4, 1).await;
    world.assert_ok(run, "one event waits").await;
    run_sql(&world.placement, "ALTER TABLE runherd.outbox_events DROP CONSTRAINT outbox_events_check").await;
    let keep = "CREATE TABLE kept AS SELECT * FROM runherd.";
    let waits: &[(Invariant, &str)] = &[(I7, "chunk-ready/{run}/0/4-4/0")];
    let cases: &[(At, String, &str, &[(Invariant, &str)])] = &[
        (
            Placement,
            format!("{keep}outbox_delivery_queue; DELETE FROM runherd.outbox_delivery_queue"),
            "INSERT INTO runherd.outbox_delivery_queue SELECT * FROM kept; DROP TABLE kept",
            waits,
        ),
        // Parked means still in the queue.
        (
            Placement,
            format!(
                "UPDATE runherd.outbox_events SET status = 'parked' WHERE status = 'pending'; \
            {keep}outbox_delivery_queue; DELETE FROM runherd.outbox_delivery_queue"
            ),
            "UPDATE runherd.outbox_events SET status = 'pending' WHERE status = 'parked'; \
            INSERT INTO runherd.outbox_delivery_queue SELECT * FROM kept; DROP TABLE kept",
            waits,
        ),
        (
            Control,
            "INSERT INTO runherd.outbox_delivery_queue (outbox_shard, event_id) \
            SELECT outbox_shard, event_id FROM runherd.outbox_events WHERE kind = 'run.started'"
                .into(),
            "DELETE FROM runherd.outbox_delivery_queue",
            &[(I7, "run/{run}/started")],
        ),
        (
            Control,
            "INSERT INTO runherd.outbox_delivery_queue VALUES (0, 999999)".into(),
            "DELETE FROM runherd.outbox_delivery_queue WHERE event_id = 999999",
            &[(I7, "event 0/999999")],
        ),
        (
            Placement,
            "UPDATE runherd.outbox_events SET proof = NULL WHERE dedupe_key LIKE '%/0-1/0'".into(),
            "UPDATE runherd.outbox_events SET proof = 'confirmed' WHERE dedupe_key LIKE '%/0-1/0'",
            &[(I8, "chunk-ready/{run}/0/0-1/0")],
        ),
    ];
    for (at, text, undo, expected) in cases {
        damage(&world, run, *at, text, undo, expected).await;
    }
    world.end().await;
}

#[tokio::test]
async fn what_cannot_be_reached_is_named_and_nothing_is_ok() {
    let world = World::new().await;
    let run = running(&world).await;
    let reasons = |report: &Report| report.unchecked.iter().map(|u| u.database.clone()).collect::<Vec<_>>();

    // Not configured.
    let installation = Installation::open(&world.databases[..1], &settings()).await.unwrap();
    for scope in [Scope::All, Scope::Run(run)] {
        let report = verify(&installation, scope, Options::default()).await.unwrap();
        assert_eq!((report.violations.len(), reasons(&report)), (0, vec!["p1".to_owned()]));
        assert!(!report.is_ok());
    }

    // Another database under its name.
    let swapped = [world.databases[0].clone(), ("p1".to_owned(), world.databases[0].1.clone())];
    let installation = Installation::open(&swapped, &settings()).await.unwrap();
    let report = verify(&installation, Scope::All, Options::default()).await.unwrap();
    assert_eq!(reasons(&report), ["p1"]);
    assert!(report.unchecked[0].reason.contains("it says that it is placement control"), "{report:?}");

    // Nobody there, and one that nobody knows.
    let mut nobody = world.databases[1].1.clone();
    nobody.dbname("no_such_database");
    let gone = [world.databases[0].clone(), ("p1".to_owned(), nobody.clone()), ("p2".to_owned(), nobody)];
    let installation = Installation::open(&gone, &settings()).await.unwrap();
    let report = verify(&installation, Scope::All, Options::default()).await.unwrap();
    assert_eq!(reasons(&report), ["p1", "p2"]);
    world.end().await;
}

#[tokio::test]
async fn a_run_is_found_by_its_first_digits() {
    let world = World::new().await;
    let run = submit(&world).await;
    let control = &world.installation.control;
    let short = &run.simple().to_string()[..8];
    assert_eq!(short.parse::<RunRef>().unwrap().resolve(control).await.unwrap(), run);
    assert_eq!(run.to_string().parse::<RunRef>().unwrap().resolve(control).await.unwrap(), run);
    let twin = Uuid::from_u128(run.as_u128() ^ 1);
    let error = twin.to_string().parse::<RunRef>().unwrap().resolve(control).await.unwrap_err();
    assert!(matches!(error, RunRefError::Unknown(_)), "{error}");
    let text = format!(
        "INSERT INTO runherd.runs (run_id, request_digest, queue, shard_count, creation_token, creation_expires_at) \
        SELECT '{twin}', request_digest, queue, shard_count, creation_token, creation_expires_at FROM runherd.runs"
    );
    run_sql(&world.control, &text).await;
    let error = short.parse::<RunRef>().unwrap().resolve(control).await.unwrap_err();
    assert!(matches!(error, RunRefError::Ambiguous(..)), "{error}");
    world.end().await;
}
