//! The tests' own world: what it promises to every other test.
#![allow(clippy::unwrap_used, reason = "what is unexpected in a test fails it")]

use std::time::Duration;

use runherd_integration_tests::rabbit::Take;
use runherd_integration_tests::{PrivatePostgres, PrivateRabbit, Process, Rabbit, Servers, World, until};
use serde_json::json;
use tokio_postgres::NoTls;

const LIMIT: Duration = Duration::from_secs(30);

async fn database_exists(name: &str) -> bool {
    let url = Servers::from_env().pg_url;
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client.query_one("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", &[&name]).await.unwrap().get(0)
}

#[tokio::test]
async fn a_world_is_fresh_and_gone_after_drop() {
    let world = World::new("a_world_is_fresh_and_gone_after_drop").await;
    let placement = world.extra_database("p2").await;
    for database in [world.database(), &placement] {
        let client = world.pg(database).await;
        let tables: i64 =
            client.query_one("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", &[]).await.unwrap().get(0);
        assert_eq!(tables, 0);
    }
    assert_eq!(world.rabbit().queues().await, Vec::<String>::new());
    assert!(world.logs().is_dir());

    let (first, second) = (world.database().name.clone(), placement.name.clone());
    let (rabbit, logs) = (world.rabbit().clone(), world.logs().to_owned());
    assert!(database_exists(&first).await && database_exists(&second).await && rabbit.vhost_exists().await);
    // Somebody who is still connected does not keep a database alive.
    let _connected = world.pg(&placement).await;
    drop(world);
    assert!(!database_exists(&first).await && !database_exists(&second).await);
    assert!(!rabbit.vhost_exists().await);
    assert!(!logs.exists());
}

#[test]
fn a_world_goes_when_its_test_panics_and_leaves_its_logs() {
    // A test inside the test: its own thread and runtime, as the test runner would give it.
    let (sender, receiver) = std::sync::mpsc::channel();
    let failing_test = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let world = World::new("a_world_goes_when_its_test_panics").await;
            let seen = (world.database().name.clone(), world.rabbit().clone(), world.logs().to_owned());
            sender.send(seen).unwrap();
            panic!("as a failing test does");
        });
    });
    assert!(failing_test.join().is_err());
    let (database, rabbit, logs) = receiver.recv().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        assert!(!database_exists(&database).await);
        assert!(!rabbit.vhost_exists().await);
    });
    assert!(logs.is_dir());
    std::fs::remove_dir_all(logs).unwrap();
}

#[tokio::test]
async fn messages_depths_and_policies_through_the_api() {
    let world = World::new("messages_depths_and_policies").await;
    let rabbit = world.rabbit();
    // Names that need percent-encoding in a path.
    let (queue, exchange, key) = ("seeds/eu 1", "seeds%", "run.*/x");
    rabbit.declare_queue(queue, json!({"x-queue-type": "quorum"})).await;
    rabbit.declare_exchange(exchange, "direct").await;
    assert!(!rabbit.publish(exchange, key, json!({}), "lost").await);
    rabbit.bind(exchange, queue, key).await;
    assert!(rabbit.publish(exchange, key, json!({"message_id": "m-1", "delivery_mode": 2}), "one").await);
    assert!(rabbit.publish("", queue, json!({}), "two").await);

    let ready = async |expected: u64| {
        until(format!("{expected} messages ready"), LIMIT, async || {
            rabbit.depth(queue).await.filter(|depth| depth.ready == expected)
        })
        .await
    };
    assert_eq!(ready(2).await.consumers, 0);
    let messages = rabbit.get(queue, 1, Take::Remove).await;
    assert_eq!((messages[0].payload.as_str(), &messages[0].properties["message_id"]), ("one", &json!("m-1")));
    ready(1).await;
    assert_eq!(rabbit.get(queue, 10, Take::Requeue).await[0].payload, "two");
    rabbit.purge(queue).await;
    ready(0).await;

    rabbit.set_policy("full", "^seeds", json!({"max-length": 1, "overflow": "reject-publish"})).await;
    rabbit.delete_policy("full").await;
    rabbit.delete_binding(exchange, queue, key).await;
    assert!(!rabbit.publish(exchange, key, json!({}), "lost").await);
    rabbit.delete_exchange(exchange).await;
    rabbit.delete_queue(queue).await;
    assert_eq!(rabbit.depth(queue).await, None);
    assert!(rabbit.connections().await.is_empty());
    assert!(!rabbit.close_connection("no such connection").await);
}

