//! What a client may ask for and is told: policies, commands, progress.

use std::time::Duration;

use runherd::policy::PolicyOverrides;
use runherd::store::StoreError;
use runherd::store::client::{RunFilter, placement_progress};
use runherd::submission::{Header, SubmitError};
use runherd_actors::model::{RunId, RunStatus};
use serde_json::Value;
use uuid::Uuid;

use crate::fixture::{Desk, request, text};

/// Both ends of every range that the command line accepts are accepted by the server.
#[tokio::test(flavor = "multi_thread")]
async fn the_server_accepts_every_policy_that_is_valid_here() {
    let desk = Desk::new("the_server_accepts_every_policy_that_is_valid_here").await;
    let days = |days: u64| Duration::from_secs(days * 24 * 3600);
    let ms = Duration::from_millis;
    let low = PolicyOverrides {
        window: Some(1),
        chunks_per_event: Some(1),
        max_attempts: Some(1),
        recovery_limit: Some(0),
        release_limit: Some(0),
        retry_delay: Some(ms(0)),
        retry_delay_max: Some(ms(0)),
        lease_ttl_max: Some(ms(100)),
        max_chunk_time: Some(ms(100)),
        redelivery_after: Some(ms(100)),
        redelivery_after_max: Some(ms(100)),
    };
    let high = PolicyOverrides {
        window: Some(1_000_000),
        chunks_per_event: Some(1000),
        max_attempts: Some(1000),
        recovery_limit: Some(1000),
        release_limit: Some(100_000),
        retry_delay: Some(days(1)),
        retry_delay_max: Some(days(7)),
        lease_ttl_max: Some(days(1)),
        max_chunk_time: Some(days(30)),
        redelivery_after: Some(days(1)),
        redelivery_after_max: Some(days(7)),
    };
    for policy in [low, high] {
        let mut request = request(text("1"), None);
        request.header = Header {
            queue: "Q.1_2-3".to_owned(),
            name: Some("a name".to_owned()),
            shards: Some(4096),
            priority: Some(-1000),
            tolerated_failures: Some(0),
            deadline: Some(days(365)),
            policy: policy.clone(),
        };
        let done = desk.submit(request).await.unwrap();
        let run = desk.store.read_run(done.run_id).await.unwrap().unwrap();
        assert_eq!((run.policy, run.priority, run.tolerated_failures), (policy.to_json(), -1000, Some(0)));
        assert!(run.deadline_at.unwrap() > run.created_at + days(364));
    }
    let before: i64 = desk.row("SELECT count(*) FROM runherd.runs").await.get(0);
    let mut wrong = request(text("1"), None);
    wrong.header.shards = Some(4097);
    assert!(matches!(desk.submit(wrong).await.unwrap_err(), SubmitError::Request(_)));
    assert_eq!(desk.row("SELECT count(*) FROM runherd.runs").await.get::<_, i64>(0), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_are_asked_and_refused() {
    let desk = Desk::new("commands_are_asked_and_refused").await;
    let store = &desk.store;
    let refusal = |error: StoreError| match error {
        StoreError::Refused { code, .. } => code,
        other => panic!("{other}"),
    };
    let run_id = desk.submit(request(text("1\n2"), None)).await.unwrap().run_id;
    assert_eq!(refusal(store.resume_run(run_id).await.unwrap_err()), "RH409");
    assert_eq!(store.pause_run(run_id).await.unwrap(), RunStatus::Creating);
    assert_eq!(store.pause_run(run_id).await.unwrap(), RunStatus::Creating);
    assert_eq!(store.read_run(run_id).await.unwrap().unwrap().intents[0].intent, "pause");
    assert_eq!(store.resume_run(run_id).await.unwrap(), RunStatus::Creating);
    assert_eq!(store.cancel_run(run_id, Some("enough")).await.unwrap(), RunStatus::Creating);
    assert_eq!(store.cancel_run(run_id, None).await.unwrap(), RunStatus::Creating);
    let listed = store.list_runs(&RunFilter { limit: 5, ..RunFilter::default() }).await.unwrap();
    assert_eq!((listed.len(), listed[0].intents.as_slice()), (1, &["cancel".to_owned()][..]));
    for (statuses, queue, count) in [
        (vec![RunStatus::Creating, RunStatus::Failed], Some("q"), 1),
        (vec![RunStatus::Failed], None, 0),
        (vec![], Some("other"), 0),
    ] {
        let filter = RunFilter { limit: 5, statuses, queue: queue.map(str::to_owned) };
        assert_eq!(store.list_runs(&filter).await.unwrap().len(), count);
    }
    desk.sql
        .batch_execute("UPDATE runherd.runs SET status = 'cancelled', finished_at = now(), reason = 'enough'")
        .await
        .unwrap();
    assert_eq!(refusal(store.cancel_run(run_id, None).await.unwrap_err()), "RH409");
    assert_eq!(refusal(store.pause_run(run_id).await.unwrap_err()), "RH409");
    let unknown = RunId(Uuid::new_v4());
    assert_eq!(refusal(store.cancel_run(unknown, None).await.unwrap_err()), "RH404");
    assert_eq!(refusal(store.pause_run(unknown).await.unwrap_err()), "RH404");
    assert_eq!(refusal(store.resume_run(unknown).await.unwrap_err()), "RH404");
    assert!(store.read_run(unknown).await.unwrap().is_none());
    assert_eq!(store.find_runs(Uuid::nil(), Uuid::max()).await.unwrap(), [run_id]);
}

/// Two shards of 100 chunks: one is drained; of the other 60 are handed out, 10 of these active, and some have failed.
#[tokio::test(flavor = "multi_thread")]
async fn progress_is_counted_from_positions_and_active_chunks() {
    let desk = Desk::new("progress_is_counted_from_positions_and_active_chunks").await;
    let run_id = RunId(Uuid::new_v4());
    let fill = format!(
        "INSERT INTO runherd.run_guards (run_id, status) VALUES ('{run_id}', 'open');
         INSERT INTO runherd.shard_positions (run_id, run_shard, chunk_count, next_chunk_no, low_chunk_no, drained_at, succeeded, failed)
         VALUES ('{run_id}', 0, 100, 100, 100, now(), 98, 2), ('{run_id}', 1, 100, 60, 30, NULL, 29, 1);
         INSERT INTO runherd.active_chunks (run_shard, run_id, chunk_no, event_id, lease_token, expires_at)
         SELECT 1, '{run_id}', 30 + k, k, CASE WHEN k < 4 THEN gen_random_uuid() END, CASE WHEN k < 4 THEN now() END
         FROM generate_series(0, 9) k;
         INSERT INTO runherd.chunks (run_shard, run_id, chunk_no, status, payload, failed_at)
         SELECT 1, '{run_id}', k, 'failed', '1', now() FROM unnest(ARRAY[5, 45, 46, 47]) k"
    );
    desk.sql.batch_execute(&fill).await.unwrap();
    let progress = placement_progress(desk.store.database(), run_id).await.unwrap();
    assert_eq!((progress.shards, progress.drained, progress.seeded), (2, 1, 200));
    assert_eq!((progress.handed_out, progress.in_flight, progress.leased), (160, 10, 4));
    assert_eq!((progress.finished, progress.failed, progress.guard_open), (150, 6, true));

    // Once the run is stopped, only what the sweep has passed counts.
    desk.sql.batch_execute("UPDATE runherd.run_guards SET status = 'cancelled', outcome = 'cancelled'").await.unwrap();
    let progress = placement_progress(desk.store.database(), run_id).await.unwrap();
    assert_eq!((progress.finished, progress.failed, progress.guard_open), (130, 3, false));
    let nothing = placement_progress(desk.store.database(), RunId(Uuid::new_v4())).await.unwrap();
    assert_eq!((nothing.shards, nothing.seeded, nothing.finished), (0, 0, 0));
    assert_eq!(serde_json::to_value(nothing).unwrap()["guard_open"], Value::Bool(true));
}
