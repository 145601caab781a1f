//! The broker adapter against a real RabbitMQ: that no outcome is ever wrong, and that no call ever hangs.
//!
//! The server is at `RUNHERD_TEST_AMQP_URL`, and `rabbitmqctl` must be allowed to manage it: every test has a vhost of its
//! own. What would disturb other tests (an alarm) runs only against a private server: see `a_blocked_broker`.

// The lint's own exception for tests stops at the helpers they share.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, HashSet};
use std::env;
use std::time::{Duration, Instant};

use runherd::broker::topology::{EXCHANGE, chunk_queue, chunk_ready_key};
use runherd::broker::{
    BrokerError, BrokerSettings, BrokerState, BrokerUrl, Consumer, Delivery, Publisher, QueueType, silent,
};
use runherd_actors::stages::outbox_publisher::{Message, PublishOutcome};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, tcp};
use tokio::process::Command;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use uuid::Uuid;

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A fresh vhost, removed at the end.
struct World {
    ctl: Vec<String>,
    vhost: String,
    url: String,
}

impl World {
    async fn new() -> Self {
        let base = env::var("RUNHERD_TEST_AMQP_URL").unwrap_or("amqp://guest:guest@127.0.0.1:5672/%2f".to_owned());
        Self::on(&base, vec!["rabbitmqctl".to_owned()]).await
    }

    /// A vhost on the server at `base`, which the command `ctl` manages.
    async fn on(base: &str, ctl: Vec<String>) -> Self {
        let vhost = format!("broker-test-{}", Uuid::new_v4().simple());
        let (server, _) = base.rsplit_once('/').unwrap();
        let user = base.parse::<BrokerUrl>().unwrap().user().to_owned();
        let world = Self { ctl, url: format!("{server}/{vhost}"), vhost };
        world.ctl(&["add_vhost", &world.vhost]).await;
        world.ctl(&["set_permissions", "-p", &world.vhost, &user, ".*", ".*", ".*"]).await;
        world
    }

    async fn ctl(&self, arguments: &[&str]) -> String {
        let output = Command::new(&self.ctl[0]).args(&self.ctl[1..]).args(arguments).output().await.unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{arguments:?}: {text} {}", String::from_utf8_lossy(&output.stderr));
        text
    }

    async fn close_connections(&self) {
        self.ctl(&["close_all_connections", "--vhost", &self.vhost, "a test closes this"]).await;
    }

