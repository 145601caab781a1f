//! The log of a coordinator is what `docs/logs.md` says, for a run, for an outage, and for what only the sources can tell.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use runherd::broker::topology::{EXCHANGE, chunk_queue, chunk_ready_key};
use runherd_integration_tests::herd::{Echo, Herd, LIMIT};
use runherd_integration_tests::log_schema::LogSchema;
use runherd_integration_tests::{Process, until};
use serde_json::{Value, json};

/// Every record for metrics pipelines, and the cycle of a stage.
const REGULAR: [&str; 8] = ["backlog", "placement", "route", "pool", "broker", "runtime", "mailbox", "stage cycle"];

/// Stands in every payload.
const SECRET: &str = "9f3c-payload";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

fn schema() -> LogSchema {
    LogSchema::parse(&fs::read_to_string(root().join("docs/logs.md")).expect("docs/logs.md"))
}

/// A coordinator that reports each second and logs everything.
fn talkative(herd: &Herd, sets: &[&str]) -> Process {
    let all = ["log.format=json", "log.level=debug", "runtime.report_interval=1s"];
    let flags = all.iter().chain(sets).flat_map(|&set| ["--set", set]);
    herd.launch("coordinator", &[]).args(flags).arg("serve").start()
}

/// Drains the coordinator; answers its log, each line of which the page describes.
async fn checked(mut coordinator: Process) -> Vec<Value> {
    coordinator.term();
    let status = coordinator.wait(LIMIT).await;
    assert_eq!(status.code(), Some(0), "drained; {}", coordinator.stderr());
    let (schema, log) = (schema(), coordinator.stderr());
    let (lines, wrong): (Vec<_>, Vec<_>) = log.lines().map(|line| schema.check(line)).partition(Result::is_ok);
    let wrong: BTreeSet<String> = wrong.into_iter().filter_map(Result::err).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    lines.into_iter().flatten().collect()
}

fn named<'a>(lines: &'a [Value], msg: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["msg"] == msg).collect()
}

fn sum(lines: &[&Value], field: &str) -> u64 {
    lines.iter().filter_map(|line| line[field].as_u64()).sum()
}

#[tokio::test]
async fn every_line_of_a_run_is_on_the_page_and_the_counts_add_up() {
    let herd = Herd::new("every_line_of_a_run_is_on_the_page").await;
    let coordinator = talkative(&herd, &[]);
    let worker = herd.worker(Echo::default());
    let payloads: Vec<String> = (0..2_000).map(|n| format!("{{\"{SECRET}\":{n}}}\n")).collect();
    let file = herd.file("chunks.ndjson", &payloads.concat());
    let chunks = file.to_str().expect("a path");
    herd.succeed(&["submit", "--queue", "q", "--shards", "2", "--chunks", chunks, "--wait"]).await;
    until("every regular record", LIMIT, async || {
        let log = coordinator.stderr();
        REGULAR.iter().all(|msg| log.matches(&format!("\"msg\":\"{msg}\"")).count() >= 2).then_some(())
    })
    .await;
    worker.drain().await;
    herd.until_number("SELECT count(*) FROM runherd.runs WHERE guards_closed_at IS NOT NULL", 1).await;
    let published = "SELECT count(*) FROM runherd.outbox_events WHERE status = 'published'";
    let pending = "SELECT -count(*) FROM runherd.outbox_delivery_queue";
    herd.until_number(pending, 0).await;
    let log = coordinator.stderr();
    assert!(!log.contains(SECRET), "no payload is logged");
    let lines = checked(coordinator).await;

    let cycles = named(&lines, "stage cycle");
    let of = |family: &str| -> Vec<&Value> {
        cycles.iter().filter(|line| line["stage"].as_str().is_some_and(|s| s.starts_with(family))).copied().collect()
    };
    assert_eq!(sum(&of("shard_dispatcher"), "chunks"), 2_000);
    let broker = named(&lines, "broker");
    let published = herd.number(published).await.unsigned_abs();
    assert_eq!(sum(&of("outbox_publisher"), "published"), published);
    assert_eq!((sum(&broker, "messages_confirmed"), sum(&broker, "messages_sent")), (published, published));
    let runtime = named(&lines, "runtime");
    let (ended, failed) = (sum(&runtime, "stage_cycles"), sum(&runtime, "stage_cycles_failed"));
    assert_eq!(ended - failed, cycles.len() as u64, "every report has its line");
    let full = cycles.iter().filter(|line| line["more"] == true).count();
    assert_eq!(sum(&runtime, "stage_cycles_full"), full as u64);
    assert!(sum(&named(&lines, "route"), "route_resolutions") > 0);
    assert!(sum(&named(&lines, "pool"), "pool_acquisitions") > 0);
    let last = *named(&lines, "backlog").last().expect("a backlog");
    assert_eq!((&last["dispatch_backlog"], &last["oldest_undispatched_ms"]), (&0.into(), &0.into()));
}

