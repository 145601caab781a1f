//! Connections that end, freeze, are blocked or never come about.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use runherd::broker::{BrokerError, BrokerSettings, BrokerState, Consumer, Publisher, QueueType, silent};
use runherd_actors::stages::outbox_publisher::PublishOutcome;
use runherd_integration_tests::{PrivateRabbit, Servers, World, until};
use tokio::net::TcpListener;
use tokio::time::timeout;
use url::Url;

use crate::fixture::{
    PATIENCE, all_confirmed, await_state, confirmed, confirmed_in_the_end, connected, count, disconnected_by, message,
    messages, next, not_sent, publisher, settings, settings_for, unknown,
};
use crate::proxy::Proxy;

/// What a busy machine may add to a deadline; less than a second wait for the deadline would.
const SLACK: Duration = Duration::from_secs(2);

/// What closing may take beyond the deadline.
const CLOSING: Duration = Duration::from_secs(4);

/// Publishes batch after batch, until the closing of the connection cuts into one; answers the ids that were confirmed.
async fn until_interrupted(publisher: &Publisher, prefix: &str) -> Vec<String> {
    let mut promised = Vec::new();
    for number in 0.. {
        let batch = messages(1000, &format!("{prefix}/{number}"), "q");
        let outcomes = publisher.publish(batch.clone()).await;
        assert_eq!(count(&outcomes, |o| matches!(o, PublishOutcome::ClosedByBroker(_))), 0);
        let kept = batch.into_iter().zip(&outcomes).filter(|(_, o)| confirmed(o));
        promised.extend(kept.map(|(m, _)| m.dedupe_key));
        if count(&outcomes, confirmed) < 1000 {
            break;
        }
    }
    promised
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operators_close_leaves_no_wrong_confirmed() {
    let world = World::new("an_operators_close_leaves_no_wrong_confirmed").await;
    let publisher = publisher(settings(&world, QueueType::Quorum), &["q"]).await;
    let mut promised = HashSet::new();
    let mut closed = HashSet::new();
    for round in 0..3 {
        let connection = world.rabbit().fresh_connection(&mut closed).await;
        let prefix = round.to_string();
        let interrupted = timeout(PATIENCE, until_interrupted(&publisher, &prefix));
        let (kept, was_there) = tokio::join!(interrupted, world.rabbit().close_connection(&connection));
        assert!(was_there);
        promised.extend(kept.expect("a batch was interrupted"));
        connected(&publisher).await;
        let after = messages(100, &format!("after/{round}"), "q");
        confirmed_in_the_end(&publisher, &after).await;
        promised.extend(after.into_iter().map(|m| m.dedupe_key));
    }
    publisher.close().await;
    let (consumer, mut deliveries) =
        Consumer::start(settings(&world, QueueType::Quorum), "q", 1000, &silent()).unwrap();
    while !promised.is_empty() {
        let delivery = next(&mut deliveries).await;
        promised.remove(delivery.message_id.as_ref().unwrap());
        delivery.ack();
    }
    consumer.close(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_broker_holds_nobody_past_the_deadline() {
    let world = World::new("a_frozen_broker_holds_nobody_past_the_deadline").await;
    let proxy = Proxy::before(world.amqp_url()).await;
    let mut settings = settings_for(&proxy.url, QueueType::Classic);
    settings.confirm_deadline = Duration::from_secs(3);
    settings.connect_timeout = Duration::from_secs(1);
    let publisher = publisher(settings.clone(), &["q"]).await;
    all_confirmed(&publisher, messages(100, "before", "q")).await;

    proxy.frozen.send_replace(true);
    let started = Instant::now();
    let (first, second, declared) = tokio::join!(
        publisher.publish(messages(3000, "frozen", "q")),
        publisher.publish(messages(10, "behind", "q")),
        publisher.declare_queues(vec!["other".to_owned()]),
    );
    assert!(started.elapsed() < settings.confirm_deadline + SLACK, "{:?}", started.elapsed());
    assert_eq!(count(&first, unknown), settings.publish_parallelism);
    assert_eq!(count(&first, not_sent), 3000 - settings.publish_parallelism);
    assert_eq!(count(&second, not_sent), 10, "{second:?}");
    assert!(matches!(declared, Err(BrokerError::NotConnected(_))), "{declared:?}");

    // Connecting to what accepts and then says nothing ends too, and publishing does not wait for it.
    await_state(publisher.state(), |state| disconnected_by(state, "login")).await;
    let started = Instant::now();
    let outcomes = publisher.publish(messages(10, "disconnected", "q")).await;
    assert_eq!(count(&outcomes, not_sent), 10);
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
    assert!(started.elapsed() < settings.confirm_deadline + CLOSING, "{:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_socket_leaves_the_window_unknown() {
    let world = World::new("a_lost_socket_leaves_the_window_unknown").await;
    let proxy = Proxy::before(world.amqp_url()).await;
    let settings = settings_for(&proxy.url, QueueType::Classic);
    let publisher = publisher(settings.clone(), &["q"]).await;
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
    let unknown = count(&outcomes, unknown);
    assert!(unknown > 0 && unknown <= settings.publish_parallelism, "{unknown}");
    assert_eq!(count(&outcomes, not_sent), 2000 - unknown);
    await_state(state.clone(), |state| matches!(state, BrokerState::Disconnected { .. })).await;
    proxy.frozen.send_replace(false);
    connected(&publisher).await;
    all_confirmed(&publisher, messages(100, "after", "q")).await;
    publisher.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_broker_does_not_let_in() {
    let world = World::new("what_the_broker_does_not_let_in").await;
    let mut strange = Url::parse(world.amqp_url()).unwrap();
    strange.set_path("no-such-vhost");
    let mut stranger = Url::parse(world.amqp_url()).unwrap();
    stranger.set_username("nobody").unwrap();
    for (url, cause) in [(stranger, "login"), (strange, "no-such-vhost")] {
        let settings = settings_for(url.as_str(), QueueType::Classic);
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

/// Raises the memory alarm, and waits until every connection was told to publish no more.
async fn raise_alarm(rabbit: &PrivateRabbit, world: &World) {
    rabbit.memory_alarm(true).await;
    until("the alarm", PATIENCE, async || world.rabbit().alarmed().await.then_some(())).await;
}

/// A batch that meets the alarm ends at its deadline, and whatever was written of it is unknown.
async fn publish_into_the_alarm(publisher: &Publisher, settings: &BrokerSettings) {
    let started = Instant::now();
    let mut state = publisher.state();
    let (outcomes, blocked) = tokio::join!(
        publisher.publish(messages(5000, "blocked", "q")),
        state.wait_for(|state| matches!(state, BrokerState::Blocked { .. })),
    );
    assert!(matches!(&*blocked.unwrap(), BrokerState::Blocked { reason } if !reason.is_empty()));
    assert!(started.elapsed() < settings.confirm_deadline + SLACK, "{:?}", started.elapsed());
    let unknown = count(&outcomes, |o| matches!(o, PublishOutcome::Unknown(why) if why.contains("no messages")));
    let not_sent = count(&outcomes, not_sent);
    assert!(unknown > 0 && unknown <= settings.publish_parallelism, "{unknown}");
    assert_eq!(unknown + not_sent, 5000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_broker() {
    let rabbit = PrivateRabbit::up("a_blocked_broker").await;
    let world = World::on("a_blocked_broker", Servers::from_env().with_rabbit(&rabbit)).await;
    let mut settings = settings(&world, QueueType::Classic);
    settings.confirm_deadline = Duration::from_secs(3);
    let publisher = publisher(settings.clone(), &["q"]).await;
    all_confirmed(&publisher, messages(10, "before", "q")).await;

    raise_alarm(&rabbit, &world).await;
    publish_into_the_alarm(&publisher, &settings).await;
    // The next connection finds the broker blocked as well, and risks one message for it.
    connected(&publisher).await;
    let outcomes = publisher.publish(messages(100, "again", "q")).await;
    assert_eq!((count(&outcomes, unknown), count(&outcomes, not_sent)), (1, 99));

    rabbit.memory_alarm(false).await;
    connected(&publisher).await;
    confirmed_in_the_end(&publisher, &messages(100, "after", "q")).await;

    // Closing while blocked ends too.
    raise_alarm(&rabbit, &world).await;
    let started = Instant::now();
    let closing = publisher.clone();
    tokio::join!(publisher.publish(messages(100, "last", "q")), closing.close());
    assert_eq!(*publisher.state().borrow(), BrokerState::Closed);
    assert!(started.elapsed() < settings.confirm_deadline + CLOSING, "{:?}", started.elapsed());
}
