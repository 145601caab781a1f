//! The runherd coordinator.
pub mod broker;
