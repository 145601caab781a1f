//! Submission against a real PostgreSQL: a run holds exactly what was given, or is never handed out.
//!
//! The server is at `RUNHERD_TEST_POSTGRES_URL` (a superuser); every test has a database of its own.

// The lint's own exception for tests stops at the helpers they share.
#![allow(clippy::unwrap_used)]

use std::env;
use std::io::{BufRead, BufReader, Cursor, Read};
use std::sync::Arc;
use std::time::Duration;

use runherd::config::{Config, PoolConfig, SessionConfig, SubmissionConfig};
use runherd::policy::PolicyOverrides;
use runherd::store::client::{ClientStore, RunFilter, placement_progress};
use runherd::store::migrate::migrate;
use runherd::store::{Database, SessionSettings, StoreError};
use runherd::submission::{
    CancellationToken, Fate, Header, Input, Observer, Options, Progress, Range, Request, Source, SubmitError,
    Submitted, submit,
};
use runherd_actors::model::{RunId, RunStatus};
use serde_json::Value;
use tokio::sync::Notify;
use tokio_postgres::{Client, NoTls, Row};
use uuid::Uuid;

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A fresh database with the schema, removed at the end.
struct World {
    server: tokio_postgres::Config,
    name: String,
    admin: Client,
    sql: Client,
    store: ClientStore,
}

impl World {
    async fn new() -> Self {
        let url =
            env::var("RUNHERD_TEST_POSTGRES_URL").unwrap_or("postgresql://postgres@127.0.0.1:5432/postgres".into());
        let server: tokio_postgres::Config = url.parse().unwrap();
        let name = format!("submission_test_{}", Uuid::new_v4().simple());
        let admin = connect(&server).await;
        admin.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        let mut config = server.clone();
        config.dbname(&name);
        migrate(&[("control".to_owned(), config.clone())], false).await.unwrap();
        // Everything here is done with the rights of a client.
        let mut as_client = config.clone();
        as_client.options("-c role=runherd_client").application_name("submission");
        let settings = SessionSettings::new(&PoolConfig::default(), &SessionConfig::default(), false);
        let store = ClientStore::new(Database::new("control", as_client, &settings, None).unwrap());
        Self { sql: connect(&config).await, server, name, admin, store }
    }

    async fn submit(&self, request: Request) -> Result<Submitted, SubmitError> {
        let stop = CancellationToken::new();
        tokio::time::timeout(PATIENCE, submit(&self.store, request, &mut (), &stop)).await.unwrap()
    }

    async fn row(&self, text: &str) -> Row {
        self.sql.query_one(text, &[]).await.unwrap()
    }

    /// Every payload of a run in the order of submission, and the sizes of its parts.
    async fn contents(&self, run_id: RunId) -> (Vec<String>, Vec<i32>) {
        let text = "SELECT part_no, run_shard, chunk_count, body::text FROM runherd.run_seeds WHERE run_id = $1 ORDER BY part_no";
        let (mut payloads, mut sizes) = (Vec::new(), Vec::new());
        for (index, row) in self.sql.query(text, &[&run_id.0]).await.unwrap().iter().enumerate() {
            assert_eq!(row.get::<_, i32>("part_no") as usize, index);
            let body: Vec<Box<serde_json::value::RawValue>> = serde_json::from_str(row.get("body")).unwrap();
            assert_eq!(row.get::<_, i32>("chunk_count") as usize, body.len());
            sizes.push(row.get("chunk_count"));
            payloads.extend(body.iter().map(|value| value.get().to_owned()));
        }
        (payloads, sizes)
    }

    async fn intent(&self, run_id: RunId) -> Option<(String, String)> {
        let text = "SELECT intent, reason FROM runherd.run_intents WHERE run_id = $1";
        let row = self.sql.query_opt(text, &[&run_id.0]).await.unwrap();
        row.map(|row| (row.get("intent"), row.get("reason")))
    }

    async fn end(self) {
        let Self { server, name, admin, sql, store } = self;
        drop((server, sql, store));
        admin.batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)")).await.unwrap();
    }
}

