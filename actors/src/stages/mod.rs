//! The stages of a coordinator.
pub mod outbox_publisher;
