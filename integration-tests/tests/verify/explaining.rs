//! `runherd explain`: each step of a run's life has its own finding.

use runherd::explain::{Bearing, BrokerView, Finding, findings, needs_broker};
use runherd::store::explain::{Facts, read};
use runherd::store::verify::Installation;
use uuid::Uuid;

use crate::life::{
    World, advance, finish, hand_out, lease, one, open, publish_all, run_sql, seed, settings, start, submit, work,
};

async fn facts(world: &World, run: Uuid) -> Facts {
    read(&world.installation, run).await.unwrap().unwrap()
}

/// The first finding on a run, if nothing is seen to move.
async fn first(world: &World, run: Uuid) -> Finding {
    findings(&facts(world, run).await, false, &BrokerView::Connected).remove(0)
}

async fn assert_first(world: &World, run: Uuid, code: &str, bearing: Bearing) -> Finding {
    let finding = first(world, run).await;
    assert_eq!((finding.code, finding.bearing), (code, bearing), "{finding:#?}");
    finding
}

const COORDINATOR: &str =
    "INSERT INTO runherd.coordinators (coordinator_id, host, version) VALUES (gen_random_uuid(), 'h', '1')";

#[tokio::test]
async fn each_step_of_a_run_has_its_own_finding() {
    use Bearing::{Blocks, Fine, Waits};
    let world = World::new().await;
    let header = serde_json::json!({ "queue": "q" });
    let begun = "SELECT run_id FROM runherd.begin_run($1, NULL, '1 min')";
    let unsealed: Uuid = one(&world.control, begun, &[&header]).await.get(0);
    assert_first(&world, unsealed, "no_coordinator", Blocks).await;
    run_sql(&world.control, COORDINATOR).await;
    assert_first(&world, unsealed, "unsealed", Waits).await;
    run_sql(&world.control, "UPDATE runherd.runs SET creation_expires_at = now() - interval '1 min'").await;
    assert_first(&world, unsealed, "unsealed", Blocks).await;

    let run = submit(&world).await;
    let seeding = assert_first(&world, run, "seeding", Waits).await;
    assert_eq!(seeding.facts[1], "p1: 0 of 6 chunks are there");
    seed(&world, run).await;
    assert_first(&world, run, "opening", Waits).await;
    open(&world, run).await;
    assert_first(&world, run, "events_pending", Waits).await;
    publish_all(&world).await;
    run_sql(&world.control, "UPDATE runherd.dispatch_cursors SET next_dispatch_at = now() - interval '1 min'").await;
    let stalled = assert_first(&world, run, "not_dispatched", Blocks).await;
    assert!(stalled.facts[0].ends_with("6 chunks to hand out"), "{stalled:?}");
    start(&world, run).await;
    publish_all(&world).await;
    run_sql(&world.control, "UPDATE runherd.dispatch_cursors SET next_dispatch_at = now()").await;
    hand_out(&world, run, 0, 4).await;
    let before = facts(&world, run).await;
    assert!(needs_broker(&before));
    assert_first(&world, run, "events_pending", Waits).await;
    publish_all(&world).await;
    assert_first(&world, run, "unleased", Waits).await;
    run_sql(&world.placement, "UPDATE runherd.outbox_events SET published_at = now() - interval '1 min'").await;
    assert_first(&world, run, "no_worker", Blocks).await;
    lease(&world, run, 0, Uuid::new_v4()).await;
    assert_ne!(before.progress(), facts(&world, run).await.progress(), "a lease is progress");
    run_sql(
        &world.placement,
        "UPDATE runherd.active_chunks SET expires_at = now() - interval '1 min' WHERE chunk_no = 0",
    )
    .await;
    let findings_now = findings(&facts(&world, run).await, false, &BrokerView::Connected);
    assert!(findings_now.iter().any(|f| f.code == "leases_expired" && f.bearing == Blocks), "{findings_now:#?}");
    let full = findings_now.iter().find(|f| f.code == "window_full").unwrap();
    assert_eq!(full.facts[0], "4 of 4 in flight on shard 0");
    assert!(full.facts[1].starts_with("chunk 0/0, leased by w for "), "{full:?}");
    run_sql(
        &world.placement,
        "UPDATE runherd.active_chunks SET lease_token = NULL, expires_at = NULL, leased_at = NULL",
    )
    .await;
    for chunk in 0..4 {
        work(&world, run, chunk, chunk != 1).await;
    }
    advance(&world, run).await;
    finish(&world, run, 4, 6).await;
    let ended = assert_first(&world, run, "ended", Fine).await;
    assert!(
        ended.summary.contains("the run ended as failed at 2") && ended.summary.contains("1 chunks failed"),
        "{ended:?}"
    );
    assert_eq!(ended.facts, ["5 succeeded, 1 failed, 0 cancelled, 0 lost"]);
    world.end().await;
}

#[tokio::test]
async fn what_an_operator_or_a_failure_did_is_found() {
    use Bearing::{Blocks, Waits};
    let world = World::new().await;
    run_sql(&world.control, COORDINATOR).await;
    let run = submit(&world).await;
    seed(&world, run).await;
    open(&world, run).await;
    start(&world, run).await;
    hand_out(&world, run, 0, 2).await;

    let parked = "UPDATE runherd.outbox_events SET status = 'parked'; UPDATE runherd.outbox_delivery_queue \
        SET attempts = 20, parked_at = now(), last_error = 'NO_ROUTE'";
    run_sql(&world.placement, parked).await;
    publish_all_of_control(&world).await;
    let finding = assert_first(&world, run, "events_parked", Blocks).await;
    assert_eq!(finding.facts, ["last error: NO_ROUTE"]);

    one(&world.control, "SELECT runherd.pause_run($1)", &[&run]).await;
    let finding = assert_first(&world, run, "intent_waiting", Waits).await;
    assert!(
        finding.summary.starts_with("a pause was asked for") && finding.facts[0].contains("postgres"),
        "{finding:?}"
    );
    run_sql(&world.control, "DELETE FROM runherd.run_intents; UPDATE runherd.runs SET paused = true").await;
    assert_first(&world, run, "paused", Blocks).await;
    run_sql(&world.control, "UPDATE runherd.runs SET paused = false").await;

    run_sql(&world.placement, "UPDATE runherd.run_guards SET status = 'cancelled', outcome = 'failed'").await;
    let finding = assert_first(&world, run, "guard_closed", Blocks).await;
    assert_eq!(finding.facts, ["the outcome that was meant: failed"]);
    run_sql(&world.placement, "DELETE FROM runherd.run_guards").await;
    assert_first(&world, run, "guard_missing", Blocks).await;

    let mut gone = world.databases.clone();
    gone[1].1.dbname("no_such_database");
    for (databases, code) in [(&world.databases[..1], "placement_not_configured"), (&gone[..], "placement_down")] {
        let installation = Installation::open(databases, &settings()).await.unwrap();
        let facts = read(&installation, run).await.unwrap().unwrap();
        assert_eq!(findings(&facts, false, &BrokerView::NotAsked)[0].code, code);
    }
    assert_eq!(read(&world.installation, Uuid::nil()).await.unwrap(), None);
    world.end().await;
}

/// Publishes the run's own events only.
async fn publish_all_of_control(world: &World) {
    let text = "DELETE FROM runherd.outbox_delivery_queue; UPDATE runherd.outbox_events \
        SET status = 'published', published_at = now(), proof = 'confirmed'";
    run_sql(&world.control, text).await;
}