async fn connect(config: &tokio_postgres::Config) -> Client {
    let (client, connection) = config.connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

fn options() -> Options {
    Options::from(&Config::default().submission)
}

fn request(source: Source, key: Option<&str>) -> Request {
    Request { header: Header::new("q"), idempotency_key: key.map(str::to_owned), source, options: options() }
}

fn text(text: impl Into<String>) -> Source {
    Source::Chunks(Input::new("in.jsonl", Cursor::new(text.into())))
}

fn numbers(count: u32) -> String {
    (0..count).map(|number| format!("{{\"n\": {number}}}\n")).collect()
}

fn payloads(count: u32) -> Vec<String> {
    (0..count).map(|number| format!("{{\"n\": {number}}}")).collect()
}

/// Notified when a submission has as many parts there.
struct At {
    parts: u32,
    reached: Arc<Notify>,
}

impl Observer for At {
    fn progress(&mut self, progress: Progress) {
        if progress.parts == self.parts {
            self.reached.notify_one();
        }
    }
}

/// Some bytes, and then nothing for ever, as from a terminal.
fn then_silence(text: String) -> impl BufRead + Send {
    struct Silence;
    impl Read for Silence {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            loop {
                std::thread::park();
            }
        }
    }
    BufReader::new(Cursor::new(text).chain(Silence))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_stream_arrives_whole_and_in_order() {
    let world = World::new().await;
    let done = world.submit(request(text(numbers(100_000)), None)).await.unwrap();
    let (found, sizes) = world.contents(done.run_id).await;
    assert_eq!(found, payloads(100_000));
    assert_eq!((done.chunks, done.parts as usize, done.created), (100_000, sizes.len(), true));
    assert!(sizes.iter().all(|size| *size <= 1000));
    let run = world.store.read_run(done.run_id).await.unwrap().unwrap();
    assert_eq!((run.status, run.chunks, run.parts), (RunStatus::Creating, Some(100_000), Some(done.parts as i32)));
    assert_eq!(run.placements.iter().map(|placement| placement.chunks).sum::<i64>(), 100_000);
    let row = world
        .row("SELECT count(DISTINCT run_shard), max(chunks) - min(chunks) AS spread FROM (SELECT run_shard, sum(chunk_count)::bigint AS chunks FROM runherd.run_seeds GROUP BY 1) s")
        .await;
    assert_eq!(row.get::<_, i64>(0), 8);
    assert!(row.get::<_, i64>(1) <= 1000);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_died_is_followed_by_one_that_sends_what_is_missing() {
    let world = World::new().await;
    let reached = Arc::new(Notify::new());
    let (store, mut observer) = (world.store.clone(), At { parts: 30, reached: Arc::clone(&reached) });
    let source = Source::Chunks(Input::new("pipe", then_silence(numbers(12_000))));
    let first = tokio::spawn(async move {
        submit(&store, request(source, Some("film")), &mut observer, &CancellationToken::new()).await
    });
    tokio::time::timeout(PATIENCE, reached.notified()).await.unwrap();
    first.abort();
    let row = world.row("SELECT run_id, (SELECT count(*) FROM runherd.run_seeds) AS parts FROM runherd.runs").await;
    let (run_id, present) = (RunId(row.get(0)), row.get::<_, i64>("parts"));
    assert!(present >= 30);

    let done = world.submit(request(text(numbers(25_000)), Some("film"))).await.unwrap();
    assert_eq!((done.run_id, done.created, done.chunks), (run_id, false, 25_000));
    let alone = world.submit(request(text(numbers(25_000)), None)).await.unwrap();
    assert_eq!(world.contents(run_id).await, world.contents(alone.run_id).await);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_may_be_cut_at_any_time() {
    let world = World::new().await;
    let admin = connect(&world.server).await;
    let name = world.name.clone();
    let cutter = tokio::spawn(async move {
        let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1 AND application_name = 'submission'";
        let mut cuts = 0;
        for _ in 0..8 {
            // Wide enough for a part or two: the cuts should meet the submission in all its steps.
            tokio::time::sleep(Duration::from_millis(120)).await;
            cuts += admin.execute(cut, &[&name]).await.unwrap();
        }
        cuts
    });
    let done = world.submit(request(text(numbers(150_000)), None)).await.unwrap();
    assert!(cutter.await.unwrap() >= 2);
    assert_eq!(done.chunks, 150_000);
    assert!(done.created);
    assert_eq!(world.contents(done.run_id).await.0, payloads(150_000));
    assert_eq!(world.row("SELECT count(*) FROM runherd.runs").await.get::<_, i64>(0), 1);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_belongs_to_its_content() {
    let world = World::new().await;
    let first = world.submit(request(text(numbers(5_000)), Some("k"))).await.unwrap();
    let again = world.submit(request(text(numbers(5_000)), Some("k"))).await.unwrap();
    assert_eq!(again, Submitted { created: false, ..first });

    let changed = numbers(5_000).replace("4999", "5999");
    for other in [numbers(4_999), numbers(5_001), changed, String::new(), numbers(50_000)] {
        let error = world.submit(request(text(other), Some("k"))).await.unwrap_err();
        assert!(matches!(error, SubmitError::OtherContent { run_id, .. } if run_id == first.run_id), "{error}");
        assert!(error.to_string().contains(&first.run_id.to_string()), "{error}");
    }
    let mut header = request(text(numbers(5_000)), Some("k"));
    header.header.priority = Some(1);
    let error = world.submit(header).await.unwrap_err();
    assert!(
        matches!(&error, SubmitError::Store(StoreError::Refused { run_id, .. }) if *run_id == Some(first.run_id.0)),
        "{error}"
    );
    // A wrong line under the key of a sealed run must not touch that run.
    let error = world.submit(request(text("x\n"), Some("k"))).await.unwrap_err();
    assert!(matches!(error, SubmitError::Input { fate: Fate::Untouched(run_id), .. } if run_id == first.run_id));
    assert_eq!(world.intent(first.run_id).await, None);
    assert_eq!(world.contents(first.run_id).await.0.len(), 5_000);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unsealed_content_is_compared_too() {
    let world = World::new().await;
    let reached = Arc::new(Notify::new());
    let (store, mut observer) = (world.store.clone(), At { parts: 10, reached: Arc::clone(&reached) });
    let source = Source::Chunks(Input::new("pipe", then_silence(numbers(2_000))));
    let first = tokio::spawn(async move {
        submit(&store, request(source, Some("k")), &mut observer, &CancellationToken::new()).await
    });
    tokio::time::timeout(PATIENCE, reached.notified()).await.unwrap();
    first.abort();
    let run_id = RunId(world.row("SELECT run_id FROM runherd.runs").await.get(0));
    for other in [numbers(3_000).replace("\"n\": 5}", "\"n\": 6}"), numbers(3), String::new()] {
        let error = world.submit(request(text(other), Some("k"))).await.unwrap_err();
        assert!(matches!(error, SubmitError::OtherContent { run_id: found, .. } if found == run_id), "{error}");
    }
    assert_eq!(world.submit(request(text(numbers(3_000)), Some("k"))).await.unwrap().run_id, run_id);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_line_gives_the_run_up() {
    let world = World::new().await;
    let wrong = numbers(2_000) + "{\"n\": }\n" + &numbers(10);
    let error = world.submit(request(text(wrong), Some("k"))).await.unwrap_err();
    let SubmitError::Input { error: line, fate: Fate::GivenUp(run_id) } = &error else { panic!("{error}") };
    assert_eq!((line.line, line.byte), (2001, Some(7)));
    let place = "in.jsonl, line 2001, byte 7: not one JSON value: expected value";
    assert!(error.to_string().starts_with(place), "{error}");
    assert_eq!(world.intent(*run_id).await, Some(("fail".to_owned(), format!("submission: {place}"))));
    let run = world.store.read_run(*run_id).await.unwrap().unwrap();
    assert_eq!((run.status, run.sealed_at, run.intents.len()), (RunStatus::Creating, None, 1));

    // Until the run has ended, the key must lead nobody into it.
    let error = world.submit(request(text(numbers(10)), Some("k"))).await.unwrap_err();
    assert!(error.to_string().contains("given up"), "{error}");
    assert!(error.to_string().contains(&run_id.to_string()), "{error}");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_submission_gives_the_run_up_while_its_input_blocks() {
    let world = World::new().await;
    let (reached, stop) = (Arc::new(Notify::new()), CancellationToken::new());
    let (store, token) = (world.store.clone(), stop.clone());
    let mut observer = At { parts: 2, reached: Arc::clone(&reached) };
    let source = Source::Lines(Input::new("terminal", then_silence("a\n".repeat(100))));
    let submission = tokio::spawn(async move { submit(&store, request(source, None), &mut observer, &token).await });
    tokio::time::timeout(PATIENCE, reached.notified()).await.unwrap();
    stop.cancel();
    let error = tokio::time::timeout(PATIENCE, submission).await.unwrap().unwrap().unwrap_err();
    let SubmitError::Interrupted { fate: Fate::GivenUp(run_id) } = error else { panic!("{error}") };
    assert_eq!(world.intent(run_id).await.unwrap().0, "fail");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_input_is_a_run_of_no_chunks() {
    let world = World::new().await;
    for source in [text(""), Source::Range(Range::new(7, 7, 1).unwrap())] {
        let done = world.submit(request(source, None)).await.unwrap();
        assert_eq!((done.chunks, done.parts), (0, 0));
        let run = world.store.read_run(done.run_id).await.unwrap().unwrap();
        assert!(run.sealed_at.is_some());
    }
    world.submit(request(text(""), Some("k"))).await.unwrap();
    assert!(!world.submit(request(text(""), Some("k"))).await.unwrap().created);
    assert!(world.submit(request(text("1"), Some("k"))).await.is_err());
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_makes_the_chunks_that_the_placement_expands() {
    let world = World::new().await;
    for (start, end, step) in
        [(0, 100_001, 7), (-1000, 1000, 1), (i64::MIN, i64::MIN + 50, 9), (i64::MAX - 50, i64::MAX, 1)]
    {
        let range = Range::new(start, end, step).unwrap();
        let done = world.submit(request(Source::Range(range), None)).await.unwrap();
        assert_eq!(done.chunks, range.chunks(), "{range}");
        let seed = "SELECT DISTINCT runherd.seed_part(run_id, run_shard, part_no, first_chunk_no, chunk_count, body, 'q',
            '{\"window\":1,\"chunks_per_event\":1,\"max_attempts\":1,\"recovery_limit\":1,\"release_limit\":1,\"retry_delay_ms\":1,
            \"retry_delay_max_ms\":1,\"lease_ttl_max_ms\":1,\"max_chunk_time_ms\":1,\"redelivery_after_ms\":1,\"redelivery_after_max_ms\":1}')
            FROM runherd.run_seeds WHERE run_id = $1";
        assert_eq!(world.sql.query_one(seed, &[&done.run_id.0]).await.unwrap().get::<_, String>(0), "seeded");
        let sums = "SELECT count(*), min((payload->>'start')::bigint), max((payload->>'end')::bigint),
            sum((payload->>'end')::numeric - (payload->>'start')::numeric)::text, count(DISTINCT payload->>'start')
            FROM runherd.chunks WHERE run_id = $1";
        let row = world.sql.query_one(sums, &[&done.run_id.0]).await.unwrap();
        let count = range.chunks() as i64;
        assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(4)), (count, count));
        assert_eq!((row.get::<_, i64>(1), row.get::<_, i64>(2)), (start, end));
        assert_eq!(row.get::<_, String>(3), (i128::from(end) - i128::from(start)).to_string());
        assert_eq!(placement_progress(world.store.database(), done.run_id).await.unwrap().seeded, count);
    }
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_clients_with_one_key_the_later_one_finishes() {
    let world = World::new().await;
    let reached = Arc::new(Notify::new());
    let (store, mut observer) = (world.store.clone(), At { parts: 10, reached: Arc::clone(&reached) });
    let early = tokio::spawn(async move {
        submit(&store, request(text(numbers(400_000)), Some("k")), &mut observer, &CancellationToken::new()).await
    });
    tokio::time::timeout(PATIENCE, reached.notified()).await.unwrap();
    let late = world.submit(request(text(numbers(400_000)), Some("k"))).await.unwrap();
    let error = tokio::time::timeout(PATIENCE, early).await.unwrap().unwrap().unwrap_err();
    let SubmitError::Store(StoreError::Refused { code, .. }) = &error else { panic!("{error}") };
    assert_eq!(code, "RH410", "{error}");
    assert_eq!(world.intent(late.run_id).await, None);
    assert_eq!(late.chunks, 400_000);
    assert_eq!(world.contents(late.run_id).await.0, payloads(400_000));

    // Begun at the same moment, whichever comes first: one run, and whoever is told so has it.
    let (one, two) = tokio::join!(
        world.submit(request(text(numbers(20_000)), Some("both"))),
        world.submit(request(text(numbers(20_000)), Some("both")))
    );
    assert!(one.is_ok() || two.is_ok());
    let told: Vec<RunId> = [one, two].into_iter().flatten().map(|done| done.run_id).collect();
    assert!(told.iter().all(|run_id| *run_id == told[0]));
    assert_eq!(world.contents(told[0]).await.0, payloads(20_000));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn payloads_come_back_as_they_were_given() {
    let world = World::new().await;
    let odd =
        ["{\"b\":1, \"a\" : 1.50e1,\"a\":2}", "\"\\u0000 \\ud800 é\"", "-0.0e+00", "null", "[ ]", "{\"x\":\"[[[[\"}"];
    let done = world.submit(request(text(odd.join("\n")), None)).await.unwrap();
    assert_eq!(world.contents(done.run_id).await.0, odd);
    let lines = ["", "a\"b\\", "tab\there", "\u{1f600}", "\0"];
    let source = Source::Lines(Input::new("in", Cursor::new(lines.join("\r\n") + "\n")));
    let done = world.submit(request(source, None)).await.unwrap();
    let found: Vec<String> =
        world.contents(done.run_id).await.0.iter().map(|json| serde_json::from_str(json).unwrap()).collect();
    assert_eq!(found, lines);
    let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
    let done = world.submit(request(text(deep.clone()), None)).await.unwrap();
    let body = "SELECT body->0 FROM runherd.run_seeds WHERE run_id = $1";
    assert!(world.sql.query_one(body, &[&done.run_id.0]).await.is_ok());
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_bound_parts_too() {
    let world = World::new().await;
    let mut request = request(text(format!("\"{}\"\n", "x".repeat(198)).repeat(500)), None);
    request.header.shards = Some(1);
    request.options = Options::from(&SubmissionConfig {
        part_chunks: 100_000,
        part_bytes: 20_000,
        payload_limit_bytes: 200,
        ..SubmissionConfig::default()
    });
    let done = world.submit(request).await.unwrap();
    let sizes = world.contents(done.run_id).await.1;
    assert_eq!(sizes, [16, 32, 64, 100, 100, 100, 88]);
    world.end().await;
}

/// Both ends of every range that the command line accepts are accepted by the server.
#[tokio::test(flavor = "multi_thread")]
async fn the_server_accepts_every_policy_that_is_valid_here() {
    let world = World::new().await;
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
        let done = world.submit(request).await.unwrap();
        let run = world.store.read_run(done.run_id).await.unwrap().unwrap();
        assert_eq!((run.policy, run.priority, run.tolerated_failures), (policy.to_json(), -1000, Some(0)));
        assert!(run.deadline_at.unwrap() > run.created_at + days(364));
    }
    let before: i64 = world.row("SELECT count(*) FROM runherd.runs").await.get(0);
    let mut wrong = request(text("1"), None);
    wrong.header.shards = Some(4097);
    assert!(matches!(world.submit(wrong).await.unwrap_err(), SubmitError::Request(_)));
    assert_eq!(world.row("SELECT count(*) FROM runherd.runs").await.get::<_, i64>(0), before);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_are_asked_and_refused() {
    let world = World::new().await;
    let store = &world.store;
    let refusal = |error: StoreError| match error {
        StoreError::Refused { code, .. } => code,
        other => panic!("{other}"),
    };
    let run_id = world.submit(request(text("1\n2"), None)).await.unwrap().run_id;
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
    world
        .sql
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
    world.end().await;
}

/// Two shards of 100 chunks: one is drained; of the other 60 are handed out, 10 of these active, and some have failed.
#[tokio::test(flavor = "multi_thread")]
async fn progress_is_counted_from_positions_and_active_chunks() {
    let world = World::new().await;
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
    world.sql.batch_execute(&fill).await.unwrap();
    let progress = placement_progress(world.store.database(), run_id).await.unwrap();
    assert_eq!((progress.shards, progress.drained, progress.seeded), (2, 1, 200));
    assert_eq!((progress.handed_out, progress.in_flight, progress.leased), (160, 10, 4));
    assert_eq!((progress.finished, progress.failed, progress.guard_open), (150, 6, true));

    // Once the run is stopped, only what the sweep has passed counts.
    world.sql.batch_execute("UPDATE runherd.run_guards SET status = 'cancelled', outcome = 'cancelled'").await.unwrap();
    let progress = placement_progress(world.store.database(), run_id).await.unwrap();
    assert_eq!((progress.finished, progress.failed, progress.guard_open), (130, 3, false));
    let nothing = placement_progress(world.store.database(), RunId(Uuid::new_v4())).await.unwrap();
    assert_eq!((nothing.shards, nothing.seeded, nothing.finished), (0, 0, 0));
    assert_eq!(serde_json::to_value(nothing).unwrap()["guard_open"], Value::Bool(true));
    world.end().await;
}
