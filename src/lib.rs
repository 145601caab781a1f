//! The runherd coordinator.
pub mod cli {
    //! The commands of `runherd`, one file for each.
    pub mod config;
}
pub mod config;
pub mod policy;
pub mod telemetry;
