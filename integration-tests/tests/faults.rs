//! Faults that must be survived: killed coordinators and workers, stopped servers, lost bindings. After each, the run ends by
//! itself, `verify` passes, and no outcome is counted twice.

use runherd_actors::model::RunId;
use runherd_integration_tests::herd::{Echo, Herd, LIMIT};
use runherd_integration_tests::{PrivatePostgres, PrivateRabbit, Servers, World, until};

const SUCCEEDED: &str = "SELECT count(*) FROM runherd.chunks WHERE status = 'succeeded'";

/// The run succeeded with exactly this many outcomes, of so many in all runs, and the books are in order.
async fn assert_complete(herd: &Herd, run: RunId, chunks: i64, of_all: i64) {
    assert_eq!(herd.ended(run).await, "succeeded");
    assert_eq!(herd.number(&format!("SELECT succeeded FROM runherd.runs WHERE run_id = '{run}'")).await, chunks);
    assert_eq!(herd.number(SUCCEEDED).await, of_all);
    let finished = format!("SELECT count(*) FROM runherd.outbox_events WHERE dedupe_key = 'run/{run}/finished'");
    assert_eq!(herd.number(&finished).await, 1);
    herd.verify().await;
}

#[tokio::test]
async fn a_coordinator_is_killed_in_the_middle_of_a_run() {
    let herd = Herd::new("a_coordinator_is_killed").await;
    let mut first = herd.coordinator("coordinator-1");
    let worker = herd.worker(Echo::default());
    let run = herd.submit(20_000, &["--shards", "4", "--window", "400"]).await;
    herd.until_number(SUCCEEDED, 2_000).await;
    first.kill();
    let done = herd.number(SUCCEEDED).await;
    assert!(done < 20_000, "the run was over before the kill");
    let _second = herd.coordinator("coordinator-2");
    assert_complete(&herd, run, 20_000, 20_000).await;
    worker.drain().await;
}

#[tokio::test]
async fn a_worker_is_killed_while_it_holds_leases() {
    let herd = Herd::new("a_worker_is_killed").await;
    let _coordinator = herd.coordinator("coordinator");
    let run = herd.submit(300, &["--shards", "2"]).await;
    let command = ["worker", "--queue", "q", "--concurrency", "8", "--lease-ttl", "2s", "--", "sleep", "600"];
    let mut stuck = herd.launch("stuck", &command).start();
    herd.until_number("SELECT count(*) FROM runherd.active_chunks WHERE lease_token IS NOT NULL", 8).await;
    stuck.kill();
    let worker = herd.worker(Echo::default());
    assert_complete(&herd, run, 300, 300).await;
    let recovered = herd.number("SELECT count(*) FROM runherd.chunks WHERE recoveries > 0").await;
    assert!(recovered >= 8, "{recovered} chunks say that they were recovered");
    worker.drain().await;
}

#[tokio::test]
async fn rabbitmq_is_down_for_the_length_of_a_dispatch() {
    let rabbit = PrivateRabbit::up("rabbitmq_is_down").await;
    let world = World::on("rabbitmq_is_down", Servers::from_env().with_rabbit(&rabbit)).await;
    let herd = Herd::in_world(world, &[]).await;
    let _coordinator = herd.coordinator("coordinator");
    // The stages are up and the broker was there.
    let first = herd.submit(10, &[]).await;
    herd.until_number("SELECT count(*) FROM runherd.outbox_events WHERE status = 'published'", 10).await;
    // Stopped, not killed: a quorum queue that was declared within seconds of a kill may lose its process, and RabbitMQ 3.10
    // then confirms nothing for it for ever.
    rabbit.stop().await;
    let second = herd.submit(3_000, &["--shards", "2", "--window", "5000"]).await;
    // Everything but the publishers goes on: the run starts, and all of it is handed out.
    let handed_out = format!("SELECT count(*) FROM runherd.active_chunks WHERE run_id = '{second}'");
    herd.until_number(&handed_out, 3_000).await;
    let pending = herd.number("SELECT count(*) FROM runherd.outbox_delivery_queue").await;
    assert!(pending >= 3_000, "{pending} events wait");
    assert_eq!(
        herd.number("SELECT count(*) FROM runherd.outbox_delivery_queue WHERE attempts > 0").await,
        0,
        "an outage is no attempt"
    );
    rabbit.start().await;
    let worker = herd.worker(Echo::default());
    assert_eq!(herd.ended(first).await, "succeeded");
    assert_eq!(herd.ended(second).await, "succeeded");
    until("the outbox to drain", LIMIT, async || {
        (herd.number("SELECT count(*) FROM runherd.outbox_delivery_queue").await == 0).then_some(())
    })
    .await;
    worker.drain().await;
    herd.verify().await;
}

