//! The main job, end to end: submitted, seeded, handed out, worked on and finished, with real processes and servers.

use runherd_integration_tests::herd::{Echo, Herd, LIMIT};
use runherd_integration_tests::{World, until};

#[tokio::test]
async fn a_run_goes_from_submission_to_its_end() {
    let herd = Herd::new("a_run_goes_from_submission_to_its_end").await;
    let _coordinator = herd.coordinator("coordinator");
    let (first, second) = (herd.worker(Echo::default()), herd.worker(Echo::default()));
    let lines: Vec<String> = (0..3_500).map(|n| format!("{{ \"n\":{n},  \"text\": \"line é {n}\" }}")).collect();
    let file = herd.file("chunks.ndjson", &(lines.join("\n") + "\n"));
    let run = herd
        .succeed(&[
            "submit",
            "--queue",
            "q",
            "--shards",
            "3",
            "--name",
            "job",
            "--wait",
            "--chunks",
            file.to_str().expect("a path"),
        ])
        .await;
    let run = run.lines().next().expect("submit prints the run");

    // Outcomes come back in order, as they were given: the handler echoes the payload.
    let results = herd.succeed(&["results", run]).await;
    let mut found: Vec<&str> = results
        .lines()
        .map(|line| {
            let (_, rest) = line.split_once("\"outcome\":").expect("an outcome");
            rest.rsplit_once(",\"error\":null").expect("no error").0
        })
        .collect();
    found.sort_unstable();
    let mut expected: Vec<&str> = lines.iter().map(String::as_str).collect();
    expected.sort_unstable();
    assert_eq!(found, expected);

    let status: serde_json::Value =
        serde_json::from_str(&herd.succeed(&["--json", "status", run]).await).expect("status prints JSON");
    assert_eq!(status["status"], "succeeded");
    let published = format!(
        "SELECT count(*) FROM runherd.outbox_events WHERE dedupe_key LIKE 'run/{run}/%' AND status = 'published'"
    );
    assert_eq!(herd.until_number(&published, 3).await, 3, "pending, started and finished are published");
    first.drain().await;
    second.drain().await;
    herd.verify().await;
}

#[tokio::test]
async fn an_empty_run_succeeds_at_once() {
    let herd = Herd::new("an_empty_run_succeeds_at_once").await;
    let _coordinator = herd.coordinator("coordinator");
    let run = herd.submit(0, &[]).await;
    assert_eq!(herd.ended(run).await, "succeeded");
    herd.verify().await;
}

#[tokio::test]
async fn failures_fail_the_run_unless_they_are_tolerated() {
    let herd = Herd::new("failures_fail_the_run_unless").await;
    let _coordinator = herd.coordinator("coordinator");
    let _worker = herd
        .launch("worker", &["worker", "--queue", "q", "--concurrency", "4", "--", "sh", "-c"])
        .arg("case \"$RUNHERD_PAYLOAD\" in *'\"start\":3,'*) echo no good >&2; exit 65;; *) echo '{\"fine\": true}';; esac")
        .start();
    let failed = herd.submit(10, &["--shards", "2"]).await;
    let tolerated = herd.submit(10, &["--shards", "2", "--tolerated-failures", "1"]).await;
    assert_eq!(herd.ended(failed).await, "failed");
    assert_eq!(herd.ended(tolerated).await, "succeeded");
    let failures = herd.succeed(&["results", &failed.to_string(), "--status", "failed"]).await;
    assert_eq!(failures.lines().count(), 1);
    assert!(failures.contains("no good"), "{failures}");
    herd.verify().await;
}

#[tokio::test]
async fn two_coordinators_share_two_placements() {
    let world = World::new("two_coordinators_share_two_placements").await;
    let herd = Herd::in_world(world, &["p2"]).await;
    let _coordinators = [herd.coordinator("coordinator-1"), herd.coordinator("coordinator-2")];
    let worker = herd.worker(Echo::default());
    let run = herd.submit(20_000, &["--shards", "16"]).await;
    assert_eq!(herd.ended(run).await, "succeeded");
    let placements = format!(
        "SELECT count(DISTINCT placement_id) FROM runherd.dispatch_cursors WHERE run_id = '{run}' AND chunk_count > 0"
    );
    assert_eq!(herd.number(&placements).await, 2, "sixteen shards lie on both placements");
    worker.drain().await;
    herd.verify().await;
}

#[tokio::test]
async fn a_cancelled_run_stops_in_the_middle() {
    let herd = Herd::new("a_cancelled_run_stops_in_the_middle").await;
    let _coordinator = herd.coordinator("coordinator");
    // Nobody works: what is handed out stays open until the sweep.
    let run = herd.submit(5_000, &["--window", "100"]).await;
    herd.until_number("SELECT count(*) FROM runherd.active_chunks", 1).await;
    let id = run.to_string();
    let cancelled = herd.succeed(&["cancel", &id, "--reason", "changed my mind", "--wait"]).await;
    assert!(cancelled.contains("changed my mind"), "{cancelled}");
    let watch = herd.run(&["watch", &id]).await;
    assert_eq!(watch.status.code(), Some(3), "{}", String::from_utf8_lossy(&watch.stderr));
    assert_eq!(herd.number("SELECT count(*) FROM runherd.active_chunks").await, 0);
    let again = herd.run(&["cancel", &id]).await;
    assert_eq!(again.status.code(), Some(65), "a run that has ended cannot be cancelled");
    herd.verify().await;
}

#[tokio::test]
async fn a_paused_run_hands_nothing_out_until_it_is_resumed() {
    let herd = Herd::new("a_paused_run_hands_nothing_out").await;
    let run = herd.submit(2_000, &["--window", "50", "--shards", "2"]).await;
    let id = run.to_string();
    herd.succeed(&["pause", &id]).await;
    let _coordinator = herd.coordinator("coordinator");
    herd.until_number("SELECT count(*) FROM runherd.runs WHERE paused AND status = 'pending'", 1).await;
    let explained = herd.succeed(&["explain", &id]).await;
    assert!(explained.contains("paused"), "{explained}");
    assert_eq!(herd.number("SELECT count(*) FROM runherd.active_chunks").await, 0);
    let _worker = herd.worker(Echo::default());
    herd.succeed(&["resume", &id]).await;
    assert_eq!(herd.ended(run).await, "succeeded");
    herd.verify().await;
}

#[tokio::test]
async fn sigterm_drains_and_the_next_coordinator_goes_on() {
    let herd = Herd::new("sigterm_drains").await;
    let mut first = herd.coordinator("coordinator-1");
    let run = herd.submit(20_000, &["--window", "500"]).await;
    let worker = herd.worker(Echo::default());
    herd.until_number("SELECT count(*) FROM runherd.chunks WHERE status = 'succeeded'", 500).await;
    first.term();
    let status = first.wait(LIMIT).await;
    assert_eq!(status.code(), Some(0), "drained; {}", first.stderr());
    let left = until("the coordinator to withdraw", LIMIT, async || {
        (herd.number("SELECT count(*) FROM runherd.coordinators").await == 0).then_some(())
    });
    left.await;
    let _second = herd.coordinator("coordinator-2");
    assert_eq!(herd.ended(run).await, "succeeded");
    worker.drain().await;
    herd.verify().await;
}
