//! `runherd runs`, and how a command line names a run.

use std::io::Write;

use runherd_actors::model::RunStatus;

use super::progress::{status_words, totals_words, whole_seconds};
use super::{CliError, Context, EXIT_OK};
use crate::store::client::{ClientStore, RunFilter, RunSummary};

/// List runs, newest first
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    runherd runs                                  the newest twenty\n  \
    runherd runs --status running --status pending\n  \
    runherd runs --queue render --limit 100\n  \
    runherd --json runs | jq -r '.[].run_id'      identifiers only")]
pub struct Args {
    /// The most runs
    #[arg(long, value_name = "RUNS", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    /// Only runs with this status (may be repeated): creating, pending, running, cancelling, failing, succeeded, failed or
    /// cancelled
    #[arg(long = "status", value_name = "STATUS")]
    statuses: Vec<RunStatus>,
    /// Only runs of this queue
    #[arg(long, value_name = "QUEUE")]
    queue: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// The control database cannot be asked.
pub async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let store = ClientStore::new(context.control()?);
    let filter = RunFilter { limit: args.limit, statuses: args.statuses, queue: args.queue };
    let runs = store.list_runs(&filter).await?;
    let mut out = std::io::stdout().lock();
    if context.json {
        // Plain data under fixed names: this cannot fail.
        writeln!(out, "{}", serde_json::to_value(&runs).unwrap_or_default())?;
    } else {
        write!(out, "{}", table(&runs))?;
    }
    Ok(EXIT_OK)
}

fn table(runs: &[RunSummary]) -> String {
    if runs.is_empty() {
        return "no runs\n".to_owned();
    }
    let header = ["RUN", "AGE", "QUEUE", "STATUS", "CHUNKS", "HANDED OUT", "OUTCOME", "NAME"].map(str::to_owned);
    let rows: Vec<[String; 8]> = std::iter::once(header).chain(runs.iter().map(row)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 8] = std::array::from_fn(width);
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

fn row(run: &RunSummary) -> [String; 8] {
    let intents = run.intents.iter().map(String::as_str);
    let outcome = if run.status.is_terminal() { totals_words(&run.totals) } else { "-".to_owned() };
    [
        run.run_id.to_string(),
        short_age(run.age.as_secs()),
        run.queue.clone(),
        status_words(run.status, run.paused, intents),
        run.chunks.map_or_else(|| "-".to_owned(), |chunks| chunks.to_string()),
        run.handed_out.to_string(),
        outcome,
        // A name is the client's own text: a line must stay a line.
        run.name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect(),
    ]
}

/// The two largest units.
fn short_age(seconds: u64) -> String {
    let words = whole_seconds(std::time::Duration::from_secs(seconds));
    words.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use runherd_actors::model::{RunId, Totals};
    use uuid::Uuid;

    use super::*;

    #[test]
    fn the_table_lines_up() {
        let run = RunSummary {
            run_id: RunId(Uuid::nil()),
            name: "two\nlines".to_owned(),
            queue: "q".to_owned(),
            status: RunStatus::Running,
            paused: true,
            intents: vec!["cancel".to_owned()],
            priority: 0,
            chunks: Some(5),
            handed_out: 3,
            totals: Totals::default(),
            reason: None,
            created_at: SystemTime::UNIX_EPOCH,
            started_at: None,
            finished_at: None,
            deadline_at: None,
            age: Duration::from_secs(90_061),
        };
        let expected = "\
RUN                                   AGE      QUEUE  STATUS                             CHUNKS  HANDED OUT  OUTCOME  NAME
00000000-0000-0000-0000-000000000000  1day 1h  q      running, paused, cancel requested  5       3           -        two lines
";
        assert_eq!(table(&[run]), expected);
        assert_eq!(table(&[]), "no runs\n");
    }
}
