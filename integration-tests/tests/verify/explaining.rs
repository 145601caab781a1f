//! `runherd explain`: each step of a run's life has its own finding.

use runherd::explain::{Bearing, BrokerView, Finding, findings, needs_broker};
use runherd::store::explain::{Facts, read};
use runherd::store::verify::Installation;
use uuid::Uuid;

use crate::life::{
    Books, advance, finish, hand_out, lease, one, open, publish_all, run_sql, seed, settings, start, submit, work,
};

async fn facts(books: &Books, run: Uuid) -> Facts {
    read(&books.installation, run).await.unwrap().unwrap()
}

/// The first finding on a run, if nothing is seen to move.
async fn first(books: &Books, run: Uuid) -> Finding {
    findings(&facts(books, run).await, false, &BrokerView::Connected).remove(0)
}

async fn assert_first(books: &Books, run: Uuid, code: &str, bearing: Bearing) -> Finding {
    let finding = first(books, run).await;
    assert_eq!((finding.code, finding.bearing), (code, bearing), "{finding:#?}");
    finding
}

const COORDINATOR: &str =
    "INSERT INTO runherd.coordinators (coordinator_id, host, version) VALUES (gen_random_uuid(), 'h', '1')";

#[tokio::test]
async fn each_step_of_a_run_has_its_own_finding() {
    use Bearing::{Blocks, Fine, Waits};
    let books = Books::new("each_step_of_a_run_has_its_own_finding").await;
    let header = serde_json::json!({ "queue": "q" });
    let begun = "SELECT run_id FROM runherd.begin_run($1, NULL, '1 min')";
    let unsealed: Uuid = one(&books.control, begun, &[&header]).await.get(0);
    assert_first(&books, unsealed, "no_coordinator", Blocks).await;
    run_sql(&books.control, COORDINATOR).await;
    assert_first(&books, unsealed, "unsealed", Waits).await;
    run_sql(&books.control, "UPDATE runherd.runs SET creation_expires_at = now() - interval '1 min'").await;
    assert_first(&books, unsealed, "unsealed", Blocks).await;

    let run = submit(&books).await;
    let seeding = assert_first(&books, run, "seeding", Waits).await;
    assert_eq!(seeding.facts[1], "p1: 0 of 6 chunks are there");
    seed(&books, run).await;
    assert_first(&books, run, "opening", Waits).await;
    open(&books, run).await;
    assert_first(&books, run, "events_pending", Waits).await;
    publish_all(&books).await;
    run_sql(&books.control, "UPDATE runherd.dispatch_cursors SET next_dispatch_at = now() - interval '1 min'").await;
    let stalled = assert_first(&books, run, "not_dispatched", Blocks).await;
    assert!(stalled.facts[0].ends_with("6 chunks to hand out"), "{stalled:?}");
    start(&books, run).await;
    publish_all(&books).await;
    run_sql(&books.control, "UPDATE runherd.dispatch_cursors SET next_dispatch_at = now()").await;
    hand_out(&books, run, 0, 4).await;
    let before = facts(&books, run).await;
    assert!(needs_broker(&before));
    assert_first(&books, run, "events_pending", Waits).await;
    publish_all(&books).await;
    assert_first(&books, run, "unleased", Waits).await;
    run_sql(&books.placement, "UPDATE runherd.outbox_events SET published_at = now() - interval '1 min'").await;
    assert_first(&books, run, "no_worker", Blocks).await;
    lease(&books, run, 0, Uuid::new_v4()).await;
    assert_ne!(before.progress(), facts(&books, run).await.progress(), "a lease is progress");
    run_sql(
        &books.placement,
        "UPDATE runherd.active_chunks SET expires_at = now() - interval '1 min' WHERE chunk_no = 0",
    )
    .await;
    let findings_now = findings(&facts(&books, run).await, false, &BrokerView::Connected);
    assert!(findings_now.iter().any(|f| f.code == "leases_expired" && f.bearing == Blocks), "{findings_now:#?}");
    let full = findings_now.iter().find(|f| f.code == "window_full").unwrap();
    assert_eq!(full.facts[0], "4 of 4 in flight on shard 0");
    assert!(full.facts[1].starts_with("chunk 0/0, leased by w for "), "{full:?}");
    run_sql(
        &books.placement,
        "UPDATE runherd.active_chunks SET lease_token = NULL, expires_at = NULL, leased_at = NULL",
    )
    .await;
    for chunk in 0..4 {
        work(&books, run, chunk, chunk != 1).await;
    }
    advance(&books, run).await;
    finish(&books, run, 4, 6).await;
    let ended = assert_first(&books, run, "ended", Fine).await;
    assert!(
        ended.summary.contains("the run ended as failed at 2") && ended.summary.contains("1 chunks failed"),
        "{ended:?}"
    );
    assert_eq!(ended.facts, ["5 succeeded, 1 failed, 0 cancelled, 0 lost"]);
}

#[tokio::test]
async fn what_an_operator_or_a_failure_did_is_found() {
    use Bearing::{Blocks, Waits};
    let books = Books::new("what_an_operator_or_a_failure_did_is_found").await;
    run_sql(&books.control, COORDINATOR).await;
    let run = submit(&books).await;
    seed(&books, run).await;
    open(&books, run).await;
    start(&books, run).await;
    hand_out(&books, run, 0, 2).await;

    let parked = "UPDATE runherd.outbox_events SET status = 'parked'; UPDATE runherd.outbox_delivery_queue \
        SET attempts = 20, parked_at = now(), last_error = 'NO_ROUTE'";
    run_sql(&books.placement, parked).await;
    publish_all_of_control(&books).await;
    let finding = assert_first(&books, run, "events_parked", Blocks).await;
    assert_eq!(finding.facts, ["last error: NO_ROUTE"]);

    one(&books.control, "SELECT runherd.pause_run($1)", &[&run]).await;
    let finding = assert_first(&books, run, "intent_waiting", Waits).await;
    assert!(
        finding.summary.starts_with("a pause was asked for") && finding.facts[0].contains("postgres"),
        "{finding:?}"
    );
    run_sql(&books.control, "DELETE FROM runherd.run_intents; UPDATE runherd.runs SET paused = true").await;
    assert_first(&books, run, "paused", Blocks).await;
    run_sql(&books.control, "UPDATE runherd.runs SET paused = false").await;

    run_sql(&books.placement, "UPDATE runherd.run_guards SET status = 'cancelled', outcome = 'failed'").await;
    let finding = assert_first(&books, run, "guard_closed", Blocks).await;
    assert_eq!(finding.facts, ["the outcome that was meant: failed"]);
    run_sql(&books.placement, "DELETE FROM runherd.run_guards").await;
    assert_first(&books, run, "guard_missing", Blocks).await;

    let mut gone = books.databases.clone();
    gone[1].1.dbname("no_such_database");
    for (databases, code) in [(&books.databases[..1], "placement_not_configured"), (&gone[..], "placement_down")] {
        let installation = Installation::open(databases, &settings()).await.unwrap();
        let facts = read(&installation, run).await.unwrap().unwrap();
        assert_eq!(findings(&facts, false, &BrokerView::NotAsked)[0].code, code);
    }
    assert_eq!(read(&books.installation, Uuid::nil()).await.unwrap(), None);
}

/// Publishes the run's own events only.
async fn publish_all_of_control(books: &Books) {
    let text = "DELETE FROM runherd.outbox_delivery_queue; UPDATE runherd.outbox_events \
        SET status = 'published', published_at = now(), proof = 'confirmed'";
    run_sql(&books.control, text).await;
}
