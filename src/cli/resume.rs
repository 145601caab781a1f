//! `runherd resume`: goes on handing out a paused run.

use std::io::Write;

use serde_json::json;

use super::run_arg::RunArg;
use super::{CliError, Context, EXIT_OK};
use crate::store::client::ClientStore;

/// Go on handing out a paused run
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    runherd resume 0193e1c2-7d4e-4c51-9f0a-5b1d2c3e4f60\n  \
    runherd resume 0193e1c2    by a prefix of at least 8 digits, if only one run has it\n\n\
    Takes back a pause, also one that is not applied yet. A run that is not paused is refused.")]
pub struct Args {
    /// The run: its identifier, or a unique prefix of at least 8 hexadecimal digits
    run: RunArg,
}

/// Runs the command.
///
/// # Errors
/// The run is unknown or not paused, or the control database cannot be reached.
pub async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let store = ClientStore::new(context.control()?);
    let run_id = args.run.resolve(&store).await?;
    let found = store.resume_run(run_id).await?;
    let mut out = std::io::stdout().lock();
    if context.json {
        writeln!(out, "{}", json!({ "run_id": run_id, "requested": "resume", "status": found }))?;
    } else {
        writeln!(out, "run {run_id}: resumed; it is {found}")?;
    }
    Ok(EXIT_OK)
}