    /// Makes the queue refuse what goes beyond `length`.
    async fn bound(&self, queue: &str, length: u32) {
        let pattern = format!("^{}$", chunk_queue(queue).replace('.', "\\."));
        let policy = format!(r#"{{"max-length":{length},"overflow":"reject-publish"}}"#);
        self.ctl(&["set_policy", "-p", &self.vhost, "bound", &pattern, &policy, "--apply-to", "queues"]).await;
    }

    /// (ready, unacknowledged) messages of a queue.
    async fn counts(&self, queue: &str) -> (u64, u64) {
        let columns = ["name", "messages_ready", "messages_unacknowledged"];
        let mut command = vec!["list_queues", "-q", "-p", &self.vhost, "--formatter", "json"];
        command.extend(columns);
        let queues: Vec<BTreeMap<String, Value>> = serde_json::from_str(&self.ctl(&command).await).unwrap();
        let row = queues.into_iter().find(|q| q["name"] == chunk_queue(queue)).unwrap();
        (row[columns[1]].as_u64().unwrap(), row[columns[2]].as_u64().unwrap())
    }

    /// Asks until the queue's counts are these: quorum queues publish theirs every few seconds.
    async fn await_counts(&self, queue: &str, ready: u64, unacknowledged: u64) {
        let mut last = (0, 0);
        let reached = async {
            while last != (ready, unacknowledged) {
                last = self.counts(queue).await;
            }
        };
        let reached = timeout(PATIENCE, reached).await.is_ok();
        assert!(reached, "{queue}: {last:?} instead of {:?}", (ready, unacknowledged));
    }

    fn settings(&self, queue_type: QueueType) -> BrokerSettings {
        let mut settings = BrokerSettings::new(self.url.parse().unwrap());
        settings.topology.queue_type = queue_type;
        settings.reconnect_min = Duration::from_millis(20);
        settings.reconnect_max = Duration::from_millis(500);
        settings
    }

    async fn publisher(&self, queue_type: QueueType, queues: &[&str]) -> Publisher {
        let publisher = Publisher::start(self.settings(queue_type), "test", &silent());
        connected(&publisher).await;
        publisher.declare_queues(queues.iter().map(|q| q.to_string()).collect()).await.unwrap();
        publisher
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let mut command = std::process::Command::new(&self.ctl[0]);
        let _ = command.args(&self.ctl[1..]).args(["delete_vhost", &self.vhost]).output();
    }
}

async fn await_state(mut state: watch::Receiver<BrokerState>, wanted: impl FnMut(&BrokerState) -> bool) -> BrokerState {
    timeout(PATIENCE, state.wait_for(wanted)).await.expect("in time").expect("the thread lives").clone()
}

async fn connected(publisher: &Publisher) {
    await_state(publisher.state(), |state| *state == BrokerState::Connected).await;
}

fn message(id: &str, queue: &str) -> Message {
    Message {
        event_id: 1,
        dedupe_key: id.to_owned(),
        exchange: EXCHANGE.to_owned(),
        routing_key: chunk_ready_key(queue),
        kind: "chunk.ready".to_owned(),
        created_at: 1_700_000_000,
        headers: serde_json::Map::from_iter([
            ("cause".to_owned(), Value::from("dispatch")),
            ("generation".to_owned(), Value::from(1_i64 << 40)),
        ]),
        payload: format!(r#"{{"id":"{id}"}}"#).into_bytes(),
    }
}

fn messages(count: usize, prefix: &str, queue: &str) -> Vec<Message> {
    (0..count).map(|i| message(&format!("{prefix}/{i}"), queue)).collect()
}

fn count(outcomes: &[PublishOutcome], wanted: impl Fn(&PublishOutcome) -> bool) -> usize {
    outcomes.iter().filter(|outcome| wanted(outcome)).count()
}

fn confirmed(outcome: &PublishOutcome) -> bool {
    *outcome == PublishOutcome::Confirmed
}

async fn all_confirmed(publisher: &Publisher, batch: Vec<Message>) {
    let outcomes = publisher.publish(batch).await;
    assert_eq!(count(&outcomes, confirmed), outcomes.len(), "{:?}", outcomes.iter().find(|o| !confirmed(o)));
}

async fn next(deliveries: &mut mpsc::Receiver<Delivery>) -> Delivery {
    timeout(PATIENCE, deliveries.recv()).await.expect("in time").expect("the consumer lives")
}

/// Routable, unroutable and refused messages, interleaved: every outcome is right.
async fn mixed_batch(queue_type: QueueType) {
    let world = World::new().await;
    world.bound("full", 10).await;
    let publisher = world.publisher(queue_type, &["open", "full"]).await;
    let filled = publisher.publish(messages(500, "fill", "full")).await;
    let mut in_full = count(&filled, confirmed);
    assert_eq!(in_full + count(&filled, |o| *o == PublishOutcome::Nacked), 500);
    for round in 0..3 {
        let queues = ["open", "nowhere", "full"];
        let batch = (0..6000).map(|i| message(&format!("{round}/{i}"), queues[i % 3])).collect();
        let outcomes = publisher.publish(batch).await;
        assert_eq!(outcomes.len(), 6000);
        for (i, outcome) in outcomes.iter().enumerate() {
            match (queues[i % 3], outcome) {
                ("open", PublishOutcome::Confirmed) | ("full", PublishOutcome::Nacked) => {}
                ("full", PublishOutcome::Confirmed) => in_full += 1,
                ("nowhere", PublishOutcome::Unroutable { code: 312, text }) if text == "NO_ROUTE" => {}
                wrong => panic!("message {i} of round {round}: {wrong:?}"),
            }
        }
    }
    assert!(in_full < 500, "the full queue refused most: {in_full}");
    world.await_counts("open", 6000, 0).await;
    world.await_counts("full", in_full as u64, 0).await;
    publisher.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mixed_outcomes_on_quorum_queues() {
    mixed_batch(QueueType::Quorum).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mixed_outcomes_on_classic_queues() {
    mixed_batch(QueueType::Classic).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_amqp_cannot_carry_is_refused_and_costs_nothing() {
    let world = World::new().await;
    let publisher = world.publisher(QueueType::Classic, &["q"]).await;
    let mut state = publisher.state();
    state.mark_unchanged();
    let (long, longest) = ("x".repeat(256), "x".repeat(255));
    let outcomes = publisher
        .publish(vec![message("a", "q"), message(&long, "q"), message(&longest, "q"), message("b", "q")])
        .await;
    assert!(matches!(&outcomes[1], PublishOutcome::Refused(why) if why.contains("256 bytes")), "{outcomes:?}");
    assert_eq!(count(&outcomes, confirmed), 3, "{outcomes:?}");
    assert!(!state.has_changed().unwrap(), "the connection survived");
    // The same id twice in one batch: both get through, one after the other.
    all_confirmed(&publisher, vec![message("twin", "q"), message("twin", "q"), message("c", "q")]).await;
    assert_eq!(publisher.publish(Vec::new()).await, []);
    publisher.close().await;
    let after = publisher.publish(vec![message("late", "q")]).await;
    assert!(matches!(&after[..], [PublishOutcome::NotSent(_)]), "{after:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_exchange_blames_its_batch_only() {
    let world = World::new().await;
    let publisher = world.publisher(QueueType::Classic, &["q"]).await;
    let mut state = publisher.state();
    state.mark_unchanged();
    all_confirmed(&publisher, messages(50, "before", "q")).await;
    let mut batch = messages(1000, "poisoned", "q");
    batch[300].exchange = "no-such-exchange".to_owned();
    let outcomes = publisher.publish(batch.clone()).await;
    assert!(
        matches!(&outcomes[300], PublishOutcome::ClosedByBroker(why) if why.contains("404")),
        "{:?}",
        outcomes[300]
    );
    let known = |o: &PublishOutcome| {
        matches!(o, PublishOutcome::Confirmed | PublishOutcome::ClosedByBroker(_) | PublishOutcome::NotSent(_))
    };
    assert_eq!(count(&outcomes, known), 1000, "{:?}", outcomes.iter().find(|o| !known(o)));
    let alone = publisher.publish(vec![batch[300].clone()]).await;
    assert!(matches!(&alone[..], [PublishOutcome::ClosedByBroker(_)]), "{alone:?}");
    all_confirmed(&publisher, messages(50, "after", "q")).await;
    assert!(!state.has_changed().unwrap(), "the connection is replaced without a pause");
    publisher.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operators_close_leaves_no_wrong_confirmed() {
    let world = World::new().await;
    let publisher = world.publisher(QueueType::Quorum, &["q"]).await;
    let mut promised = HashSet::new();
    for round in 0..3 {
        let mut closing = Box::pin(world.close_connections());
        let mut closed = false;
        let interrupted = async {
            for batch in 0.. {
                let batch = messages(1000, &format!("{round}/{batch}"), "q");
                let publishing = publisher.publish(batch.clone());
                tokio::pin!(publishing);
                let outcomes = loop {
                    tokio::select! {
                        outcomes = &mut publishing => break outcomes,
                        () = &mut closing, if !closed => closed = true,
                    }
                };
                assert_eq!(count(&outcomes, |o| matches!(o, PublishOutcome::ClosedByBroker(_))), 0);
                let kept = batch.into_iter().zip(&outcomes).filter(|(_, o)| confirmed(o));
                promised.extend(kept.map(|(m, _)| m.dedupe_key));
                if count(&outcomes, confirmed) < 1000 {
                    break;
                }
            }
        };
        timeout(PATIENCE, interrupted).await.expect("a batch was interrupted");
        if !closed {
            closing.await;
        }
        connected(&publisher).await;
        let after = messages(100, &format!("after/{round}"), "q");
        // The close may come twice to a connection that was quick to return.
        while count(&publisher.publish(after.clone()).await, confirmed) < 100 {
            connected(&publisher).await;
        }
        promised.extend(after.into_iter().map(|m| m.dedupe_key));
    }
    publisher.close().await;
    let (consumer, mut deliveries) = Consumer::start(world.settings(QueueType::Quorum), "q", 1000, &silent()).unwrap();
    while !promised.is_empty() {
        let delivery = next(&mut deliveries).await;
        promised.remove(delivery.message_id.as_ref().unwrap());
        delivery.ack();
    }
    consumer.close(PATIENCE).await;
}

/// A proxy that can stop forwarding without closing anything, and close without a word.
struct Proxy {
    url: String,
    frozen: watch::Sender<bool>,
    /// Counts what clients sent while it was frozen.
    held: watch::Receiver<u32>,
    /// Every change closes all connections.
    cut: watch::Sender<u32>,
}

impl Proxy {
    async fn before(url: &str) -> Self {
        let target: BrokerUrl = url.parse().unwrap();
        let upstream = (target.host().to_owned(), target.port());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (credentials, path) = (url.split_once('@').unwrap().0, url.rsplit_once('/').unwrap().1);
        let url = format!("{credentials}@{}/{path}", listener.local_addr().unwrap());
        let (frozen, gate) = watch::channel(false);
        let (held, holding) = watch::channel(0);
        let (cut, cutting) = watch::channel(0);
        tokio::spawn(async move {
            loop {
                let (near, _) = listener.accept().await.unwrap();
                let far = TcpStream::connect(&upstream).await.unwrap();
                let (mut cutting, gate, held) = (cutting.clone(), gate.clone(), held.clone());
                cutting.mark_unchanged();
                tokio::spawn(async move {
                    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
                    tokio::select! {
                        () = forward(near_in, far_out, gate.clone(), Some(held)) => {}
                        () = forward(far_in, near_out, gate, None) => {}
                        _ = cutting.changed() => {}
                    }
                });
            }
        });
        Self { url, frozen, held: holding, cut }
    }
}

async fn forward(
    mut from: tcp::OwnedReadHalf,
    mut to: tcp::OwnedWriteHalf,
    mut frozen: watch::Receiver<bool>,
    held: Option<watch::Sender<u32>>,
) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        if let Some(held) = held.as_ref().filter(|_| *frozen.borrow()) {
            held.send_modify(|held| *held += 1);
        }
        if frozen.wait_for(|frozen| !frozen).await.is_err() || to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_broker_holds_nobody_past_the_deadline() {
    let world = World::new().await;
    let proxy = Proxy::before(&world.url).await;
    let mut settings = world.settings(QueueType::Classic);
    settings.url = proxy.url.parse().unwrap();
    settings.confirm_deadline = Duration::from_secs(2);
    settings.connect_timeout = Duration::from_secs(1);
    let publisher = Publisher::start(settings.clone(), "test", &silent());
    connected(&publisher).await;
    publisher.declare_queues(vec!["q".to_owned()]).await.unwrap();
    all_confirmed(&publisher, messages(100, "before", "q")).await;

    proxy.frozen.send_replace(true);
    let started = Instant::now();
    let (first, second, declared) = tokio::join!(
        publisher.publish(messages(3000, "frozen", "q")),
        publisher.publish(messages(10, "behind", "q")),
        publisher.declare_queues(vec!["other".to_owned()]),
    );
    assert!(started.elapsed() < settings.confirm_deadline + Duration::from_secs(1), "{:?}", started.elapsed());
    assert_eq!(count(&first, |o| matches!(o, PublishOutcome::Unknown(_))), settings.publish_parallelism);
    assert_eq!(count(&first, |o| matches!(o, PublishOutcome::NotSent(_))), 3000 - settings.publish_parallelism);
    assert_eq!(count(&second, |o| matches!(o, PublishOutcome::NotSent(_))), 10, "{second:?}");
    assert!(matches!(declared, Err(BrokerError::NotConnected(_))), "{declared:?}");

    // Connecting to what accepts and then says nothing ends too, and publishing does not wait for it.
    await_state(publisher.state(), |state| disconnected_by(state, "login")).await;
    let started = Instant::now();
    let outcomes = publisher.publish(messages(10, "disconnected", "q")).await;
    assert_eq!(count(&outcomes, |o| matches!(o, PublishOutcome::NotSent(_))), 10);
    assert!(started.elapsed() < settings.confirm_deadline);

    proxy.frozen.send_replace(false);
    connected(&publisher).await;
    all_confirmed(&publisher, messages(100, "after", "q")).await;
    // What was asked for in vain was remembered.
    all_confirmed(&publisher, messages(1, "after", "other")).await;

    proxy.frozen.send_replace(true);
    let (closing, unsent) = (publisher.clone(), publisher.publish(messages(1000, "last", "q")));
    let started = Instant::now();
    let (outcomes, ()) = tokio::join!(unsent, closing.close());
    assert_eq!(count(&outcomes, confirmed), 0);
    assert_eq!(*publisher.state().borrow(), BrokerState::Closed);
    assert!(started.elapsed() < Duration::from_secs(6), "{:?}", started.elapsed());
}

fn disconnected_by(state: &BrokerState, cause: &str) -> bool {
    matches!(state, BrokerState::Disconnected { error, .. } if error.contains(cause))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_socket_leaves_the_window_unknown() {
    let world = World::new().await;
    let proxy = Proxy::before(&world.url).await;
    let mut settings = world.settings(QueueType::Classic);
    settings.url = proxy.url.parse().unwrap();
    let publisher = Publisher::start(settings.clone(), "test", &silent());
    connected(&publisher).await;
    publisher.declare_queues(vec!["q".to_owned()]).await.unwrap();
    all_confirmed(&publisher, messages(100, "before", "q")).await;
    let mut state = publisher.state();
    state.mark_unchanged();
    // Nothing of the batch reaches the broker, and then the sockets close: nobody can know what it saw.
    proxy.frozen.send_replace(true);
    let cutting = async {
        proxy.held.clone().wait_for(|held| *held > 0).await.unwrap();
        proxy.cut.send_modify(|cuts| *cuts += 1);
    };
    let (outcomes, ()) = tokio::join!(publisher.publish(messages(2000, "lost", "q")), cutting);
    let unknown = count(&outcomes, |o| matches!(o, PublishOutcome::Unknown(_)));
    assert!(unknown > 0 && unknown <= settings.publish_parallelism, "{unknown}");
    assert_eq!(count(&outcomes, |o| matches!(o, PublishOutcome::NotSent(_))), 2000 - unknown);
    await_state(state.clone(), |state| matches!(state, BrokerState::Disconnected { .. })).await;
    proxy.frozen.send_replace(false);
    connected(&publisher).await;
    all_confirmed(&publisher, messages(100, "after", "q")).await;
    publisher.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_broker_does_not_let_in() {
    let world = World::new().await;
    let strange = world.url.replace(&world.vhost, "no-such-vhost");
    let unknown_user = world.url.replace("amqp://", "amqp://nobody-").to_owned();
    for (url, cause) in [(unknown_user, "login"), (strange, "no-such-vhost")] {
        let mut settings = world.settings(QueueType::Classic);
        settings.url = url.parse().unwrap();
        let publisher = Publisher::start(settings, "test", &silent());
        await_state(publisher.state(), |state| disconnected_by(state, cause)).await;
        publisher.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_at_the_address() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("amqp://u:secret@{}/v", listener.local_addr().unwrap());
    drop(listener);
    let publisher = Publisher::start(BrokerSettings::new(url.parse().unwrap()), "test", &silent());
    let refused = |s: &BrokerState| matches!(s, BrokerState::Disconnected { error, .. } if error.contains("refused"));
    let state = await_state(publisher.state(), refused).await;
    assert!(!format!("{state:?}").contains("secret"), "{state:?}");
    let outcomes = publisher.publish(vec![message("a", "q")]).await;
    assert!(matches!(&outcomes[..], [PublishOutcome::NotSent(why)] if why.contains("refused")), "{outcomes:?}");
    publisher.close().await;
    assert_eq!(*publisher.state().borrow(), BrokerState::Closed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_with_other_arguments_is_named() {
    let world = World::new().await;
    let first = world.publisher(QueueType::Quorum, &["q"]).await;
    let other = world.publisher(QueueType::Classic, &[]).await;
    let mut state = other.state();
    state.mark_unchanged();
    let error = other.declare_queues(vec!["q".to_owned(), "fine".to_owned()]).await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, BrokerError::DeclareRefused { .. }), "{text}");
    assert!(text.contains("queue runherd.chunks.q") && text.contains("x-queue-type"), "{text}");
    all_confirmed(&other, vec![message("a", "q"), message("b", "fine")]).await;
    assert!(!state.has_changed().unwrap(), "the connection survived");
    first.declare_queues(vec!["q".to_owned(), "q".to_owned()]).await.unwrap();
    let bad = first.declare_queues(vec!["not a name".to_owned()]).await.unwrap_err();
    assert!(matches!(bad, BrokerError::BadQueueName { .. }), "{bad}");
    tokio::join!(first.close(), other.close());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_holds_its_prefetch_and_sees_what_was_sent() {
    let world = World::new().await;
    // The worker comes first: it declares the queue itself.
    let settings = world.settings(QueueType::Classic);
    let (consumer, mut deliveries) = Consumer::start(settings, "q", 5, &silent()).unwrap();
    await_state(consumer.state(), |state| *state == BrokerState::Connected).await;
    let publisher = Publisher::start(world.settings(QueueType::Classic), "test", &silent());
    connected(&publisher).await;
    all_confirmed(&publisher, messages(20, "m", "q")).await;
    world.await_counts("q", 15, 5).await;
    let mut held = Vec::new();
    for i in 0..5 {
        let delivery = next(&mut deliveries).await;
        let sent = message(&format!("m/{i}"), "q");
        assert_eq!((&delivery.body, delivery.message_id.as_deref()), (&sent.payload, Some(&*sent.dedupe_key)));
        assert_eq!((delivery.kind.as_deref(), &delivery.headers), (Some(&*sent.kind), &sent.headers));
        assert!(!delivery.redelivered && delivery.is_current());
        held.push(delivery);
    }
    assert!(deliveries.try_recv().is_err());
    // Out of order: the first stays open while the others are acked, one by one.
    held.drain(1..).for_each(Delivery::ack);
    world.await_counts("q", 11, 5).await;
    held.remove(0).requeue();
    let mut seen = HashSet::new();
    while seen.len() < 16 {
        let delivery = next(&mut deliveries).await;
        seen.insert(delivery.message_id.clone().unwrap());
        match delivery.message_id.as_deref() {
            Some("m/0") => assert!(delivery.redelivered),
            _ => assert!(!delivery.redelivered),
        }
        delivery.ack();
    }
    consumer.close(PATIENCE).await;
    assert!(deliveries.recv().await.is_none(), "the receiver ends");
    world.await_counts("q", 0, 0).await;
    publisher.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_unsettled_comes_again_after_a_lost_connection() {
    let world = World::new().await;
    let publisher = world.publisher(QueueType::Classic, &["q"]).await;
    all_confirmed(&publisher, messages(6, "m", "q")).await;
    publisher.close().await;
    let settings = world.settings(QueueType::Classic);
    let (consumer, mut deliveries) = Consumer::start(settings, "q", 3, &silent()).unwrap();
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push(next(&mut deliveries).await);
    }
    world.close_connections().await;
    // The third was in the receiver when its connection went.
    let mut current = next(&mut deliveries).await;
    while !current.is_current() {
        held.push(current);
        current = next(&mut deliveries).await;
    }
    assert!(current.redelivered);
    assert!(held.iter().all(|old| !old.is_current()));
    // Acks of the lost connection must not settle what has the same tag on the new one.
    held.into_iter().for_each(Delivery::ack);
    let mut ids = HashSet::from([current.message_id.clone().unwrap()]);
    // Words are told in order: once this one is, those were told or dropped.
    current.ack();
    world.await_counts("q", 2, 3).await;
    while ids.len() < 6 {
        let delivery = next(&mut deliveries).await;
        assert!(delivery.is_current());
        ids.insert(delivery.message_id.clone().unwrap());
        delivery.ack();
    }
    consumer.close(PATIENCE).await;
    world.await_counts("q", 0, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_waits_for_deliveries_in_hand_and_returns_the_others() {
    let world = World::new().await;
    let publisher = world.publisher(QueueType::Classic, &["q"]).await;
    all_confirmed(&publisher, messages(10, "m", "q")).await;
    let (consumer, mut deliveries) = Consumer::start(world.settings(QueueType::Classic), "q", 4, &silent()).unwrap();
    let in_hand = next(&mut deliveries).await;
    let closing = tokio::spawn(consumer.close(PATIENCE));
    // The receiver ends once the others in it are taken; those are dropped, and go back.
    while let Some(delivery) = deliveries.recv().await {
        drop(delivery);
    }
    in_hand.ack();
    timeout(PATIENCE, closing).await.unwrap().unwrap();
    world.await_counts("q", 9, 0).await;
    publisher.close().await;
}

/// Raises an alarm, so it runs only against a server of its own: `RUNHERD_TEST_PRIVATE_AMQP_URL`, managed by the command
/// in `RUNHERD_TEST_PRIVATE_RABBITMQCTL`, such as `rabbitmqctl -n private@localhost`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_broker() {
    let (Ok(url), Ok(ctl)) = (env::var("RUNHERD_TEST_PRIVATE_AMQP_URL"), env::var("RUNHERD_TEST_PRIVATE_RABBITMQCTL"))
    else {
        println!("skipped: no private server");
        return;
    };
    let world = World::on(&url, ctl.split(' ').map(str::to_owned).collect()).await;
    // An earlier run may have failed in the middle of an alarm.
    world.ctl(&["set_vm_memory_high_watermark", "0.4"]).await;
    let mut settings = world.settings(QueueType::Classic);
    settings.confirm_deadline = Duration::from_secs(3);
    let publisher = Publisher::start(settings.clone(), "test", &silent());
    connected(&publisher).await;
    publisher.declare_queues(vec!["q".to_owned()]).await.unwrap();
    all_confirmed(&publisher, messages(10, "before", "q")).await;

    world.ctl(&["set_vm_memory_high_watermark", "0.00001"]).await;
    let started = Instant::now();
    let mut state = publisher.state();
    let (outcomes, blocked) = tokio::join!(
        publisher.publish(messages(5000, "blocked", "q")),
        state.wait_for(|state| matches!(state, BrokerState::Blocked { .. })),
    );
    assert!(matches!(&*blocked.unwrap(), BrokerState::Blocked { reason } if !reason.is_empty()));
    assert!(started.elapsed() < settings.confirm_deadline + Duration::from_secs(1), "{:?}", started.elapsed());
    let unknown = count(&outcomes, |o| matches!(o, PublishOutcome::Unknown(why) if why.contains("no messages")));
    let not_sent = count(&outcomes, |o| matches!(o, PublishOutcome::NotSent(_)));
    assert!(unknown > 0 && unknown <= settings.publish_parallelism, "{unknown}");
    assert_eq!(unknown + not_sent, 5000);
    // The next connection finds the broker blocked as well, and risks one message for it.
    connected(&publisher).await;
    let outcomes = publisher.publish(messages(100, "again", "q")).await;
    assert_eq!(count(&outcomes, |o| matches!(o, PublishOutcome::Unknown(_))), 1);
    assert_eq!(count(&outcomes, |o| matches!(o, PublishOutcome::NotSent(_))), 99);

    world.ctl(&["set_vm_memory_high_watermark", "0.4"]).await;
    connected(&publisher).await;
    while count(&publisher.publish(messages(100, "after", "q")).await, confirmed) < 100 {
        connected(&publisher).await;
    }

    // Closing while blocked ends too.
    world.ctl(&["set_vm_memory_high_watermark", "0.00001"]).await;
    let started = Instant::now();
    let closing = publisher.clone();
    tokio::join!(publisher.publish(messages(100, "last", "q")), closing.close());
    assert_eq!(*publisher.state().borrow(), BrokerState::Closed);
    assert!(started.elapsed() < settings.confirm_deadline + Duration::from_secs(4), "{:?}", started.elapsed());
    world.ctl(&["set_vm_memory_high_watermark", "0.4"]).await;
}

/// Not a test but a measurement: run it with `--ignored --nocapture`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn rates() {
    for queue_type in [QueueType::Quorum, QueueType::Classic] {
        let world = World::new().await;
        let publisher = world.publisher(queue_type, &["q"]).await;
        all_confirmed(&publisher, messages(2000, "warm", "q")).await;
        for (size, batches) in [(500, 60), (5000, 6)] {
            let prepared: Vec<_> = (0..batches).map(|b| messages(size, &format!("{size}/{b}"), "q")).collect();
            let started = Instant::now();
            for batch in prepared {
                all_confirmed(&publisher, batch).await;
            }
            let rate = (size * batches) as f64 / started.elapsed().as_secs_f64();
            println!("{queue_type:?}, window 500, batches of {size}: {rate:.0} confirmed/s");
        }
        publisher.close().await;
        let (consumer, mut deliveries) = Consumer::start(world.settings(queue_type), "q", 500, &silent()).unwrap();
        let first = next(&mut deliveries).await;
        let started = Instant::now();
        first.ack();
        for _ in 1..62_000 {
            next(&mut deliveries).await.ack();
        }
        let rate = 62_000.0 / started.elapsed().as_secs_f64();
        consumer.close(PATIENCE).await;
        world.await_counts("q", 0, 0).await;
        println!("{queue_type:?}, prefetch 500: {rate:.0} consumed and acked/s");
    }
}
