//! What a user meets at the edges: wrong settings, missing schemas, servers that are not there, rights that are missing.

use std::process::Output;
use std::time::Duration;

use runherd_integration_tests::World;
use runherd_integration_tests::herd::{Herd, LIMIT};
use runherd_integration_tests::process::{CONTROL_SOCKET, Process, runherd_binary};

/// Runs `runherd` with these arguments against a world that nobody migrated.
async fn runherd(world: &World, arguments: &[&str]) -> Output {
    let mut command = tokio::process::Command::new(runherd_binary());
    command.args(["--set", &format!("control.url={}", world.pg_url())]);
    command.args(["--set", &format!("broker.url={}", world.amqp_url())]);
    command.env(CONTROL_SOCKET, "none");
    let output = tokio::time::timeout(LIMIT, command.args(arguments).kill_on_drop(true).output()).await;
    output.expect("it ends").expect("it starts")
}

/// The status and the words of a refusal.
#[track_caller]
fn refused(output: &Output, status: i32, words: &[&str]) {
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(status), "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is not in: {said}");
    }
}

#[tokio::test]
async fn settings_are_refused_with_their_place() {
    let world = World::new("settings_are_refused").await;
    let unknown = runherd(&world, &["config", "check", "--set", "cycle.intervall=1s"]).await;
    refused(&unknown, 78, &["cycle.intervall", "unknown key", "cycle.interval"]);
    let range = runherd(&world, &["serve", "--set", "outbox_publisher.batch=0"]).await;
    refused(&range, 78, &["outbox_publisher.batch", "out of range"]);
    let database = runherd(&world, &["serve", "--set", "control.url=postgresql://db.example"]).await;
    refused(&database, 78, &["control.url", "database"]);
    let secret = runherd(&world, &["config", "print", "--set", "broker.url=amqp://herd:hush@mq/x"]).await;
    let printed = String::from_utf8_lossy(&secret.stdout).into_owned();
    assert!(secret.status.success() && printed.contains("***") && !printed.contains("hush"), "{printed}");
}

#[tokio::test]
async fn a_missing_schema_says_what_to_do() {
    let world = World::new("a_missing_schema").await;
    let serve = runherd(&world, &["serve"]).await;
    refused(&serve, 69, &["runherd migrate"]);
    let submit = runherd(&world, &["submit", "--queue", "q", "--range", "0..5", "--step", "1"]).await;
    refused(&submit, 69, &["runherd migrate"]);
}

#[tokio::test]
async fn migrate_is_safe_to_repeat_and_refuses_a_newer_database() {
    let world = World::new("migrate_is_safe").await;
    let dry = runherd(&world, &["migrate", "--dry-run"]).await;
    refused(&dry, 0, &["pending", "V1__placement", "V2__client_functions"]);
    let client = world.pg(world.database()).await;
    let schemas = "SELECT count(*) FROM pg_namespace WHERE nspname = 'runherd'";
    assert_eq!(client.query_one(schemas, &[]).await.expect("a count").get::<_, i64>(0), 0, "a dry run changes nothing");

    // Four at once: each succeeds, and each migration is applied once.
    let all: [&[&str]; 4] = [&["migrate"]; 4];
    let outputs = futures::future::join_all(all.iter().map(|arguments| runherd(&world, arguments))).await;
    let applied = outputs.iter().filter(|output| String::from_utf8_lossy(&output.stdout).contains("applied")).count();
    assert!(outputs.iter().all(|output| output.status.success()), "{outputs:?}");
    assert_eq!(applied, 1, "{outputs:?}");

    let newer = "INSERT INTO runherd.control_migrations SELECT 99, 'from_the_future', applied_on, checksum \
                 FROM runherd.control_migrations LIMIT 1";
    client.batch_execute(newer).await.expect("a newer database");
    refused(&runherd(&world, &["migrate"]).await, 69, &["newer", "nothing was changed"]);
}

#[tokio::test]
async fn a_schema_that_needs_a_newer_coordinator_is_obeyed() {
    let herd = Herd::new("a_schema_that_needs_a_newer").await;
    let client = herd.world.pg(herd.world.database()).await;
    client.batch_execute("UPDATE runherd.schema_version SET min_coordinator = 99").await.expect("an update");
    refused(&herd.run(&["serve"]).await, 69, &["generation 99", "newer runherd"]);
}

#[tokio::test]
async fn servers_that_are_down_are_waited_for_unless_told_otherwise() {
    let world = World::new("servers_that_are_down").await;
    let nobody = ["--set", "control.url=postgresql://x@127.0.0.1:1/x", "--set", "broker.url=amqp://127.0.0.1:1/x"];
    let fast = runherd(&world, &[&nobody[..], &["serve", "--fail-fast"]].concat()).await;
    refused(&fast, 69, &["control", "refused"]);
    let mut patient = Process::runherd(&world, "patient").args(nobody).args(["serve"]).start();
    patient.wait_for_line("waiting for the control database", LIMIT).await;
    patient.term();
    assert_eq!(patient.wait(LIMIT).await.code(), Some(0));

    let herd = Herd::in_world(world, &[]).await;
    let fast = herd.run(&["serve", "--fail-fast", "--set", "broker.url=amqp://127.0.0.1:1/x"]).await;
    refused(&fast, 69, &["broker", "127.0.0.1:1"]);
}

