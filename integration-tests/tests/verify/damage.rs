//! `runherd verify`: each kind of damage is reported under its own invariant, with the key of what was damaged.

use runherd::verify::{Invariant, Scope};
use uuid::Uuid;

use crate::life::{Books, ended, hand_out, run_sql, running};

/// Where damage is done.
#[derive(Clone, Copy, Debug)]
enum At {
    Control,
    Placement,
}

/// Where, what, how to undo it, and what is to be reported.
type Damage = (At, String, &'static str, &'static [(Invariant, &'static str)]);

/// Does the damage, and expects exactly these violations; then undoes it, and expects none. `{run}` in a text is the run.
async fn damage(books: &Books, run: Uuid, at: At, text: &str, undo: &str, expected: &[(Invariant, &str)]) {
    let client = match at {
        At::Control => &books.control,
        At::Placement => &books.placement,
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
        let report = books.verify(scope).await;
        let mut found: Vec<(Invariant, String)> =
            report.violations.iter().map(|violation| (violation.invariant, violation.key.clone())).collect();
        found.sort();
        assert_eq!(found, wanted, "{text} {scope:?}: {report:#?}");
        assert!(report.unchecked.is_empty());
    }
    run_sql(client, &put(undo)).await;
    books.assert_ok(run, &format!("undone: {text}")).await;
}

#[tokio::test]
async fn each_damage_to_the_chunks_of_a_live_run_is_reported() {
    use At::Placement;
    use Invariant::{I1, I3};
    let books = Books::new("each_damage_to_the_chunks_of_a_live_run_is_reported").await;
    let run = running(&books).await;
    books.assert_ok(run, "before").await;
    let keep = "CREATE TABLE kept AS SELECT * FROM runherd.";
    let cases: &[Damage] = &[
        // I1: a chunk that is gone, at the end and in the middle.
        (
            Placement,
            format!("{keep}chunks WHERE chunk_no = 5; DELETE FROM runherd.chunks WHERE chunk_no = 5"),
            "INSERT INTO runherd.chunks SELECT * FROM kept; DROP TABLE kept",
            &[(I1, "{run}/0")],
        ),
        (
            Placement,
            "UPDATE runherd.chunks SET chunk_no = 7 WHERE chunk_no = 5".into(),
            "UPDATE runherd.chunks SET chunk_no = 5 WHERE chunk_no = 7",
            &[(I1, "{run}/0")],
        ),
        (
            Placement,
            "UPDATE runherd.seeded_parts SET chunk_count = 5".into(),
            "UPDATE runherd.seeded_parts SET chunk_count = 6",
            &[(I1, "{run}/0")],
        ),
        // I1: an open chunk that was handed out and that nobody would ever look at again.
        (
            Placement,
            format!("{keep}active_chunks WHERE chunk_no = 3; DELETE FROM runherd.active_chunks WHERE chunk_no = 3"),
            "INSERT INTO runherd.active_chunks SELECT * FROM kept; DROP TABLE kept",
            &[(I1, "{run}/0/3")],
        ),
        // I1: active before it was handed out; active and not there.
        (
            Placement,
            "INSERT INTO runherd.active_chunks (run_shard, run_id, chunk_no, event_id) VALUES (0, '{run}', 5, 1)"
                .into(),
            "DELETE FROM runherd.active_chunks WHERE chunk_no = 5",
            &[(I1, "{run}/0/5")],
        ),
        (
            Placement,
            "INSERT INTO runherd.active_chunks (run_shard, run_id, chunk_no, event_id) VALUES (0, '{run}', 9, 1)"
                .into(),
            "DELETE FROM runherd.active_chunks WHERE chunk_no = 9",
            &[(I1, "{run}/0/9")],
        ),
        // I3.
        (
            Placement,
            "INSERT INTO runherd.active_chunks (run_shard, run_id, chunk_no, event_id) VALUES (0, '{run}', 0, 1)"
                .into(),
            "DELETE FROM runherd.active_chunks WHERE chunk_no = 0",
            &[(I3, "{run}/0/0")],
        ),
    ];
    for (at, text, undo, expected) in cases {
        damage(&books, run, *at, text, undo, expected).await;
    }
}

#[tokio::test]
async fn each_wrong_count_of_a_live_run_is_reported() {
    use At::{Control, Placement};
    use Invariant::{I1, I2, I5};
    let books = Books::new("each_wrong_count_of_a_live_run_is_reported").await;
    let run = running(&books).await;
    books.assert_ok(run, "before").await;
    // Constraints that would keep the damage from being done; what verify looks for is what gets past them.
    run_sql(&books.control, "ALTER TABLE runherd.runs DROP CONSTRAINT runs_check1").await;
    run_sql(&books.placement, "ALTER TABLE runherd.shard_positions DROP CONSTRAINT shard_positions_check1").await;
    let keep = "CREATE TABLE kept AS SELECT * FROM runherd.";
    let cases: &[Damage] = &[
        // I1: counted wrong.
        (
            Placement,
            "UPDATE runherd.shard_positions SET succeeded = 2, failed = 0".into(),
            "UPDATE runherd.shard_positions SET succeeded = 1, failed = 1",
            &[(I1, "{run}/0")],
        ),
        (
            Control,
            "UPDATE runherd.dispatch_cursors SET chunk_count = 5 WHERE run_shard = 0; \
            UPDATE runherd.runs SET chunk_count = 5; UPDATE runherd.run_placements SET expected_chunks = 5"
                .into(),
            "UPDATE runherd.dispatch_cursors SET chunk_count = 6 WHERE run_shard = 0; \
            UPDATE runherd.runs SET chunk_count = 6; UPDATE runherd.run_placements SET expected_chunks = 6",
            &[(I1, "{run}/0")],
        ),
        (
            Control,
            "UPDATE runherd.runs SET chunk_count = 7".into(),
            "UPDATE runherd.runs SET chunk_count = 6",
            &[(I1, "{run}")],
        ),
        (
            Control,
            format!("{keep}dispatch_cursors; DELETE FROM runherd.dispatch_cursors WHERE run_shard = 1"),
            "INSERT INTO runherd.dispatch_cursors (run_id, run_shard, placement_id, chunk_count, status) \
            SELECT run_id, run_shard, placement_id, chunk_count, status FROM kept WHERE run_shard = 1; DROP TABLE kept",
            &[(I1, "{run}")],
        ),
        // I2.
        (
            Control,
            "UPDATE runherd.run_placements SET seeded_at = NULL".into(),
            "UPDATE runherd.run_placements SET seeded_at = now()",
            &[(I2, "{run}")],
        ),
        (
            Control,
            "UPDATE runherd.runs SET sealed_at = NULL".into(),
            "UPDATE runherd.runs SET sealed_at = now()",
            &[(I2, "{run}")],
        ),
        // I5.
        (
            Placement,
            "UPDATE runherd.run_guards SET dispatch_window = 1".into(),
            "UPDATE runherd.run_guards SET dispatch_window = 4",
            &[(I5, "{run}/0")],
        ),
    ];
    for (at, text, undo, expected) in cases {
        damage(&books, run, *at, text, undo, expected).await;
    }
}

#[tokio::test]
async fn each_wrong_ending_in_a_live_run_is_reported() {
    use At::{Control, Placement};
    use Invariant::{I4, I6};
    let books = Books::new("each_wrong_ending_in_a_live_run_is_reported").await;
    let run = running(&books).await;
    books.assert_ok(run, "before").await;
    let keep = "CREATE TABLE kept AS SELECT * FROM runherd.";
    let cases: &[Damage] = &[
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
        // I6: a run that was announced as finished and is not.
        (Control, "INSERT INTO runherd.outbox_events (outbox_shard, event_id, dedupe_key, kind, routing_key, headers, payload, \
            status, published_at, proof) VALUES (0, 999999, 'run/{run}/finished', 'x', 'x', '{}', '{}', 'published', now(), 'y')".into(),
            "DELETE FROM runherd.outbox_events WHERE event_id = 999999", &[(I6, "{run}")]),
    ];
    for (at, text, undo, expected) in cases {
        damage(&books, run, *at, text, undo, expected).await;
    }
}

#[tokio::test]
async fn each_damage_to_an_ended_run_is_reported() {
    use At::{Control, Placement};
    use Invariant::{I1, I6};
    let books = Books::new("each_damage_to_an_ended_run_is_reported").await;
    let run = ended(&books).await;
    books.assert_ok(run, "before").await;
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
        damage(&books, run, *at, text, undo, expected).await;
    }
    // Retention takes the positions first; from then on the run is being removed here, and that is no damage.
    run_sql(&books.placement, "DELETE FROM runherd.shard_positions").await;
    books.assert_ok(run, "positions removed").await;
    run_sql(&books.placement, "DELETE FROM runherd.chunks WHERE chunk_no < 3").await;
    books.assert_ok(run, "half removed").await;
}

#[tokio::test]
async fn each_damage_to_an_outbox_is_reported() {
    use At::{Control, Placement};
    use Invariant::{I7, I8};
    let books = Books::new("each_damage_to_an_outbox_is_reported").await;
    let run = running(&books).await;
    hand_out(&books, run, 4, 1).await;
    books.assert_ok(run, "one event waits").await;
    run_sql(&books.placement, "ALTER TABLE runherd.outbox_events DROP CONSTRAINT outbox_events_check").await;
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
        damage(&books, run, *at, text, undo, expected).await;
    }
}
