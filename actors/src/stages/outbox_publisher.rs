//! outbox_publisher: takes committed events from the outbox to the broker, and settles what the broker answered.

use uuid::Uuid;

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

/// Names a claim for one batch of deliveries.
pub type BatchToken = Uuid;
