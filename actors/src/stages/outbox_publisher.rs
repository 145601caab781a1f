//! outbox_publisher: takes committed events from the outbox to the broker, and settles what the broker answered.
//!
//! A publisher claims a batch, publishes it with no transaction open, and settles it by its claim token. A state change never
//! waits for it: with the broker down only the backlog grows.

use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use crate::model::ClaimToken;
use crate::runtime::backoff::Backoff;
use crate::runtime::report::{CycleReport, StageError};
use crate::runtime::stage::{CycleContext, Stage};

/// The stage's name.
pub const NAME: &str = "outbox_publisher";

/// The number of outbox shards; fixed by the schema (`runherd.outbox_shard_of`).
pub const OUTBOX_SHARDS: i16 = 8;

/// How often a publisher returns to the head of a shard's queue.
const HEAD_INTERVAL: Duration = Duration::from_millis(500);
/// How long a publisher waits that the broker gives no answer.
const BLOCKED_DELAY: Duration = Duration::from_millis(500);
/// How long a cycle goes on while there is more; a backlog is worked off in many cycles, each with a report.
const PASS: Duration = Duration::from_secs(2);

/// One event on its way to the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The ledger's id, unique in one outbox.
    pub event_id: i64,
    /// Sent as the AMQP message id; at most 255 bytes.
    pub dedupe_key: String,
    /// The exchange.
    pub exchange: String,
    /// The routing key; at most 255 bytes.
    pub routing_key: String,
    /// The event's kind, such as `chunk.ready`; sent as the AMQP `type`.
    pub kind: String,
    /// When the event was committed, in seconds since the Unix epoch; sent as the AMQP `timestamp`.
    pub created_at: u64,
    /// Headers: a JSON object whose values are strings or integers.
    pub headers: serde_json::Map<String, serde_json::Value>,
    /// The body, sent byte for byte; its content type is `application/json`.
    pub payload: Vec<u8>,
}

/// What became of one published message. It decides what the ledger says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublishOutcome {
    /// The broker confirmed it and did not return it.
    Confirmed,
    /// The broker returned it: no queue is bound for its key.
    Unroutable {
        /// AMQP's reply code, such as 312.
        code: u16,
        /// AMQP's reply text, such as `NO_ROUTE`.
        text: String,
    },
    /// The broker refused it (a full queue, for example).
    Nacked,
    /// It cannot be sent at all: a name or an id is too long for AMQP.
    Refused(String),
    /// It was sent and no answer came. It will be sent again under the same id, and no attempt is counted.
    Unknown(String),
    /// It never left this process. It will be sent again, and no attempt is counted.
    NotSent(String),
    /// The broker closed the channel or the connection for something in this batch; `text` is what it said.
    ClosedByBroker(String),
}

/// One claimed delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// What to send.
    pub message: Message,
    /// Attempts that were charged to it so far.
    pub attempts: u32,
}

/// What a batch's outcomes mean for its rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settlement {
    /// Confirmed and not returned: out of the queue, published in the ledger.
    pub confirmed: Vec<i64>,
    /// Returned, nacked or refused: pushed back by the delay, with the error, at the price of an attempt.
    pub failed: Vec<FailedDelivery>,
    /// Unknown or not sent: due again at once, free of charge.
    pub again: Vec<i64>,
}

/// A delivery that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedDelivery {
    /// The event.
    pub event_id: i64,
    /// What the broker said.
    pub error: String,
    /// When to try it again, unless it is parked.
    pub delay: Duration,
}

/// What a settlement did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Events that are published now.
    pub published: u64,
    /// Deliveries that were pushed back.
    pub pushed_back: u64,
    /// Those of them that are parked now.
    pub parked: u64,
}

/// The outbox of one database. Each method is one transition.
#[async_trait]
pub trait OutboxPort: Send + Sync {
    /// Why this outbox cannot be reached just now, if so.
    async fn unavailable(&self) -> Result<Option<String>, StageError>;
    /// Claims up to `limit` due deliveries of one outbox shard after an event id.
    async fn claim(
        &self,
        outbox_shard: i16,
        after: i64,
        limit: u32,
        token: ClaimToken,
    ) -> Result<Vec<Claimed>, StageError>;
    /// Settles what the token still holds.
    async fn settle(
        &self,
        outbox_shard: i16,
        token: ClaimToken,
        settlement: &Settlement,
    ) -> Result<Settled, StageError>;
}

/// The broker, as a publisher needs it.
#[async_trait]
pub trait PublishPort: Send + Sync {
    /// Publishes a batch; the outcomes are in the batch's order. Returns within its own deadline, whatever the broker does.
    async fn publish(&self, batch: Vec<Message>) -> Vec<PublishOutcome>;
    /// Why nothing can be published just now, if so.
    fn blocked(&self) -> Option<String>;
}

/// The stage's knobs.
#[derive(Clone, Copy, Debug)]
pub struct OutboxPublisherSettings {
    /// Deliveries claimed at a time.
    pub batch: u32,
    /// The delay after a failure.
    pub retry_delay: Backoff,
}

/// Where a publisher is in one outbox shard.
#[derive(Clone, Copy, Default)]
struct Watermark {
    after: i64,
    head_visited: Option<Instant>,
}

