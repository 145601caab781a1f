//! What a batch comes to while the connection holds.

use runherd::broker::{BrokerError, QueueType};
use runherd_actors::stages::outbox_publisher::PublishOutcome;
use runherd_integration_tests::World;

use crate::fixture::{all_confirmed, await_counts, bound, confirmed, count, message, messages, publisher, settings};

/// Several times what may be unconfirmed at once.
const BATCH: usize = 1500;

/// Routable, unroutable and refused messages, interleaved: every outcome is right.
async fn mixed_batch(test: &str, queue_type: QueueType) {
    let world = World::new(test).await;
    bound(&world, "full", 10).await;
    let publisher = publisher(settings(&world, queue_type), &["open", "full"]).await;
    let filled = publisher.publish(messages(500, "fill", "full")).await;
    let mut in_full = count(&filled, confirmed);
    assert_eq!(in_full + count(&filled, |o| *o == PublishOutcome::Nacked), 500);
    for round in 0..3 {
        let queues = ["open", "nowhere", "full"];
        let batch = (0..BATCH).map(|i| message(&format!("{round}/{i}"), queues[i % 3])).collect();
        let outcomes = publisher.publish(batch).await;
        assert_eq!(outcomes.len(), BATCH);
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
    await_counts(&world, "open", BATCH as u64, 0).await;
    await_counts(&world, "full", in_full as u64, 0).await;
    publisher.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mixed_outcomes_on_quorum_queues() {
    mixed_batch("mixed_outcomes_on_quorum_queues", QueueType::Quorum).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mixed_outcomes_on_classic_queues() {
    mixed_batch("mixed_outcomes_on_classic_queues", QueueType::Classic).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_amqp_cannot_carry_is_refused_and_costs_nothing() {
    let world = World::new("what_amqp_cannot_carry_is_refused_and_costs_nothing").await;
    let publisher = publisher(settings(&world, QueueType::Classic), &["q"]).await;
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
    let world = World::new("a_missing_exchange_blames_its_batch_only").await;
    let publisher = publisher(settings(&world, QueueType::Classic), &["q"]).await;
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
async fn a_queue_with_other_arguments_is_named() {
    let world = World::new("a_queue_with_other_arguments_is_named").await;
    let first = publisher(settings(&world, QueueType::Quorum), &["q"]).await;
    let other = publisher(settings(&world, QueueType::Classic), &[]).await;
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