#[tokio::test]
async fn postgresql_restarts_in_the_middle_of_a_run() {
    let postgres = PrivatePostgres::up("postgresql_restarts").await;
    let world = World::on("postgresql_restarts", Servers::from_env().with_postgres(&postgres)).await;
    let herd = Herd::in_world(world, &[]).await;
    let mut coordinator = herd.coordinator("coordinator");
    let worker = herd.worker(Echo::default());
    let run = herd.submit(20_000, &["--shards", "4", "--window", "400"]).await;
    herd.until_number(SUCCEEDED, 2_000).await;
    postgres.kill().await;
    postgres.start().await;
    assert_complete(&herd, run, 20_000, 20_000).await;
    assert_eq!(coordinator.exit_status(), None, "an unreachable database ends no coordinator");
    assert!(!coordinator.stderr().contains("\"stage restarted\""), "an unreachable database restarts no stage");
    worker.drain().await;
}

#[tokio::test]
async fn a_lost_binding_returns_events_and_comes_back_by_itself() {
    let herd = Herd::new("a_lost_binding").await;
    // One publisher, which has declared the queue: a second one would declare it for itself before its first event.
    let serve = ["serve", "--set", "outbox_publisher.publishers=1"];
    let mut coordinator = herd.launch("coordinator", &serve).start();
    let first = herd.submit(5, &[]).await;
    herd.until_number(
        "SELECT count(*) FROM runherd.outbox_events WHERE kind = 'chunk.ready' AND status = 'published'",
        5,
    )
    .await;
    herd.world.rabbit().delete_binding("runherd", "runherd.chunks.q", "chunk.ready.q").await;
    let second = herd.submit(20, &[]).await;
    coordinator.wait_for_line("\"pushed_back\":", LIMIT).await;
    let worker = herd.worker(Echo::default());
    assert_eq!(herd.ended(first).await, "succeeded");
    assert_complete(&herd, second, 20, 25).await;
    worker.drain().await;
}

#[tokio::test]
async fn a_frozen_coordinator_changes_nothing_when_it_wakes() {
    let herd = Herd::new("a_frozen_coordinator").await;
    let mut zombie = herd.coordinator("zombie");
    let worker = herd.worker(Echo::default());
    let run = herd.submit(20_000, &["--shards", "4", "--window", "400"]).await;
    herd.until_number(SUCCEEDED, 1_000).await;
    zombie.stop();
    // Its leases run out and the other one takes over; idle transactions of the frozen one are ended by their time-out.
    let _second = herd.coordinator("coordinator");
    herd.until_number(SUCCEEDED, 15_000).await;
    zombie.cont();
    assert_complete(&herd, run, 20_000, 20_000).await;
    worker.drain().await;
}

#[tokio::test]
async fn a_second_sigterm_leaves_at_once() {
    let rabbit = PrivateRabbit::up("a_second_sigterm").await;
    let world = World::on("a_second_sigterm", Servers::from_env().with_rabbit(&rabbit)).await;
    let herd = Herd::in_world(world, &[]).await;
    // A drain that nothing but the second signal can end while the broker is frozen.
    let patient = [
        ["--set", "broker.confirm_deadline=5m"],
        ["--set", "outbox_publisher.lease=10m"],
        ["--set", "runtime.drain_grace=30m"],
    ];
    let serve = [&["serve"], patient.as_flattened()].concat();
    let mut coordinator = herd.launch("coordinator", &serve).start();
    herd.submit(5, &[]).await;
    herd.until_number(
        "SELECT count(*) FROM runherd.outbox_events WHERE kind = 'chunk.ready' AND status = 'published'",
        5,
    )
    .await;
    rabbit.pause().await;
    herd.submit(5, &[]).await;
    herd.until_number("SELECT count(*) FROM runherd.outbox_delivery_queue WHERE claimed_until > now()", 1).await;
    coordinator.term();
    coordinator.wait_for_line("drain begins", LIMIT).await;
    coordinator.term();
    assert_eq!(coordinator.wait(LIMIT).await.code(), Some(75), "{}", coordinator.stderr());
    assert!(coordinator.stderr().contains("drain is cut short"), "{}", coordinator.stderr());
    rabbit.resume().await;
}
