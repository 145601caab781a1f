//! PostgreSQL: one [`Database`] for each database, and one file for each stage's adapter.
//!
//! Every statement runs through [`Database`]: sessions that bound themselves, connections that prove which database they
//! reached, and the one place that retries deadlocks and serialization failures. No transaction crosses a call to another
//! database, and nobody here holds two connections.

pub mod error;
pub mod migrate;
pub mod pool;
pub mod query;
pub mod session;
pub mod worker;

pub use error::StoreError;
pub use pool::{Database, Identity};
pub use query::Query;
pub use session::SessionSettings;
