//! `runherd serve`: runs a coordinator.

use super::{CliError, Context};
use crate::coordinator::{Coordinator, StartError};
use crate::telemetry::Telemetry;

/// Run a coordinator
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    runherd serve --config /etc/runherd/runherd.toml\n  \
    runherd serve --set control.url=postgresql://coordinator@db/runs --set broker.url=amqp://mq/runs\n\n\
    Any number of coordinators may run at once, with no word between them. SIGTERM drains: running cycles are finished within \
    runtime.drain_grace; a second one leaves at once. Servers that are down are waited for.")]
pub struct Args {
    /// End at once if a server cannot be reached at the start, instead of waiting for it
    #[arg(long)]
    fail_fast: bool,
}

/// Runs the command. Unlike the others it owns its runtime.
///
/// # Errors
/// The coordinator did not start.
pub fn run(args: &Args, context: &Context) -> Result<u8, CliError> {
    let telemetry = Telemetry::start(&context.config().log);
    let coordinator = Coordinator::builder(context.config().clone(), telemetry.log.clone()).fail_fast(args.fail_fast);
    match coordinator.run() {
        Ok(outcome) => Ok(outcome.exit_code()),
        Err(StartError::Interrupted) => Ok(super::EXIT_OK),
        Err(error) => Err(error.into()),
    }
}
