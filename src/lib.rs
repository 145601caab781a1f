//! The runherd coordinator.

pub mod broker;
pub mod cli;
pub mod config;
pub mod policy;
pub mod store;
pub mod telemetry;
pub mod worker;
