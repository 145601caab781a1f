//! What can go wrong with the broker outside of publishing, whose answers are outcomes.

/// Why something could not be done with the broker.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BrokerError {
    /// The broker's URL cannot be used. The text never repeats the URL.
    #[error("the broker's URL is not usable: {0}")]
    BadUrl(String),
    /// A queue's name cannot be used.
    #[error("the queue name {name:?} is not usable: {reason}")]
    BadQueueName {
        /// The name as it was given, cut to a readable length.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A consumer's prefetch must be at least 1.
    #[error("a prefetch of 0 would be unlimited: give at least 1")]
    NoPrefetch,
    /// The broker refused a declaration, most often because the queue exists with other arguments.
    #[error("the broker refused to declare {what}: {reason}")]
    DeclareRefused {
        /// The queue or exchange, by its full name.
        what: String,
        /// The broker's own words.
        reason: String,
    },
    /// There is no connection now. What was asked for is remembered where the call says so.
    #[error("not connected to the broker: {0}")]
    NotConnected(String),
}
