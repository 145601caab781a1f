//! Consuming on one connection: deliveries in, acks out.
//!
//! Promises that acks go to the connection that brought the delivery or nowhere, that many acks are told in few words,
//! and that waiting for a slow worker never keeps an ack from being sent. Does not know who works.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use amiquip::{Channel, ConsumerMessage, ConsumerOptions};
use crossbeam_channel::{Receiver, RecvError, Sender, never, select, unbounded};
use slog::{info, warn};
use tokio::sync::mpsc;

use super::acks::{Ack, Unsettled};
use super::amqp_thread::{BrokerState, Duty, End, Life};
use super::consumer::{AckHandle, Delivery};
use super::message::read_headers;
use super::socket::{Link, Loss};
use super::topology::{self, Refusal};
use crate::telemetry::field;

/// A worker's word about one delivery.
pub(super) struct Settle {
    pub(super) generation: u64,
    pub(super) tag: u64,
    /// Acknowledge, or give back.
    pub(super) ack: bool,
}

/// The duty of a consumer's thread.
pub(super) struct Consuming {
    queue: String,
    prefetch: u16,
    /// `None` once it hands out nothing more, which ends the worker's receiver.
    deliver: Option<mpsc::Sender<Delivery>>,
    /// How long to wait for unsettled deliveries; disconnected, not at all.
    stop: Receiver<Duration>,
    settle: Sender<Settle>,
    settled: Receiver<Settle>,
    /// The number of the connection that stands; 0 for none.
    current: Arc<AtomicU64>,
    generation: u64,
    /// Whether this connection has brought anything.
    worked: bool,
}

impl Consuming {
    pub(super) fn new(queue: &str, prefetch: u16, deliver: mpsc::Sender<Delivery>, stop: Receiver<Duration>) -> Self {
        // Bounded in effect: one word for each delivery handed out.
        let (settle, settled) = unbounded();
        Self {
            queue: queue.to_owned(),
            prefetch,
            deliver: Some(deliver),
            stop,
            settle,
            settled,
            current: Arc::new(AtomicU64::new(0)),
            generation: 0,
            worked: false,
        }
    }

    fn declare(&self, link: &mut Link, life: &Life) -> Result<(), Loss> {
        let topology = &life.settings.topology;
        let declared = topology::declare_exchange(link, topology)
            .and_then(|()| topology::declare_chunk_queue(link, topology, &self.queue));
        match declared {
            Ok(()) => Ok(()),
            // It may be there all the same, and be ours to read: consuming will tell.
            Err(Refusal::Refused(error)) => {
                warn!(life.log, "a queue is not as configured"; field::ERROR => %error);
                Ok(())
            }
            Err(Refusal::Lost(loss)) => Err(loss),
        }
    }

    fn open_channel(&self, link: &mut Link) -> Result<Channel, Loss> {
        link.guarded("the opening of a channel", |connection| {
            let channel = connection.open_channel(None)?;
            channel.qos(0, self.prefetch, false)?;
            Ok(channel)
        })
    }

    /// Whether the worker's receiver has room. It may be full of an earlier connection's deliveries.
    fn has_room(&self) -> bool {
        self.deliver.as_ref().is_some_and(|deliver| !deliver.is_closed() && deliver.capacity() > 0)
    }

    fn hand_out(&mut self, mut delivery: amiquip::Delivery, unsettled: &mut Unsettled<amiquip::Delivery>) {
        let tag = delivery.delivery_tag();
        let headers = delivery.properties.headers().clone().map(read_headers).unwrap_or_default();
        let handed = Delivery {
            body: std::mem::take(&mut delivery.body),
            message_id: delivery.properties.message_id().clone(),
            kind: delivery.properties.type_().clone(),
            redelivered: delivery.redelivered,
            headers,
            handle: AckHandle {
                generation: self.generation,
                tag,
                settle: Some(self.settle.clone()),
                current: self.current.clone(),
            },
        };
        // The library wants the delivery back to ack it; its tag is all that is needed of it.
        delivery.properties = Default::default();
        delivery.exchange = String::new();
        delivery.routing_key = String::new();
        unsettled.received(tag, delivery);
        self.worked = true;
        if let Some(deliver) = &self.deliver {
            // There was room. If the receiver is gone, the delivery's drop gives it back.
            let _ = deliver.try_send(handed);
        }
    }

    /// Tells the broker what was said since the last time, `first` included.
    fn tell(
        &self,
        first: Option<Settle>,
        unsettled: &mut Unsettled<amiquip::Delivery>,
        link: &Link,
        channel: &Channel,
    ) -> amiquip::Result<()> {
        let guard = link.guard(link.patience(), "an ack");
        // No more than there are now: otherwise a busy worker would keep deliveries waiting.
        let waiting = self.settled.len();
        for word in first.into_iter().chain(self.settled.try_iter().take(waiting)) {
            if word.generation != self.generation {
                continue;
            }
            if word.ack {
                unsettled.ack(word.tag);
            } else if let Some(delivery) = unsettled.take(word.tag) {
                delivery.nack(channel, true)?;
            }
        }
        for ack in unsettled.flush() {
            match ack {
                Ack::One(delivery) => delivery.ack(channel)?,
                Ack::UpTo(delivery) => delivery.ack_multiple(channel)?,
            }
        }
        drop(guard);
        Ok(())
    }

