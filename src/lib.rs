//! The runherd coordinator.
