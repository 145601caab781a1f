//! What a runherd coordinator decides, without a database or a broker.
#![doc = ""]
pub mod model;
pub mod runtime;
pub mod stages;
