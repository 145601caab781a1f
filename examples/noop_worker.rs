//! The smallest worker in Rust: it answers every chunk with its own payload, as fast as it can.
//!
//! ```sh
//! RUNHERD__CONTROL__URL=postgresql://… RUNHERD__BROKER__URL=amqp://… cargo run --release --example noop_worker -- QUEUE
//! ```
//!
//! It runs until SIGINT, then gives back what it holds and says what it did.

use std::error::Error;

use runherd::broker::BrokerSettings;
use runherd::config::{Config, Sources};
use runherd::store::{Database, SessionSettings};
use runherd::telemetry::Telemetry;
use runherd::worker::{Chunk, ChunkError, Handler, Outcome, Worker};
use tokio_util::sync::CancellationToken;

struct Echo;

impl Handler for Echo {
    async fn handle(&self, chunk: Chunk) -> Result<Outcome, ChunkError> {
        Ok(Outcome::from_json(chunk.payload.get())?)
    }
}

#[tokio::main]
#[expect(clippy::print_stdout, reason = "it is a program")]
async fn main() -> Result<(), Box<dyn Error>> {
    let queue = std::env::args().nth(1).ok_or("usage: noop_worker QUEUE")?;
    let config = Config::load(&Sources::of_process(None, Vec::new()))?.config;
    let telemetry = Telemetry::start(&config.log);
    let settings = SessionSettings::new(&config.pool, &config.session, false);
    let placements = config
        .databases()?
        .into_iter()
        .map(|(name, connection)| Database::new(&name, connection, &settings, None))
        .collect::<Result<Vec<_>, _>>()?;
    // Chunks of microseconds want large batches: they are leased and finished together.
    let worker = Worker::builder(BrokerSettings::from_config(&config)?, &queue)
        .placements(placements)
        .concurrency(64)
        .batch(500)
        .log(&telemetry.log)
        .build(Echo)?;
    let drain = CancellationToken::new();
    tokio::spawn({
        let drain = drain.clone();
        async move {
            if tokio::signal::ctrl_c().await.is_ok() {
                drain.cancel();
            }
        }
    });
    let totals = worker.run(drain).await?;
    println!("{totals:?}");
    Ok(())
}
