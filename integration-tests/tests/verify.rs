//! `runherd verify` and `runherd explain` against real PostgreSQL: verify passes at every step of a run's life, and each kind of
//! damage is reported under its own invariant, with the key of what was damaged; explain finds each step's own reason.
//!
//! The server is at `RUNHERD_TEST_PG_URL`, as a role that may create databases. Every test has databases of its own.

// The lint's own exception for tests stops at the helpers they share.
#![allow(clippy::unwrap_used)]

#[path = "verify/explaining.rs"]
mod explaining;
#[path = "verify/life.rs"]
mod life;

use life::{
    World, advance, ended, finish, hand_out, one, open, publish_all, run_sql, running, seed, settings, sql, start,
    submit, work,
};
use runherd::cli::run_arg::RunArg;
use runherd::store::client::ClientStore;
use runherd::store::verify::Installation;
use runherd::verify::{Invariant, Options, Report, Scope, verify};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

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

/// Where, what, how to undo it, and what is to be reported.
type Damage = (At, String, &'static str, &'static [(Invariant, &'static str)]);

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
    let cases: &[Damage] = &[
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
    let cases: &[Damage] = &[
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
    let cases: &[Damage] = &[
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

    // A run that is not there.
    let report = world.verify(Scope::Run(Uuid::nil())).await;
    assert_eq!((report.checked.runs, reasons(&report)), (0, vec!["control".to_owned()]));

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
    let store = ClientStore::new(world.installation.control.clone());
    let resolve = async |text: &str| text.parse::<RunArg>().unwrap().resolve(&store).await.map(|run_id| run_id.0);
    let short = &run.simple().to_string()[..8];
    assert_eq!(resolve(short).await.unwrap(), run);
    assert_eq!(resolve(&run.to_string()).await.unwrap(), run);
    let twin = Uuid::from_u128(run.as_u128() ^ 1);
    let error = resolve(&twin.to_string()).await.unwrap_err().to_string();
    assert!(error.contains("no run"), "{error}");
    let text = format!(
        "INSERT INTO runherd.runs (run_id, request_digest, queue, shard_count, creation_token, creation_expires_at) \
        SELECT '{twin}', request_digest, queue, shard_count, creation_token, creation_expires_at FROM runherd.runs"
    );
    run_sql(&world.control, &text).await;
    let error = resolve(short).await.unwrap_err().to_string();
    assert!(error.contains("several runs"), "{error}");
    world.end().await;
}
