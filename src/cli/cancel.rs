//! `runherd cancel`: asks for a run to be stopped.

use std::io::Write;

use runherd_actors::model::RunStatus;
use serde_json::json;

use super::progress::Looker;
use super::run_arg::RunArg;
use super::{CliError, Context, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, watch};
use crate::store::client::ClientStore;

/// Cancel a run: nothing more of it is handed out, and what is open is swept
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    runherd cancel 0193e1c2 --reason 'wrong input'\n  \
    runherd cancel 0193e1c2 --wait     and wait until it has ended\n\n\
    A coordinator applies it within moments; work that finishes after that is refused. Asking again changes nothing. A run \
    that has ended is refused. With --wait it ends with 0 when the run was cancelled, and with 1 when it ended otherwise \
    before the request was applied.")]
pub struct Args {
    /// The run: its identifier, or a unique prefix of at least 8 hexadecimal digits
    run: RunArg,
    /// Why; shown by `runherd status` and in the finished event
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Wait until the run has ended
    #[arg(long)]
    wait: bool,
}

/// Runs the command.
///
/// # Errors
/// The run is unknown or has ended, or the control database cannot be reached.
pub async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let store = ClientStore::new(context.control()?);
    let run_id = args.run.resolve(&store).await?;
    let found = store.cancel_run(run_id, args.reason.as_deref()).await?;
    if !args.wait {
        let mut out = std::io::stdout().lock();
        if context.json {
            writeln!(out, "{}", json!({ "run_id": run_id, "requested": "cancel", "status": found }))?;
        } else if matches!(found, RunStatus::Cancelling | RunStatus::Failing) {
            writeln!(out, "run {run_id} is {found} already")?;
        } else {
            writeln!(out, "run {run_id}: cancel requested; it was {found}")?;
        }
        return Ok(EXIT_OK);
    }
    let Some(last) = watch::follow(&mut Looker::new(store, run_id), context).await? else {
        return Ok(EXIT_INTERRUPTED);
    };
    watch::print_last(&last, context)?;
    Ok(if last.run.status == RunStatus::Cancelled { EXIT_OK } else { EXIT_FAILED })
}
