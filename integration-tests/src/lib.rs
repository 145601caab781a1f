//! What the integration tests share: a world of databases and a virtual host for each test ([`world`]), servers of its
//! own for a test that breaks them ([`servers`]), `runherd` as a child process ([`process`]), stages put together by hand
//! ([`stagehand`]), the page that describes logs ([`log_schema`]), and waiting for what is to come ([`wait`]).
//!
//! All of it is for tests: what cannot go on panics and says what to do about it.
#![allow(clippy::print_stderr, reason = "the test runner shows what a failed test printed")]

pub mod herd;
pub mod log_schema;
pub mod logs;
pub mod process;
pub mod rabbit;
pub mod servers;
pub mod stagehand;
pub mod wait;
pub mod world;

pub use process::Process;
pub use rabbit::Rabbit;
pub use servers::{PrivatePostgres, PrivateRabbit};
pub use stagehand::Stagehand;
pub use wait::until;
pub use world::{Database, Servers, World};
