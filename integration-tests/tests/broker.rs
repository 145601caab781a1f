//! The broker adapter against a real RabbitMQ: that no outcome is ever wrong, and that no call ever hangs.
#![allow(clippy::unwrap_used, reason = "what is unexpected in a test fails it")]

#[path = "broker/consuming.rs"]
mod consuming;
#[path = "broker/fixture.rs"]
mod fixture;
#[path = "broker/outages.rs"]
mod outages;
#[path = "broker/proxy.rs"]
mod proxy;
#[path = "broker/publishing.rs"]
mod publishing;
