//! Publishers in a test's world, and the messages that they are given.

use std::time::Duration;

use runherd::broker::topology::{EXCHANGE, chunk_queue, chunk_ready_key};
use runherd::broker::{BrokerSettings, BrokerState, Delivery, Publisher, QueueType, silent};
use runherd_actors::stages::outbox_publisher::{Message, PublishOutcome};
use runherd_integration_tests::World;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

/// Longer than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn settings(world: &World, queue_type: QueueType) -> BrokerSettings {
    settings_for(world.amqp_url(), queue_type)
}

pub(crate) fn settings_for(url: &str, queue_type: QueueType) -> BrokerSettings {
    let mut settings = BrokerSettings::new(url.parse().unwrap());
    settings.topology.queue_type = queue_type;
    settings.reconnect_min = Duration::from_millis(20);
    settings.reconnect_max = Duration::from_millis(500);
    settings
}

/// A publisher that is connected and has declared these queues.
pub(crate) async fn publisher(settings: BrokerSettings, queues: &[&str]) -> Publisher {
    let publisher = Publisher::start(settings, "test", &silent());
    connected(&publisher).await;
    publisher.declare_queues(queues.iter().map(|queue| (*queue).to_owned()).collect()).await.unwrap();
    publisher
}

/// Makes the queue refuse what goes beyond `length`.
pub(crate) async fn bound(world: &World, queue: &str, length: u32) {
    let pattern = format!("^{}$", chunk_queue(queue).replace('.', "\\."));
    let definition = json!({ "max-length": length, "overflow": "reject-publish" });
    world.rabbit().set_policy("bound", &pattern, definition).await;
}

/// Waits until the queue has so many messages, ready and unacknowledged.
pub(crate) async fn await_counts(world: &World, queue: &str, ready: u64, unacknowledged: u64) {
    world.rabbit().until_depth(&chunk_queue(queue), ready, unacknowledged).await;
}

pub(crate) async fn await_state(
    mut state: watch::Receiver<BrokerState>,
    wanted: impl FnMut(&BrokerState) -> bool,
) -> BrokerState {
    timeout(PATIENCE, state.wait_for(wanted)).await.expect("in time").expect("the thread lives").clone()
}

pub(crate) async fn connected(publisher: &Publisher) {
    await_state(publisher.state(), |state| *state == BrokerState::Connected).await;
}

pub(crate) fn disconnected_by(state: &BrokerState, cause: &str) -> bool {
    matches!(state, BrokerState::Disconnected { error, .. } if error.contains(cause))
}

pub(crate) fn message(id: &str, queue: &str) -> Message {
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

pub(crate) fn messages(count: usize, prefix: &str, queue: &str) -> Vec<Message> {
    (0..count).map(|i| message(&format!("{prefix}/{i}"), queue)).collect()
}

pub(crate) fn count(outcomes: &[PublishOutcome], wanted: impl Fn(&PublishOutcome) -> bool) -> usize {
    outcomes.iter().filter(|outcome| wanted(outcome)).count()
}

pub(crate) fn confirmed(outcome: &PublishOutcome) -> bool {
    *outcome == PublishOutcome::Confirmed
}

pub(crate) fn unknown(outcome: &PublishOutcome) -> bool {
    matches!(outcome, PublishOutcome::Unknown(_))
}

pub(crate) fn not_sent(outcome: &PublishOutcome) -> bool {
    matches!(outcome, PublishOutcome::NotSent(_))
}

pub(crate) async fn all_confirmed(publisher: &Publisher, batch: Vec<Message>) {
    let outcomes = publisher.publish(batch).await;
    assert_eq!(count(&outcomes, confirmed), outcomes.len(), "{:?}", outcomes.iter().find(|o| !confirmed(o)));
}

/// Publishes a batch again and again until all of it is confirmed at once.
pub(crate) async fn confirmed_in_the_end(publisher: &Publisher, batch: &[Message]) {
    let publishing = async {
        while count(&publisher.publish(batch.to_vec()).await, confirmed) < batch.len() {
            connected(publisher).await;
        }
    };
    timeout(PATIENCE, publishing).await.expect("a batch is confirmed");
}

pub(crate) async fn next(deliveries: &mut mpsc::Receiver<Delivery>) -> Delivery {
    timeout(PATIENCE, deliveries.recv()).await.expect("in time").expect("the consumer lives")
}
