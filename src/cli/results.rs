//! `runherd results`: a run's outcomes as NDJSON, in order and in constant memory.

use std::collections::HashMap;
use std::io::{BufWriter, Write};

use super::run_arg::RunArg;
use super::{CliError, Context, EXIT_OK};
use crate::store::client::ClientStore;
use crate::store::{Database, results};

/// Chunks read at a time.
const PAGE: i64 = 1_000;

/// Stream a run's outcomes, one JSON object a line
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    runherd results 0193e1c2 > outcomes.ndjson\n  \
    runherd results 0193e1c2 --status failed | jq -r .error | sort | uniq -c\n\n\
    Finished chunks only, by shard and chunk number. It may be called while the run goes on.")]
pub struct Args {
    /// The run: its identifier, or a unique prefix of at least 8 hexadecimal digits
    run: RunArg,
    /// Only chunks that ended like this
    #[arg(long, value_parser = ["succeeded", "failed", "cancelled", "lost"])]
    status: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// The run is unknown, or a placement of it cannot be read: what was printed until then is not all.
pub async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let control = context.control()?;
    let store = ClientStore::new(control.clone());
    let run_id = args.run.resolve(&store).await?;
    if store.read_run(run_id).await?.is_none() {
        return Err(CliError::Data(format!("there is no run {run_id}")));
    }
    let mut placements: HashMap<String, Database> = HashMap::new();
    let mut out = BufWriter::new(std::io::stdout().lock());
    for (run_shard, name) in results::shards(&control, run_id).await? {
        if !placements.contains_key(&name) {
            placements.insert(name.clone(), context.database(&name)?);
        }
        let mut after = -1;
        loop {
            let page =
                results::page(&placements[&name], run_id, run_shard, after, PAGE, args.status.as_deref()).await?;
            let Some((last, _)) = page.last() else { break };
            after = *last;
            for (_, line) in &page {
                match writeln!(out, "{line}") {
                    // A reader that has seen enough (`| head`) ends the command quietly.
                    Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(EXIT_OK),
                    written => written?,
                }
            }
        }
    }
    out.flush()?;
    Ok(EXIT_OK)
}