/// The stage: one of several publishers of one database.
pub struct OutboxPublisher<O, B> {
    outbox: O,
    broker: B,
    settings: OutboxPublisherSettings,
    watermarks: [Watermark; OUTBOX_SHARDS as usize],
    first_shard: i16,
}

impl<O: OutboxPort, B: PublishPort> OutboxPublisher<O, B> {
    /// Publisher number `instance` of a database: each begins with another outbox shard.
    pub fn new(outbox: O, broker: B, settings: OutboxPublisherSettings, instance: u16) -> Self {
        let watermarks = [Watermark::default(); OUTBOX_SHARDS as usize];
        let first_shard = i16::try_from(instance % OUTBOX_SHARDS.unsigned_abs()).unwrap_or_default();
        Self { outbox, broker, settings, watermarks, first_shard }
    }

    /// Claims from a shard: after the watermark, and from the head at intervals, since rows commit out of id order and retries
    /// come due. A scan from the head crosses the dead entries of all that was just published.
    async fn claim(&mut self, shard: i16, token: ClaimToken) -> Result<Vec<Claimed>, StageError> {
        let mark = &mut self.watermarks[usize::from(shard.unsigned_abs())];
        if mark.head_visited.is_none_or(|visited| visited.elapsed() >= HEAD_INTERVAL) {
            *mark = Watermark { after: 0, head_visited: Some(Instant::now()) };
        }
        let claimed = self.outbox.claim(shard, mark.after, self.settings.batch, token).await?;
        if let Some(last) = claimed.last() {
            mark.after = last.message.event_id;
        }
        Ok(claimed)
    }

    /// Publishes a claimed batch and settles it.
    async fn deliver(
        &self,
        shard: i16,
        token: ClaimToken,
        claimed: Vec<Claimed>,
        report: &mut CycleReport,
    ) -> Result<(), StageError> {
        let mut settlement = Settlement::default();
        let batch = claimed.iter().map(|delivery| delivery.message.clone()).collect();
        let mut suspects = Vec::new();
        for (delivery, outcome) in claimed.into_iter().zip(self.broker.publish(batch).await) {
            match outcome {
                PublishOutcome::ClosedByBroker(_) => suspects.push(delivery),
                other => self.sort(&delivery, other, &mut settlement),
            }
        }
        // The broker closed on something in the batch. Sent one at a time, the close names the culprit, and only that one pays.
        for delivery in suspects {
            let outcome = self.broker.publish(vec![delivery.message.clone()]).await.pop();
            let outcome = outcome.unwrap_or_else(|| PublishOutcome::NotSent("no outcome".to_owned()));
            self.sort(&delivery, outcome, &mut settlement);
        }
        report.count("again", settlement.again.len() as u64);
        if !settlement.again.is_empty() {
            report.blocked_by.push("broker: events without an answer".to_owned());
        }
        let settled = self.outbox.settle(shard, token, &settlement).await?;
        report.count("published", settled.published);
        report.count("pushed_back", settled.pushed_back);
        report.count("parked", settled.parked);
        Ok(())
    }

    fn sort(&self, delivery: &Claimed, outcome: PublishOutcome, settlement: &mut Settlement) {
        let event_id = delivery.message.event_id;
        let error = match outcome {
            PublishOutcome::Confirmed => {
                settlement.confirmed.push(event_id);
                return;
            }
            PublishOutcome::Unknown(_) | PublishOutcome::NotSent(_) => {
                settlement.again.push(event_id);
                return;
            }
            PublishOutcome::Unroutable { code, text } => format!("returned: {code} {text}"),
            PublishOutcome::Nacked => "nacked".to_owned(),
            PublishOutcome::Refused(reason) => format!("refused: {reason}"),
            PublishOutcome::ClosedByBroker(text) => format!("the broker closed on it: {text}"),
        };
        settlement.failed.push(FailedDelivery {
            event_id,
            error,
            delay: self.settings.retry_delay.delay(delivery.attempts),
        });
    }
}

#[async_trait]
impl<O: OutboxPort + 'static, B: PublishPort + 'static> Stage for OutboxPublisher<O, B> {
    async fn run_cycle(&mut self, cx: &CycleContext) -> Result<CycleReport, StageError> {
        let mut report = CycleReport::default();
        let started = Instant::now();
        if let Some(reason) = self.outbox.unavailable().await? {
            report.blocked_by.push(reason);
            return Ok(report);
        }
        loop {
            let mut full = false;
            for step in 0..OUTBOX_SHARDS {
                if let Some(reason) = self.broker.blocked() {
                    report.blocked_by.push(format!("broker: {reason}"));
                    report.due_in(BLOCKED_DELAY);
                    return Ok(report);
                }
                let shard = (self.first_shard + step) % OUTBOX_SHARDS;
                let token = ClaimToken::fresh();
                let claimed = self.claim(shard, token).await?;
                full |= claimed.len() >= self.settings.batch as usize;
                if !claimed.is_empty() {
                    self.deliver(shard, token, claimed, &mut report).await?;
                }
                if cx.stopping.is_cancelled() {
                    return Ok(report);
                }
            }
            if report.counted("again") > 0 {
                report.due_in(BLOCKED_DELAY);
                return Ok(report);
            }
            if !full || started.elapsed() >= PASS {
                report.more = full;
                return Ok(report);
            }
        }
    }
}