#[tokio::test]
async fn a_role_without_rights_is_told_which_it_needs() {
    let herd = Herd::new("a_role_without_rights").await;
    let client = herd.world.pg(herd.world.database()).await;
    let role = format!("r_{}", herd.world.database().name);
    client.batch_execute(&format!("CREATE ROLE {role} LOGIN")).await.expect("a role");
    let url = herd.world.pg_url().replacen("postgres@", &format!("{role}@"), 1);
    let set = format!("control.url={url}");
    let submit = ["submit", "--queue", "q", "--range", "0..5", "--step", "1", "--set", &set];
    refused(&herd.run(&submit).await, 1, &["no right", "runherd_client"]);
    // As a member of the client's role it may submit and look, and may not touch a table.
    client.batch_execute(&format!("GRANT runherd_client TO {role}")).await.expect("a grant");
    let run = herd.run(&submit).await;
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let id = String::from_utf8_lossy(&run.stdout).trim().to_owned();
    assert!(herd.run(&["status", &id, "--set", &set]).await.status.success());
    let (member, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.expect("a login");
    tokio::spawn(connection);
    let forged = member.execute("UPDATE runherd.runs SET status = 'failed'", &[]).await;
    assert!(forged.is_err(), "a client writes through the functions alone");
    drop(member);
    client.batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await.expect("the role goes");
}

#[tokio::test]
async fn a_bad_line_aborts_the_run_and_names_the_line() {
    let herd = Herd::new("a_bad_line_aborts").await;
    let _coordinator = herd.coordinator("coordinator");
    let mut text: String = (0..2_500).map(|n| format!("{{\"n\":{n}}}\n")).collect();
    text.push_str("{\"n\": oops}\n");
    let file = herd.file("bad.ndjson", &text);
    let submit = ["submit", "--queue", "q", "--chunks", file.to_str().expect("a path"), "--idempotency-key", "k"];
    refused(&herd.run(&submit).await, 65, &["line 2501"]);
    herd.until_number("SELECT count(*) FROM runherd.runs WHERE status = 'failed' AND reason LIKE '%2501%'", 1).await;
    assert_eq!(herd.number("SELECT count(*) FROM runherd.chunks").await, 0, "nothing was seeded");
    assert_eq!(herd.number("SELECT count(*) FROM runherd.outbox_events WHERE kind = 'chunk.ready'").await, 0);

    // The key is free again: the corrected file goes through under it.
    let file = herd.file("good.ndjson", "{\"n\":1}\n");
    let submit = ["submit", "--queue", "q", "--chunks", file.to_str().expect("a path"), "--idempotency-key", "k"];
    let run = herd.succeed(&submit).await;
    let other = herd.file("other.ndjson", "{\"n\":2}\n");
    let submit = ["submit", "--queue", "q", "--chunks", other.to_str().expect("a path"), "--idempotency-key", "k"];
    refused(&herd.run(&submit).await, 65, &[run.trim()]);
}

#[tokio::test]
async fn submissions_that_cannot_be_are_refused_before_anything_begins() {
    let herd = Herd::new("submissions_that_cannot_be").await;
    let big = herd.file("big.ndjson", &format!("\"{}\"\n", "x".repeat(300_000)));
    let big = big.to_str().expect("a path").to_owned();
    for (arguments, words) in [
        (vec!["--queue", "white space", "--range", "0..5", "--step", "1"], "queue"),
        (vec!["--queue", "q", "--shards", "0", "--range", "0..5", "--step", "1"], "shards"),
        (vec!["--queue", "q", "--shards", "4097", "--range", "0..5", "--step", "1"], "shards"),
        (vec!["--queue", "q", "--range", "0..5", "--step", "0"], "step"),
        (vec!["--queue", "q", "--window", "0", "--range", "0..5", "--step", "1"], "window"),
    ] {
        let output = herd.run(&[&["submit"], &arguments[..]].concat()).await;
        let status = output.status.code();
        assert!(matches!(status, Some(2 | 65)), "{arguments:?}: {status:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
    assert_eq!(herd.number("SELECT count(*) FROM runherd.runs").await, 0);
    refused(&herd.run(&["submit", "--queue", "q", "--chunks", &big]).await, 65, &["line 1", "262144"]);
    tokio::time::timeout(Duration::from_secs(60), herd.run(&["runs"])).await.expect("runs answers");
}
