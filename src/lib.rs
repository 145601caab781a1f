//! The runherd coordinator.

pub mod broker;
pub mod cli;
pub mod config;
pub mod control;
pub mod coordinator;
pub mod explain;
pub mod policy;
pub mod process;
pub mod router;
pub mod store;
pub mod submission;
pub mod telemetry;
pub mod verify;
pub mod worker;