#[tokio::test]
async fn terminated_backends_lose_their_connection() {
    let world = World::new("terminated_backends").await;
    let client = world.pg(world.database()).await;
    assert_eq!(world.terminate_backends(world.database()).await, 1);
    assert!(client.query_one("SELECT 1", &[]).await.is_err());
}

#[tokio::test]
async fn a_process_is_seen_signalled_and_ended() {
    let world = World::new("a_process_is_seen").await;
    let script = "echo ready >&2; trap 'echo drained; exit 3' TERM; while :; do sleep 0.05; done";
    let mut process = Process::program(&world, "shell", "sh").args(["-c", script]).start();
    assert_eq!(process.wait_for_line("read", LIMIT).await, "ready");
    let mark = process.mark();
    process.stop();
    process.term();
    assert!(process.exit_status().is_none());
    process.cont();
    assert_eq!(process.wait(LIMIT).await.code(), Some(3));
    assert_eq!(process.wait_for_line_after(mark, "drained", LIMIT).await, "drained");

    let mut again = Process::program(&world, "shell", "sleep").arg("1000").start();
    assert!(!again.kill().success());
    assert!(world.logs().join("shell.err").is_file() && world.logs().join("shell.2.err").is_file());
}

#[tokio::test]
#[should_panic(expected = "for what never comes")]
async fn waiting_ends_at_its_limit_even_if_the_probe_hangs() {
    until("what never comes", Duration::from_millis(50), async || std::future::pending::<Option<()>>().await).await;
}

#[tokio::test]
async fn a_private_rabbit_keeps_a_durable_queue_over_stop_kill_and_start() {
    let test = "a_private_rabbit_keeps_a_durable_queue";
    let server = PrivateRabbit::up(test).await;
    let rabbit = Rabbit::new(server.api_url(), "/");
    rabbit.declare_queue("kept", json!({"x-queue-type": "quorum"})).await;
    assert!(rabbit.publish("", "kept", json!({"delivery_mode": 2}), "still here").await);

    server.stop().await;
    assert!(rabbit.request("GET", "overview".to_owned(), None).await.is_err());
    server.start().await;
    assert_eq!(rabbit.get("kept", 1, Take::Requeue).await[0].payload, "still here");
    server.kill().await;
    server.start().await;
    let message =
        until("the leader of the queue", LIMIT, async || rabbit.get("kept", 1, Take::Remove).await.pop()).await;
    assert_eq!(message.payload, "still here");
}

#[tokio::test]
async fn a_private_rabbit_raises_alarms_and_freezes() {
    let test = "a_private_rabbit_raises_alarms";
    let server = PrivateRabbit::up(test).await;
    let world = World::on(test, Servers::from_env().with_rabbit(&server)).await;
    let rabbit = world.rabbit();
    assert!(!rabbit.alarmed().await);
    server.memory_alarm(true).await;
    until("the memory alarm", LIMIT, async || rabbit.alarmed().await.then_some(())).await;
    server.memory_alarm(false).await;
    until("the end of the memory alarm", LIMIT, async || (!rabbit.alarmed().await).then_some(())).await;

    server.pause().await;
    let frozen = tokio::time::timeout(Duration::from_millis(500), rabbit.vhost_exists()).await;
    assert!(frozen.is_err(), "a paused server does not answer");
    server.resume().await;
    assert!(rabbit.vhost_exists().await);
}

#[tokio::test]
async fn a_private_postgres_keeps_a_table_over_stop_kill_pause_and_start() {
    let test = "a_private_postgres_keeps_a_table";
    let server = PrivatePostgres::up(test).await;
    let world = World::on(test, Servers::from_env().with_postgres(&server)).await;
    let database = world.database();
    world.pg(database).await.batch_execute("CREATE TABLE kept AS SELECT 42 AS answer").await.unwrap();
    let answer =
        async || -> i32 { world.pg(database).await.query_one("SELECT answer FROM kept", &[]).await.unwrap().get(0) };

    server.stop().await;
    assert!(tokio_postgres::connect(world.pg_url(), NoTls).await.is_err());
    server.start().await;
    assert_eq!(answer().await, 42);
    server.kill().await;
    assert!(tokio_postgres::connect(world.pg_url(), NoTls).await.is_err());
    server.start().await;
    assert_eq!(answer().await, 42);

    let client = world.pg(database).await;
    server.pause().await;
    let frozen = tokio::time::timeout(Duration::from_millis(500), client.query_one("SELECT 1", &[])).await;
    assert!(frozen.is_err(), "a paused server does not answer");
    server.resume().await;
    assert_eq!(answer().await, 42);
}
