//! The supervised runtime. It knows nothing about runs.
pub mod report;
pub mod stage;
