//! The exchange and the queues, and how they are declared.
//!
//! Promises that declaring is idempotent, that a refused declaration names what was refused and why, and that it never
//! costs the channel that publishes or consumes: each declaration happens on a channel of its own. Does not know who
//! asked, or when to ask again.

use amiquip::{AmqpValue, ExchangeDeclareOptions, ExchangeType, FieldTable, QueueDeclareOptions};

use super::error::BrokerError;
use super::socket::{Link, Loss};
use crate::config::QueueType;

/// The exchange's usual name.
pub const EXCHANGE: &str = "runherd";
/// A queue of chunks is named this and then the run's queue name.
pub const CHUNK_QUEUE_PREFIX: &str = "runherd.chunks.";
/// The routing key of a chunk-ready event is this and then the run's queue name.
pub const CHUNK_READY_PREFIX: &str = "chunk.ready.";
/// The queue that keeps the latest run events.
pub const EVENTS_QUEUE: &str = "runherd.events";
/// What [`EVENTS_QUEUE`] is bound to.
pub const EVENTS_BINDING: &str = "run.#";
/// The longest queue name, in bytes: with either prefix it fits AMQP's 255.
pub const QUEUE_NAME_MAX: usize = 200;

/// What is declared, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// The topic exchange. Default [`EXCHANGE`].
    pub exchange: String,
    /// The kind of the queues of chunks. Default quorum.
    pub queue_type: QueueType,
    /// The most messages in [`EVENTS_QUEUE`]; beyond it the oldest is dropped. Default 100,000.
    pub events_max_length: u32,
}

impl Default for Topology {
    fn default() -> Self {
        Self { exchange: EXCHANGE.to_owned(), queue_type: QueueType::Quorum, events_max_length: 100_000 }
    }
}

/// The full name of the queue that holds the chunks of runs with this queue name.
pub fn chunk_queue(name: &str) -> String {
    format!("{CHUNK_QUEUE_PREFIX}{name}")
}

/// The routing key of chunk-ready events for this queue name.
pub fn chunk_ready_key(name: &str) -> String {
    format!("{CHUNK_READY_PREFIX}{name}")
}

/// The queue name that a chunk-ready routing key announces to; `None` for any other key.
#[must_use]
pub fn queue_of_chunk_ready_key(routing_key: &str) -> Option<&str> {
    routing_key.strip_prefix(CHUNK_READY_PREFIX)
}

/// Checks a run's queue name: 1 to [`QUEUE_NAME_MAX`] bytes of ASCII letters, digits, `.`, `_` and `-`.
///
/// # Errors
///
/// [`BrokerError::BadQueueName`] says which rule is broken.
pub fn check_queue_name(name: &str) -> Result<(), BrokerError> {
    let bad = |reason: String| {
        let shown = name.chars().take(60).collect();
        Err(BrokerError::BadQueueName { name: shown, reason })
    };
    if name.is_empty() {
        return bad("it is empty".to_owned());
    }
    if name.len() > QUEUE_NAME_MAX {
        return bad(format!("it has {} bytes, and {QUEUE_NAME_MAX} is the most", name.len()));
    }
    match name.chars().find(|c| !(c.is_ascii_alphanumeric() || "._-".contains(*c))) {
        Some(c) => bad(format!("{c:?} is not a letter, a digit, a dot, an underscore or a hyphen")),
        None => Ok(()),
    }
}

/// Declares the exchange. Everything else hangs on it.
pub(super) fn declare_exchange(link: &mut Link, topology: &Topology) -> Result<(), Refusal> {
    on_own_channel(link, &format!("exchange {}", topology.exchange), |channel| {
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        channel.exchange_declare(ExchangeType::Topic, topology.exchange.as_str(), options).map(drop)
    })
}

/// Declares the queue of run events and binds it.
pub(super) fn declare_events_queue(link: &mut Link, topology: &Topology) -> Result<(), Refusal> {
    let mut arguments = FieldTable::new();
    arguments.insert("x-max-length".to_owned(), AmqpValue::LongLongInt(i64::from(topology.events_max_length)));
    arguments.insert("x-overflow".to_owned(), AmqpValue::LongString("drop-head".to_owned()));
    declare_queue(link, topology, EVENTS_QUEUE, EVENTS_BINDING, arguments)
}

/// Declares the queue of chunks for a (checked) queue name and binds it.
pub(super) fn declare_chunk_queue(link: &mut Link, topology: &Topology, name: &str) -> Result<(), Refusal> {
    let mut arguments = FieldTable::new();
    arguments.insert("x-queue-type".to_owned(), AmqpValue::LongString(topology.queue_type.as_str().to_owned()));
    declare_queue(link, topology, &chunk_queue(name), &chunk_ready_key(name), arguments)
}

fn declare_queue(
    link: &mut Link,
    topology: &Topology,
    queue: &str,
    key: &str,
    arguments: FieldTable,
) -> Result<(), Refusal> {
    on_own_channel(link, &format!("queue {queue}"), |channel| {
        channel.queue_declare(queue, QueueDeclareOptions { durable: true, arguments, ..Default::default() })?;
        channel.queue_bind(queue, topology.exchange.as_str(), key, FieldTable::new())
    })
}

/// Why a declaration did not happen.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The broker said no, and the connection stands.
    Refused(BrokerError),
    /// The connection is gone.
    Lost(Loss),
}

/// Runs one declaration on a channel opened for it: the broker answers a bad one by closing the channel.
fn on_own_channel(
    link: &mut Link,
    what: &str,
    declare: impl FnOnce(&amiquip::Channel) -> amiquip::Result<()>,
) -> Result<(), Refusal> {
    let done = link.guarded("a declaration", |connection| {
        let channel = connection.open_channel(None)?;
        declare(&channel)?;
        channel.close()
    });
    match done {
        Ok(()) => Ok(()),
        Err(Loss::Channel { code, text }) => {
            let reason = format!("{text} ({code})");
            Err(Refusal::Refused(BrokerError::DeclareRefused { what: what.to_owned(), reason }))
        }
        Err(loss) => Err(Refusal::Lost(loss)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_names() {
        for good in ["a", "gpu-large", "x.y_z-1", &"q".repeat(QUEUE_NAME_MAX)] {
            assert_eq!(check_queue_name(good), Ok(()));
            assert!(chunk_queue(good).len() <= 255 && chunk_ready_key(good).len() <= 255);
        }
        for (bad, why) in [("", "empty"), (&*"q".repeat(201), "201 bytes"), ("a b", "' '"), ("a#", "'#'"), ("ä", "'ä'")]
        {
            let error = check_queue_name(bad).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