#[tokio::test]
async fn an_outage_of_the_broker_is_told_ever_more_rarely() {
    let herd = Herd::new("an_outage_of_the_broker_is_told").await;
    let dead = [
        "broker.url=amqp://herd:sesame@127.0.0.1:1/runs",
        "broker.reconnect_delay_min=10ms",
        "broker.reconnect_delay_max=20ms",
        "outbox_publisher.publishers=1",
    ];
    let coordinator = talkative(&herd, &dead);
    herd.submit(50, &[]).await;
    until("the outage to last, and the backlog to be seen", LIMIT, async || {
        let log = coordinator.stderr();
        let cycles = log.lines().filter(|line| line.contains("\"msg\":\"stage cycle\"") && line.contains("blocked_by"));
        let seen = log.contains("\"outbox_backlog\":52") && log.contains("\"in_row\":100,");
        (cycles.count() >= 20 && seen).then_some(())
    })
    .await;
    assert!(!coordinator.stderr().contains("sesame"), "no password is logged");
    let lines = checked(coordinator).await;

    let lost = named(&lines, "no connection to the broker");
    let told: Vec<u64> =
        lost.iter().filter(|line| line["level"] == "warning").filter_map(|line| line["in_row"].as_u64()).collect();
    assert!(told.len() >= 7 && lost.len() >= 100, "{told:?} of {}", lost.len());
    assert!(told.iter().enumerate().all(|(index, in_row)| *in_row == 1 << index), "at each doubling: {told:?}");
    let blocked = named(&lines, "stage blocked");
    let doublings = blocked.iter().all(|line| line["times"].as_u64().is_some_and(u64::is_power_of_two));
    assert!(doublings && (1..=16).contains(&blocked.len()), "{blocked:#?}");
    let broker = named(&lines, "broker");
    assert!(broker.iter().any(|line| line["publishers_ready"] == 0 && line["blocked_by"].is_string()), "{broker:#?}");
    assert_eq!(sum(&broker, "messages_sent"), 0);
    let backlog = *named(&lines, "placement").last().expect("a placement");
    assert!(backlog["outbox_lag_ms"].as_u64() > Some(0) && backlog["chunks_in_flight"] == 50, "{backlog}");
}

#[tokio::test]
async fn what_the_broker_does_is_counted() {
    let herd = Herd::new("what_the_broker_does_is_counted").await;
    // A quorum queue goes on refusing after its bound was lifted.
    let sets = ["outbox_publisher.publishers=1", "outbox_publisher.max_attempts=1000", "broker.queue_type=classic"];
    let coordinator = talkative(&herd, &sets);
    let published = "SELECT count(*) FROM runherd.outbox_events WHERE status = 'published'";
    let told = async |field: &str| {
        let counted = format!("\"{field}\":");
        until(format!("{field} to be counted"), LIMIT, async || {
            let log = coordinator.stderr();
            log.split(&counted).skip(1).any(|rest| !rest.starts_with("0,")).then_some(())
        })
        .await;
    };
    herd.submit(1, &[]).await;
    herd.until_number(published, 3).await;
    let rabbit = herd.world.rabbit();
    let (queue, key) = (chunk_queue("q"), chunk_ready_key("q"));
    rabbit.delete_binding(EXCHANGE, &queue, &key).await;
    herd.submit(1, &[]).await;
    told("messages_returned").await;
    herd.until_number(published, 6).await;
    rabbit.set_policy("full", "^runherd[.]chunks", json!({ "max-length": 1, "overflow": "reject-publish" })).await;
    herd.submit(5, &[]).await;
    told("messages_nacked").await;
    until("the connection to be closed", LIMIT, async || {
        let mut closed = false;
        for connection in rabbit.connections().await {
            closed |= rabbit.close_connection(&connection.name).await;
        }
        closed.then_some(())
    })
    .await;
    told("reconnects").await;
    rabbit.delete_policy("full").await;
    herd.until_number(published, 6 + 2 + 5).await;
    let lines = checked(coordinator).await;
    let broker = named(&lines, "broker");
    let outcomes = ["messages_confirmed", "messages_returned", "messages_nacked", "messages_unknown"];
    let counts: Vec<u64> = outcomes.iter().map(|field| sum(&broker, field)).collect();
    assert_eq!(sum(&broker, "messages_sent"), counts.iter().sum::<u64>(), "{counts:?}");
    assert_eq!(counts[0], herd.number(published).await.unsigned_abs(), "{counts:?}");
}

