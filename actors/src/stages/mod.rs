//! The stages of a coordinator, each in one file: what it decides, the port it needs, and the table that lists them all.
//!
//! One port method is one atomic transition. Ports know neither SQL nor AMQP; their adapters are in `src/store/` and
//! `src/broker/` under the same names.

pub mod creation_recovery;
pub mod finalizer;
pub mod lease_recovery;
pub mod outbox_publisher;
pub mod placements;
pub mod shard_dispatcher;

/// A built-in stage as operators read about it.
#[derive(Clone, Copy, Debug)]
pub struct StageEntry {
    /// Its family's name: the name of its file, its adapter, its SQL folder, its configuration section and its log value.
    pub name: &'static str,
    /// What it is for.
    pub purpose: &'static str,
    /// The families that run before it in a cycle.
    pub after: &'static [&'static str],
}

/// The built-in stages, in the order of a cycle. `outbox_publisher` runs beside the cycle.
pub const STAGES: [StageEntry; 5] = [
    StageEntry {
        name: creation_recovery::NAME,
        purpose: "seeds sealed runs over their placements and opens their cursors; fails runs abandoned before sealing",
        after: &[],
    },
    StageEntry {
        name: lease_recovery::NAME,
        purpose: "requeues chunks whose lease expired, fails those at the recovery limit, redelivers lost announcements",
        after: &[creation_recovery::NAME],
    },
    StageEntry {
        name: shard_dispatcher::NAME,
        purpose: "claims open cursors, starts runs and hands out windows of chunks, one shard at a time",
        after: &[lease_recovery::NAME],
    },
    StageEntry {
        name: finalizer::NAME,
        purpose: "applies intents, marks shards drained, finishes runs and closes their guards",
        after: &[shard_dispatcher::NAME],
    },
    StageEntry {
        name: outbox_publisher::NAME,
        purpose: "publishes committed events to RabbitMQ and settles what the broker answered",
        after: &[],
    },
];

/// The entry of a built-in stage.
#[must_use]
pub fn entry(name: &str) -> Option<&'static StageEntry> {
    STAGES.iter().find(|stage| stage.name == name)
}
