//! What a consumer holds, settles, loses and gives back.

use std::collections::HashSet;

use runherd::broker::{BrokerState, Consumer, Delivery, Publisher, QueueType, silent};
use runherd_integration_tests::{World, until};
use tokio::time::timeout;

use crate::fixture::{
    PATIENCE, all_confirmed, await_counts, await_state, connected, message, messages, next, publisher, settings,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_holds_its_prefetch_and_sees_what_was_sent() {
    let world = World::new("a_consumer_holds_its_prefetch_and_sees_what_was_sent").await;
    // The worker comes first: it declares the queue itself.
    let settings = settings(&world, QueueType::Classic);
    let (consumer, mut deliveries) = Consumer::start(settings.clone(), "q", 5, &silent()).unwrap();
    await_state(consumer.state(), |state| *state == BrokerState::Connected).await;
    let publisher = Publisher::start(settings, "test", &silent());
    connected(&publisher).await;
    all_confirmed(&publisher, messages(20, "m", "q")).await;
    await_counts(&world, "q", 15, 5).await;
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
    await_counts(&world, "q", 11, 5).await;
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
    await_counts(&world, "q", 0, 0).await;
    publisher.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_unsettled_comes_again_after_a_lost_connection() {
    let world = World::new("what_is_unsettled_comes_again_after_a_lost_connection").await;
    let publisher = publisher(settings(&world, QueueType::Classic), &["q"]).await;
    all_confirmed(&publisher, messages(6, "m", "q")).await;
    let mut known = world.rabbit().until_connected().await;
    publisher.close().await;
    let settings = settings(&world, QueueType::Classic);
    let (consumer, mut deliveries) = Consumer::start(settings, "q", 3, &silent()).unwrap();
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push(next(&mut deliveries).await);
    }
    await_counts(&world, "q", 3, 3).await;
    let connection = world.rabbit().fresh_connection(&mut known).await;
    assert!(world.rabbit().close_connection(&connection).await);
    until("the loss to be noticed", PATIENCE, async || (!held[0].is_current()).then_some(())).await;
    // The third was in the receiver when its connection went.
    let mut current = next(&mut deliveries).await;
    while !current.is_current() {
        held.push(current);
        current = next(&mut deliveries).await;
    }
    // The broker may put back what the lost connection held only after the new one has taken others: the flag is what counts.
    let is_from_before = |id: &str| ["m/0", "m/1", "m/2"].contains(&id);
    assert!(held.iter().all(|old| !old.is_current()));
    // Acks of the lost connection must not settle what has the same tag on the new one.
    held.into_iter().for_each(Delivery::ack);
    let id = current.message_id.clone().unwrap();
    assert_eq!(current.redelivered, is_from_before(&id), "{id}");
    let mut ids = HashSet::from([id]);
    // Words are told in order: once this one is, those were told or dropped.
    current.ack();
    await_counts(&world, "q", 2, 3).await;
    while ids.len() < 6 {
        let delivery = next(&mut deliveries).await;
        assert!(delivery.is_current());
        let id = delivery.message_id.clone().unwrap();
        assert_eq!(delivery.redelivered, is_from_before(&id), "{id}");
        assert!(ids.insert(id), "each comes once");
        delivery.ack();
    }
    consumer.close(PATIENCE).await;
    await_counts(&world, "q", 0, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_waits_for_deliveries_in_hand_and_returns_the_others() {
    let world = World::new("closing_waits_for_deliveries_in_hand_and_returns_the_others").await;
    let publisher = publisher(settings(&world, QueueType::Classic), &["q"]).await;
    all_confirmed(&publisher, messages(10, "m", "q")).await;
    let (consumer, mut deliveries) = Consumer::start(settings(&world, QueueType::Classic), "q", 4, &silent()).unwrap();
    let in_hand = next(&mut deliveries).await;
    let closing = tokio::spawn(consumer.close(PATIENCE));
    // The receiver ends once the others in it are taken; those are dropped, and go back.
    while let Some(delivery) = deliveries.recv().await {
        drop(delivery);
    }
    in_hand.ack();
    timeout(PATIENCE, closing).await.unwrap().unwrap();
    await_counts(&world, "q", 9, 0).await;
    publisher.close().await;
}
