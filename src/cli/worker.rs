//! `runherd worker`: works on the chunks of one queue by running a command for each.

use std::ffi::OsString;
use std::time::Duration;

use slog::{Logger, info, warn};
use tokio_util::sync::CancellationToken;

use super::{CliError, Context, EXIT_FORCED, EXIT_OK};
use crate::broker::BrokerSettings;
use crate::process::Signals;
use crate::store::worker::WorkerStore;
use crate::store::{Database, StoreError};
use crate::telemetry::{Telemetry, error_chain, field};
use crate::worker::command::{CommandHandler, CommandLimits};
use crate::worker::pace::Pauses;
use crate::worker::{Worker, WorkerError};

/// Work on the chunks of one queue by running a command for each
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The queue name of the runs to work on
    #[arg(long, short, value_name = "QUEUE")]
    queue: String,
    /// Commands that run at once [default: the number of processors]
    #[arg(long, short, value_name = "N")]
    concurrency: Option<usize>,
    /// Chunks taken ahead of the free places; more for commands of a few milliseconds [default: a quarter of --concurrency]
    #[arg(long, value_name = "CHUNKS")]
    batch: Option<usize>,
    /// How long a chunk is leased at once; the lease is renewed while the command runs
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = humantime::parse_duration)]
    lease_ttl: Duration,
    /// How long one command may run; after it the attempt has failed [default: as long as the run's policy allows]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    time_limit: Option<Duration>,
    /// The most bytes of standard output; more fails the chunk for good
    #[arg(long, value_name = "BYTES", default_value_t = CommandLimits::default().outcome_bytes)]
    outcome_limit_bytes: usize,
    /// How long running commands may go on after the first SIGTERM or SIGINT
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = humantime::parse_duration)]
    grace: Duration,
    /// The name under which chunks are leased [default: host, process and a random part]
    #[arg(long, value_name = "NAME")]
    worker_id: Option<String>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const HELP: &str = "\
The command gets the chunk's payload on standard input (JSON, then a line end), and in the environment:
  RUNHERD_PAYLOAD        the same JSON, up to 64 KiB
  RUNHERD_PAYLOAD_TEXT   the plain text, when the payload is a JSON string (a run submitted with --lines)
  RUNHERD_RUN_ID, RUNHERD_RUN_SHARD, RUNHERD_CHUNK_NO, RUNHERD_ATTEMPT

Exit status 0: the chunk has succeeded, and standard output is its outcome (as it is if it is JSON, else as a JSON
string). 65: it has failed for good. Any other status, a signal or --time-limit: it is tried again while attempts
remain. The end of standard error is the error's text.

Examples:
  runherd worker --queue images -- ./resize.sh
  runherd worker --queue mail --concurrency 32 --time-limit 30s -- sh -c 'send-mail --to \"$RUNHERD_PAYLOAD_TEXT\"'
  runherd worker --queue hash --concurrency 8 --batch 64 -- sha256sum

The first SIGTERM or SIGINT lets running commands go on for --grace, then stops them and gives their chunks back; a
second one leaves at once (exit status 75).";

/// Runs the command.
///
/// # Errors
/// The command cannot be executed, a setting or the configuration cannot be used, or a database refuses.
pub async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let limits =
        CommandLimits { time: args.time_limit, outcome_bytes: args.outcome_limit_bytes, ..CommandLimits::default() };
    let handler = CommandHandler::new(args.command, limits).map_err(|error| CliError::Data(error.to_string()))?;
    let config = context.config();
    let names: Vec<String> = config.databases()?.into_iter().map(|(name, _)| name).collect();
    let databases = names.iter().map(|name| context.database(name)).collect::<Result<Vec<_>, _>>()?;
    let concurrency = args.concurrency.unwrap_or_else(processors);
    let telemetry = Telemetry::start(&config.log);
    let mut builder = Worker::builder(BrokerSettings::from_config(config)?, &args.queue)
        .placements(databases.clone())
        .concurrency(concurrency)
        .batch(args.batch.unwrap_or(concurrency.div_ceil(4)))
        .lease_ttl(args.lease_ttl)
        .grace(args.grace)
        .log(&telemetry.log);
    if let Some(worker_id) = args.worker_id {
        builder = builder.worker_id(worker_id);
    }
    let worker = builder.build(handler).map_err(sort)?;
    let mut signals = Signals::new()?;
    info!(telemetry.log, "worker starting"; field::QUEUE => &args.queue, field::WORKER_ID => worker.worker_id(),
        "concurrency" => concurrency, "placements" => names.join(","));
    tokio::select! {
        usable = usable(&databases, &telemetry.log) => usable?,
        () = signals.next() => return Ok(EXIT_OK),
    }
    let drain = CancellationToken::new();
    let mut working = std::pin::pin!(worker.run(drain.clone()));
    tokio::select! {
        ended = &mut working => return ended.map(|_| EXIT_OK).map_err(sort),
        () = signals.next() => drain.cancel(),
    }
    tokio::select! {
        ended = &mut working => ended.map(|_| EXIT_OK).map_err(sort),
        () = signals.next() => {
            warn!(telemetry.log, "leaving at once: commands are killed, leases will expire");
            Ok(EXIT_FORCED)
        }
    }
}

/// Waits until at least one placement can be worked with.
async fn usable(databases: &[Database], log: &Logger) -> Result<(), StoreError> {
    let mut pauses = Pauses::default();
    loop {
        let mut usable = false;
        for database in databases {
            match WorkerStore::new(database.clone()).check().await {
                Ok(()) => usable = true,
                Err(error) if error.is_unavailable() => {
                    warn!(log, "waiting for a database"; field::PLACEMENT => database.name(), field::ERROR => error_chain(&error));
                }
                Err(error) => return Err(error),
            }
        }
        if usable {
            return Ok(());
        }
        pauses.pause().await;
    }
}

fn sort(error: WorkerError) -> CliError {
    match error {
        WorkerError::Setting(_) | WorkerError::Broker(_) => CliError::Data(error.to_string()),
        WorkerError::Died => CliError::Other(error.to_string(), None),
    }
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