    /// Consumes until the connection is lost or the owner lets go.
    fn consume(&mut self, link: &mut Link, channel: &Channel, life: &Life) -> Finish {
        let guard = link.guard(link.patience(), "the start of consuming");
        let begun = channel.basic_consume(topology::chunk_queue(&self.queue), ConsumerOptions::default());
        let consumer = match guard.explain(begun) {
            Ok(consumer) => consumer,
            Err(loss) => return Finish::Lost(loss),
        };
        drop(guard);
        life.report(BrokerState::Connected);
        info!(life.log, "consuming"; field::PREFETCH => self.prefetch);
        let mut unsettled = Unsettled::new();
        let finish = loop {
            let idle = never();
            let deliveries = if self.has_room() { consumer.receiver() } else { &idle };
            let done = select! {
                recv(self.stop) -> drain => {
                    break self.drain(drain.unwrap_or_default(), &consumer, &mut unsettled, link, channel);
                }
                recv(self.settled) -> word => {
                    self.tell(word.ok(), &mut unsettled, link, channel).map_err(Finish::Error)
                }
                recv(deliveries) -> message => self.take(message, &consumer, &mut unsettled),
                // A blocked connection still delivers and takes acks.
                recv(link.blocked) -> notice => notice.map(drop).map_err(|RecvError| Finish::Ended),
            };
            if let Err(finish) = done {
                break finish;
            }
        };
        if !matches!(finish, Finish::Released) {
            // Dropping the consumer asks the broker to cancel it, and waits.
            link.cut();
        }
        finish
    }

    /// Hands out one delivery, and all that wait behind it while there is room.
    fn take(
        &mut self,
        message: Result<ConsumerMessage, RecvError>,
        consumer: &amiquip::Consumer<'_>,
        unsettled: &mut Unsettled<amiquip::Delivery>,
    ) -> Result<(), Finish> {
        let mut next = message.map_err(|_| Finish::Ended)?;
        loop {
            match next {
                ConsumerMessage::Delivery(delivery) => self.hand_out(delivery, unsettled),
                ConsumerMessage::ServerClosedChannel(error) | ConsumerMessage::ServerClosedConnection(error) => {
                    return Err(Finish::Error(error));
                }
                ConsumerMessage::ServerCancelled => {
                    let text = "the broker cancelled the consumer: its queue was deleted or moved".to_owned();
                    return Err(Finish::Lost(Loss::Socket(text)));
                }
                ConsumerMessage::ClientCancelled
                | ConsumerMessage::ClientClosedChannel
                | ConsumerMessage::ClientClosedConnection => return Err(Finish::Ended),
            }
            if !self.has_room() {
                return Ok(());
            }
            match consumer.receiver().try_recv() {
                Ok(message) => next = message,
                Err(_) => return Ok(()),
            }
        }
    }

    /// Takes no more deliveries, and gives the worker `limit` to settle those it has.
    fn drain(
        &mut self,
        limit: Duration,
        consumer: &amiquip::Consumer<'_>,
        unsettled: &mut Unsettled<amiquip::Delivery>,
        link: &mut Link,
        channel: &Channel,
    ) -> Finish {
        let until = Instant::now() + limit;
        self.deliver = None;
        let guard = link.guard(link.patience(), "a cancel");
        let cancelled = guard.explain(consumer.cancel());
        if cancelled.is_ok() {
            // The library answers the cancel before it tells the consumer. A consumer that is gone by then ends its
            // thread, and with it the acks that it has not sent. What comes before the word goes back to the queue.
            while matches!(consumer.receiver().recv(), Ok(ConsumerMessage::Delivery(_))) {}
        }
        drop(guard);
        let mut told = cancelled.is_ok() && self.tell(None, unsettled, link, channel).is_ok();
        while told && unsettled.open() > 0 {
            match self.settled.recv_deadline(until) {
                Ok(word) => told = self.tell(Some(word), unsettled, link, channel).is_ok(),
                Err(_) => break,
            }
        }
        if !told {
            link.cut();
        }
        Finish::Released
    }
}

/// How consuming ended.
enum Finish {
    Released,
    Lost(Loss),
    /// The library said why.
    Error(amiquip::Error),
    /// The connection's thread knows why.
    Ended,
}

impl Duty for Consuming {
    fn pending(&self) -> usize {
        usize::from(self.prefetch)
    }

    fn serve(&mut self, mut link: Link, life: &Life) -> End {
        let opened = self.declare(&mut link, life).and_then(|()| self.open_channel(&mut link));
        let channel = match opened {
            Ok(channel) => channel,
            Err(loss) => return End::Lost { loss, healthy: false },
        };
        self.generation += 1;
        self.worked = false;
        self.current.store(self.generation, Ordering::Release);
        let finish = self.consume(&mut link, &channel, life);
        self.current.store(0, Ordering::Release);
        let loss = match finish {
            Finish::Released => {
                // The channel first: closing the connection would overtake the acks that wait on the channel.
                let guard = link.guard(link.patience(), "the closing of a channel");
                let _ = channel.close();
                drop(guard);
                link.farewell();
                return End::Released;
            }
            Finish::Lost(loss) => loss,
            Finish::Error(error) => link.cause_of(error),
            Finish::Ended => link.cause(),
        };
        link.cut();
        drop(channel);
        End::Lost { loss, healthy: self.worked }
    }

    fn pause(&mut self, until: Instant, _why: &str) -> bool {
        loop {
            select! {
                recv(self.stop) -> _ => {
                    self.deliver = None;
                    return false;
                }
                // The connection that these belong to is gone.
                recv(self.settled) -> _ => {}
                default(until.saturating_duration_since(Instant::now())) => return true,
            }
        }
    }
}
