//! `runherd runs`, and how a command line names a run.

use std::io::Write;
use std::str::FromStr;

use runherd_actors::model::{RunId, RunStatus};
use uuid::Uuid;

use super::progress::{status_words, totals_words, whole_seconds};
use super::{CliError, Context, EXIT_OK};
use crate::store::client::{ClientStore, RunFilter, RunSummary};

/// The fewest digits of a prefix: fewer are too likely to become ambiguous later.
const PREFIX_DIGITS_MIN: usize = 8;
const DIGITS: usize = 32;

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

/// A run on the command line: its identifier, or a prefix of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunArg {
    lowest: Uuid,
    highest: Uuid,
}

impl FromStr for RunArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits: String = text.chars().filter(|c| *c != '-').collect();
        if digits.len() > DIGITS || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err("a run is named by its UUID, or by a prefix of it".to_owned());
        }
        if digits.len() < PREFIX_DIGITS_MIN {
            return Err(format!("a prefix of a run's UUID has at least {PREFIX_DIGITS_MIN} hexadecimal digits"));
        }
        let padded = |with: &str| {
            let digits = format!("{digits}{}", with.repeat(DIGITS - digits.len()));
            Uuid::parse_str(&digits).map_err(|error| error.to_string())
        };
        Ok(Self { lowest: padded("0")?, highest: padded("f")? })
    }
}

impl RunArg {
    /// The run that is meant. A full identifier is not looked up.
    ///
    /// # Errors
    /// No run, or more than one, begins like this.
    pub async fn resolve(&self, store: &ClientStore) -> Result<RunId, CliError> {
        if self.lowest == self.highest {
            return Ok(RunId(self.lowest));
        }
        let found = store.find_runs(self.lowest, self.highest).await?;
        match found.as_slice() {
            [run_id] => Ok(*run_id),
            [] => Err(CliError::Data(format!("no run begins with {}", self.prefix()))),
            several => {
                let list: Vec<String> = several.iter().take(2).map(ToString::to_string).collect();
                let which = list.join(" and ");
                Err(CliError::Data(format!("several runs begin with {} ({which}); give more digits", self.prefix())))
            }
        }
    }

    /// The digits that both ends share.
    fn prefix(&self) -> String {
        let (lowest, highest) = (self.lowest.to_string(), self.highest.to_string());
        let shared = lowest.chars().zip(highest.chars()).take_while(|(low, high)| low == high).map(|(low, _)| low);
        shared.collect::<String>().trim_end_matches('-').to_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use runherd_actors::model::Totals;

    use super::*;

    #[test]
    fn a_run_is_named_by_its_identifier_or_a_prefix() {
        let full = "0193e1c2-7d4e-4c51-9f0a-5b1d2c3e4f60";
        let run: RunArg = full.parse().unwrap();
        assert_eq!(run.lowest.to_string(), full);
        assert_eq!(run.lowest, run.highest);
        let run: RunArg = "0193E1C2-7d".parse().unwrap();
        assert_eq!(run.lowest.to_string(), "0193e1c2-7d00-0000-0000-000000000000");
        assert_eq!(run.highest.to_string(), "0193e1c2-7dff-ffff-ffff-ffffffffffff");
        assert_eq!(run.prefix(), "0193e1c2-7d");
        assert_eq!("0193e1c2".parse::<RunArg>().unwrap().prefix(), "0193e1c2");
        for bad in ["", "0193e1c", "0193e1c2-xyz", "0193e1c2-7d4e-4c51-9f0a-5b1d2c3e4f600", "é0193e1c2"] {
            assert!(bad.parse::<RunArg>().is_err(), "{bad}");
        }
    }

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