#[tokio::test]
async fn the_commands_of_the_page_answer() {
    if Command::new("jq").arg("--version").output().is_err() {
        eprintln!("skipped: there is no jq");
        return;
    }
    let herd = Herd::new("the_commands_of_the_page_answer").await;
    let coordinator = talkative(&herd, &[]);
    let _worker = herd.worker(Echo::default());
    let run = herd.submit(100, &[]).await;
    assert_eq!(herd.ended(run).await, "succeeded");
    until("every regular record", LIMIT, async || {
        let log = coordinator.stderr();
        REGULAR.iter().all(|msg| log.contains(&format!("\"msg\":\"{msg}\""))).then_some(())
    })
    .await;
    let log = herd.file("complete.log", &(coordinator.stderr() + "{\"level\":\"warning\",\"msg\":\"an example\"}\n"));
    let schema = schema();
    assert!(schema.commands().len() >= 9, "{:?}", schema.commands());
    for command in schema.commands() {
        let output = Command::new("sh").args(["-c", command]).env("LOG", &log).output().expect("sh");
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && err.is_empty() && !out.contains("null"), "{command}\n{out}\n{err}");
        assert!(!out.trim().is_empty(), "no answer: {command}");
    }
}

/// The text of every source of a coordinator, without its tests.
fn sources() -> String {
    let mut text = String::new();
    let mut folders =
        ["actors/src", "src/broker", "src/coordinator", "src/store"].map(|name| root().join(name)).to_vec();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            // What consumes is the worker's.
            if path.is_dir() && !path.ends_with("runtime/tests") {
                folders.push(path);
            } else if path.is_file() && !path.ends_with("consuming.rs") {
                let file = fs::read_to_string(path).expect("text");
                text.push_str(file.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default());
            }
        }
    }
    text
}

/// The first text in quotes after each occurrence of `before`.
fn quoted_after<'a>(text: &'a str, before: &str) -> BTreeSet<&'a str> {
    text.split(before).skip(1).filter_map(|rest| rest.split('"').nth(1)).collect()
}

#[test]
fn every_record_and_every_count_of_the_sources_is_on_the_page() {
    let (schema, sources) = (schema(), sources());
    let macros = ["info!(", "warn!(", "error!(", "debug!(", "crit!("];
    let mut logged: BTreeSet<&str> = macros.iter().flat_map(|name| quoted_after(&sources, name)).collect();
    logged.insert("slog-async: logger dropped messages due to channel overflow");
    assert_eq!(schema.records(), logged);
    let counts = quoted_after(&sources, "report.count(");
    let fields = schema.fields("stage cycle");
    assert!(counts.len() > 30 && counts.is_subset(&fields), "{:?}", counts.difference(&fields));
    let fixed = ["ts", "level", "msg", "coordinator_id", "stage", "iteration", "reason", "duration_ms", "slow", "more"];
    let others: BTreeSet<&str> = fixed.into_iter().chain(["due_in_ms", "blocked_by"]).collect();
    let stale: Vec<_> = fields.iter().filter(|name| !counts.contains(*name) && !others.contains(*name)).collect();
    assert!(stale.is_empty(), "no stage counts {stale:?}");
}
