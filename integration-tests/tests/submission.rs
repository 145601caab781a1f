//! Submission against a real PostgreSQL: a run holds exactly what was given, or is never handed out.
#![allow(clippy::unwrap_used, reason = "what is unexpected in a test fails it")]

#[path = "submission/asking.rs"]
mod asking;
#[path = "submission/fixture.rs"]
mod fixture;

use std::io::Cursor;
use std::sync::Arc;

use fixture::{APPLICATION, At, Beats, Desk, Opens, PATIENCE, gated, numbers, payloads, request, text, then_silence};
use runherd::config::SubmissionConfig;
use runherd::store::StoreError;
use runherd::store::client::placement_progress;
use runherd::submission::{CancellationToken, Fate, Input, Options, Range, Source, SubmitError, Submitted, submit};
use runherd_actors::model::{RunId, RunStatus};
use tokio::sync::{Notify, mpsc};

#[tokio::test(flavor = "multi_thread")]
async fn a_large_stream_arrives_whole_and_in_order() {
    let desk = Desk::new("a_large_stream_arrives_whole_and_in_order").await;
    let done = desk.submit(request(text(numbers(100_000)), None)).await.unwrap();
    let (found, sizes) = desk.contents(done.run_id).await;
    assert_eq!(found, payloads(100_000));
    assert_eq!((done.chunks, done.parts as usize, done.created), (100_000, sizes.len(), true));
    assert!(sizes.iter().all(|size| *size <= 1000));
    let run = desk.store.read_run(done.run_id).await.unwrap().unwrap();
    assert_eq!((run.status, run.chunks, run.parts), (RunStatus::Creating, Some(100_000), Some(done.parts as i32)));
    assert_eq!(run.placements.iter().map(|placement| placement.chunks).sum::<i64>(), 100_000);
    let row = desk
        .row("SELECT count(DISTINCT run_shard), max(chunks) - min(chunks) AS spread FROM (SELECT run_shard, sum(chunk_count)::bigint AS chunks FROM runherd.run_seeds GROUP BY 1) s")
        .await;
    assert_eq!(row.get::<_, i64>(0), 8);
    assert!(row.get::<_, i64>(1) <= 1000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_died_is_followed_by_one_that_sends_what_is_missing() {
    let desk = Desk::new("a_client_that_died_is_followed_by_one_that_sends_what_is_missing").await;
    let reached = Arc::new(Notify::new());
    let (store, mut observer) = (desk.store.clone(), At { parts: 30, reached: Arc::clone(&reached) });
    let source = Source::Chunks(Input::new("pipe", then_silence(numbers(12_000))));
    let first = tokio::spawn(async move {
        submit(&store, request(source, Some("film")), &mut observer, &CancellationToken::new()).await
    });
    tokio::time::timeout(PATIENCE, reached.notified()).await.unwrap();
    first.abort();
    let row = desk.row("SELECT run_id, (SELECT count(*) FROM runherd.run_seeds) AS parts FROM runherd.runs").await;
    let (run_id, present) = (RunId(row.get(0)), row.get::<_, i64>("parts"));
    assert!(present >= 30);

    let done = desk.submit(request(text(numbers(25_000)), Some("film"))).await.unwrap();
    assert_eq!((done.run_id, done.created, done.chunks), (run_id, false, 25_000));
    let alone = desk.submit(request(text(numbers(25_000)), None)).await.unwrap();
    assert_eq!(desk.contents(run_id).await, desk.contents(alone.run_id).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_may_be_cut_at_any_time() {
    let desk = Desk::new("connections_may_be_cut_at_any_time").await;
    let admin = desk.herd.world.pg(desk.herd.world.database()).await;
    let (tell, mut beats) = mpsc::unbounded_channel();
    // A part or two are in flight at each cut: they meet the submission in all its steps.
    let mut observer = Beats { every: 16, tell, begun: false };
    let cutter = tokio::spawn(async move {
        let cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
            WHERE datname = current_database() AND application_name = $1";
        let mut cuts = 0;
        for _ in 0..8 {
            let Some(()) = beats.recv().await else { break };
            cuts += admin.query_one(cut, &[&APPLICATION]).await.unwrap().get::<_, i64>(0);
        }
        cuts
    });
    let (input, stop) = (request(text(numbers(150_000)), None), CancellationToken::new());
    let done = tokio::time::timeout(PATIENCE, submit(&desk.store, input, &mut observer, &stop)).await.unwrap().unwrap();
    drop(observer);
    assert!(cutter.await.unwrap() >= 2);
    assert_eq!(done.chunks, 150_000);
    assert!(done.created);
    assert_eq!(desk.contents(done.run_id).await.0, payloads(150_000));
    assert_eq!(desk.row("SELECT count(*) FROM runherd.runs").await.get::<_, i64>(0), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_belongs_to_its_content() {
    let desk = Desk::new("a_key_belongs_to_its_content").await;
    let first = desk.submit(request(text(numbers(5_000)), Some("k"))).await.unwrap();
    let again = desk.submit(request(text(numbers(5_000)), Some("k"))).await.unwrap();
    assert_eq!(again, Submitted { created: false, ..first });

    let changed = numbers(5_000).replace("4999", "5999");
    for other in [numbers(4_999), numbers(5_001), changed, String::new(), numbers(50_000)] {
        let error = desk.submit(request(text(other), Some("k"))).await.unwrap_err();
        assert!(matches!(error, SubmitError::OtherContent { run_id, .. } if run_id == first.run_id), "{error}");
        assert!(error.to_string().contains(&first.run_id.to_string()), "{error}");
    }
    let mut header = request(text(numbers(5_000)), Some("k"));
    header.header.priority = Some(1);
    let error = desk.submit(header).await.unwrap_err();
    assert!(
        matches!(&error, SubmitError::Store(StoreError::Refused { run_id, .. }) if *run_id == Some(first.run_id.0)),
        "{error}"
    );
    // A wrong line under the key of a sealed run must not touch that run.
    let error = desk.submit(request(text("x\n"), Some("k"))).await.unwrap_err();
    assert!(matches!(error, SubmitError::Input { fate: Fate::Untouched(run_id), .. } if run_id == first.run_id));
    assert_eq!(desk.intent(first.run_id).await, None);
    assert_eq!(desk.contents(first.run_id).await.0.len(), 5_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn unsealed_content_is_compared_too() {
    let desk = Desk::new("unsealed_content_is_compared_too").await;
    let reached = Arc::new(Notify::new());
    let (store, mut observer) = (desk.store.clone(), At { parts: 10, reached: Arc::clone(&reached) });
    let source = Source::Chunks(Input::new("pipe", then_silence(numbers(2_000))));
    let first = tokio::spawn(async move {
        submit(&store, request(source, Some("k")), &mut observer, &CancellationToken::new()).await
    });
    tokio::time::timeout(PATIENCE, reached.notified()).await.unwrap();
    first.abort();
    let run_id = RunId(desk.row("SELECT run_id FROM runherd.runs").await.get(0));
    for other in [numbers(3_000).replace("\"n\": 5}", "\"n\": 6}"), numbers(3), String::new()] {
        let error = desk.submit(request(text(other), Some("k"))).await.unwrap_err();
        assert!(matches!(error, SubmitError::OtherContent { run_id: found, .. } if found == run_id), "{error}");
    }
    assert_eq!(desk.submit(request(text(numbers(3_000)), Some("k"))).await.unwrap().run_id, run_id);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_line_gives_the_run_up() {
    let desk = Desk::new("a_wrong_line_gives_the_run_up").await;
    let wrong = numbers(2_000) + "{\"n\": }\n" + &numbers(10);
    let error = desk.submit(request(text(wrong), Some("k"))).await.unwrap_err();
    let SubmitError::Input { error: line, fate: Fate::GivenUp(run_id) } = &error else { panic!("{error}") };
    assert_eq!((line.line, line.byte), (2001, Some(7)));
    let place = "in.jsonl, line 2001, byte 7: not one JSON value: expected value";
    assert!(error.to_string().starts_with(place), "{error}");
    assert_eq!(desk.intent(*run_id).await, Some(("fail".to_owned(), format!("submission: {place}"))));
    let run = desk.store.read_run(*run_id).await.unwrap().unwrap();
    assert_eq!((run.status, run.sealed_at, run.intents.len()), (RunStatus::Creating, None, 1));

    // Until the run has ended, the key must lead nobody into it.
    let error = desk.submit(request(text(numbers(10)), Some("k"))).await.unwrap_err();
    assert!(error.to_string().contains("given up"), "{error}");
    assert!(error.to_string().contains(&run_id.to_string()), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_submission_gives_the_run_up_while_its_input_blocks() {
    let desk = Desk::new("an_interrupted_submission_gives_the_run_up_while_its_input_blocks").await;
    let (reached, stop) = (Arc::new(Notify::new()), CancellationToken::new());
    let (store, token) = (desk.store.clone(), stop.clone());
    let mut observer = At { parts: 2, reached: Arc::clone(&reached) };
    let source = Source::Lines(Input::new("terminal", then_silence("a\n".repeat(100))));
    let submission = tokio::spawn(async move { submit(&store, request(source, None), &mut observer, &token).await });
    tokio::time::timeout(PATIENCE, reached.notified()).await.unwrap();
    stop.cancel();
    let error = tokio::time::timeout(PATIENCE, submission).await.unwrap().unwrap().unwrap_err();
    let SubmitError::Interrupted { fate: Fate::GivenUp(run_id) } = error else { panic!("{error}") };
    assert_eq!(desk.intent(run_id).await.unwrap().0, "fail");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_input_is_a_run_of_no_chunks() {
    let desk = Desk::new("an_empty_input_is_a_run_of_no_chunks").await;
    for source in [text(""), Source::Range(Range::new(7, 7, 1).unwrap())] {
        let done = desk.submit(request(source, None)).await.unwrap();
        assert_eq!((done.chunks, done.parts), (0, 0));
        let run = desk.store.read_run(done.run_id).await.unwrap().unwrap();
        assert!(run.sealed_at.is_some());
    }
    desk.submit(request(text(""), Some("k"))).await.unwrap();
    assert!(!desk.submit(request(text(""), Some("k"))).await.unwrap().created);
    assert!(desk.submit(request(text("1"), Some("k"))).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_makes_the_chunks_that_the_placement_expands() {
    let desk = Desk::new("a_range_makes_the_chunks_that_the_placement_expands").await;
    for (start, end, step) in
        [(0, 100_001, 7), (-1000, 1000, 1), (i64::MIN, i64::MIN + 50, 9), (i64::MAX - 50, i64::MAX, 1)]
    {
        let range = Range::new(start, end, step).unwrap();
        let done = desk.submit(request(Source::Range(range), None)).await.unwrap();
        assert_eq!(done.chunks, range.chunks(), "{range}");
        let seed = "SELECT DISTINCT runherd.seed_part(run_id, run_shard, part_no, first_chunk_no, chunk_count, body, 'q',
            '{\"window\":1,\"chunks_per_event\":1,\"max_attempts\":1,\"recovery_limit\":1,\"release_limit\":1,\"retry_delay_ms\":1,
            \"retry_delay_max_ms\":1,\"lease_ttl_max_ms\":1,\"max_chunk_time_ms\":1,\"redelivery_after_ms\":1,\"redelivery_after_max_ms\":1}')
            FROM runherd.run_seeds WHERE run_id = $1";
        assert_eq!(desk.sql.query_one(seed, &[&done.run_id.0]).await.unwrap().get::<_, String>(0), "seeded");
        let sums = "SELECT count(*), min((payload->>'start')::bigint), max((payload->>'end')::bigint),
            sum((payload->>'end')::numeric - (payload->>'start')::numeric)::text, count(DISTINCT payload->>'start')
            FROM runherd.chunks WHERE run_id = $1";
        let row = desk.sql.query_one(sums, &[&done.run_id.0]).await.unwrap();
        let count = range.chunks() as i64;
        assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(4)), (count, count));
        assert_eq!((row.get::<_, i64>(1), row.get::<_, i64>(2)), (start, end));
        assert_eq!(row.get::<_, String>(3), (i128::from(end) - i128::from(start)).to_string());
        assert_eq!(placement_progress(desk.store.database(), done.run_id).await.unwrap().seeded, count);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_clients_with_one_key_the_later_one_finishes() {
    let desk = Desk::new("of_two_clients_with_one_key_the_later_one_finishes").await;
    let reached = Arc::new(Notify::new());
    let (store, mut observer) = (desk.store.clone(), At { parts: 10, reached: Arc::clone(&reached) });
    // The early one cannot come to its end before the later one has begun.
    let lines = numbers(100_000);
    let (first, second) = lines.split_at(lines.len() / 2);
    let (gate, input) = gated(first.to_owned(), second.to_owned());
    let early = tokio::spawn(async move {
        let source = Source::Chunks(Input::new("pipe", input));
        submit(&store, request(source, Some("k")), &mut observer, &CancellationToken::new()).await
    });
    tokio::time::timeout(PATIENCE, reached.notified()).await.unwrap();
    let (mut opens, stop) = (Opens(Some(gate)), CancellationToken::new());
    let late = submit(&desk.store, request(text(lines), Some("k")), &mut opens, &stop);
    let late = tokio::time::timeout(PATIENCE, late).await.unwrap().unwrap();
    let error = tokio::time::timeout(PATIENCE, early).await.unwrap().unwrap().unwrap_err();
    let SubmitError::Store(StoreError::Refused { code, .. }) = &error else { panic!("{error}") };
    assert_eq!(code, "RH410", "{error}");
    assert_eq!(desk.intent(late.run_id).await, None);
    assert_eq!(late.chunks, 100_000);
    assert_eq!(desk.contents(late.run_id).await.0, payloads(100_000));

    // Begun at the same moment, whichever comes first: one run, and whoever is told so has it.
    let (one, two) = tokio::join!(
        desk.submit(request(text(numbers(20_000)), Some("both"))),
        desk.submit(request(text(numbers(20_000)), Some("both")))
    );
    assert!(one.is_ok() || two.is_ok());
    let told: Vec<RunId> = [one, two].into_iter().flatten().map(|done| done.run_id).collect();
    assert!(told.iter().all(|run_id| *run_id == told[0]));
    assert_eq!(desk.contents(told[0]).await.0, payloads(20_000));
}

#[tokio::test(flavor = "multi_thread")]
async fn payloads_come_back_as_they_were_given() {
    let desk = Desk::new("payloads_come_back_as_they_were_given").await;
    let odd =
        ["{\"b\":1, \"a\" : 1.50e1,\"a\":2}", "\"\\u0000 \\ud800 é\"", "-0.0e+00", "null", "[ ]", "{\"x\":\"[[[[\"}"];
    let done = desk.submit(request(text(odd.join("\n")), None)).await.unwrap();
    assert_eq!(desk.contents(done.run_id).await.0, odd);
    let lines = ["", "a\"b\\", "tab\there", "\u{1f600}", "\0"];
    let source = Source::Lines(Input::new("in", Cursor::new(lines.join("\r\n") + "\n")));
    let done = desk.submit(request(source, None)).await.unwrap();
    let found: Vec<String> =
        desk.contents(done.run_id).await.0.iter().map(|json| serde_json::from_str(json).unwrap()).collect();
    assert_eq!(found, lines);
    let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
    let done = desk.submit(request(text(deep.clone()), None)).await.unwrap();
    let body = "SELECT body->0 FROM runherd.run_seeds WHERE run_id = $1";
    assert!(desk.sql.query_one(body, &[&done.run_id.0]).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_bound_parts_too() {
    let desk = Desk::new("bytes_bound_parts_too").await;
    let mut request = request(text(format!("\"{}\"\n", "x".repeat(198)).repeat(500)), None);
    request.header.shards = Some(1);
    request.options = Options::from(&SubmissionConfig {
        part_chunks: 100_000,
        part_bytes: 20_000,
        payload_limit_bytes: 200,
        ..SubmissionConfig::default()
    });
    let done = desk.submit(request).await.unwrap();
    let sizes = desk.contents(done.run_id).await.1;
    assert_eq!(sizes, [16, 32, 64, 100, 100, 100, 88]);
}
