//! `runherd submit`: makes a run of a file, a stream or a range.

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use runherd_actors::model::RunId;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::progress::{Looker, exit_code};
use super::watch::{self, say};
use super::{CliError, Context, EXIT_INTERRUPTED, EXIT_OK};
use crate::policy::PolicyOverrides;
use crate::process::Signals;
use crate::store::StoreError;
use crate::store::client::ClientStore;
use crate::submission::{
    Header, Input, Observer, Options, Progress, Range, Request, Source, SubmitError, Submitted, submit,
};
use crate::telemetry::error_chain;

/// Between two lines of progress where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Submit a run: one chunk for each line, or for each step of a range
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    runherd submit --queue render --chunks frames.jsonl          one JSON value a line, sent as it stands\n  \
    find . -name '*.jpg' | runherd submit --queue thumbs --lines -    each line is a string\n  \
    runherd submit --queue primes --range 0..10000000 --step 1000     each chunk is {\"start\":…,\"end\":…}, half-open\n  \
    runherd submit --queue render --chunks frames.jsonl --idempotency-key film-7 --wait\n\n\
    The run identifier goes to standard output. With an idempotency key the same command may be repeated after any failure: \
    it goes on where it stopped, or finds the run that is there. A line that is wrong gives the run up, and nothing of it is \
    handed out. With --wait it ends with 0 when the run succeeded, 1 when it failed, 3 when it was cancelled.")]
pub struct Args {
    /// The queue whose workers do it
    #[arg(long, value_name = "QUEUE")]
    queue: String,
    /// Into how many shards it is cut, from 1 to 4096 [default: 8]
    #[arg(long, value_name = "SHARDS")]
    shards: Option<u32>,
    /// A name for people
    #[arg(long, value_name = "TEXT")]
    name: Option<String>,
    /// A key under which the same submission may be tried again
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Higher goes first, from -1000 to 1000 [default: 0]
    #[arg(long, value_name = "PRIORITY", allow_negative_numbers = true)]
    priority: Option<i32>,
    /// The most failed chunks with which the run succeeds; one more stops it. By default it goes on to its end, and fails if any
    /// chunk failed
    #[arg(long, value_name = "CHUNKS")]
    tolerated_failures: Option<u64>,
    /// How long from now the run fails if it has not ended, such as 6h
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    deadline: Option<Duration>,
    #[command(flatten)]
    source: SourceArgs,
    /// How many numbers of the range make one chunk
    #[arg(long, value_name = "NUMBERS", default_value_t = 1, allow_negative_numbers = true, conflicts_with_all = ["chunks", "lines"])]
    step: i64,
    /// Watch the run until it has ended
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    policy: PolicyOverrides,
}

/// Where the chunks come from.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct SourceArgs {
    /// A file with one JSON value a line, or - for standard input
    #[arg(long, value_name = "FILE")]
    chunks: Option<PathBuf>,
    /// A file of which each line is a string, or - for standard input
    #[arg(long, value_name = "FILE")]
    lines: Option<PathBuf>,
    /// The numbers from A up to, not including, B
    #[arg(long, value_name = "A..B", allow_hyphen_values = true)]
    range: Option<String>,
}

impl SourceArgs {
    fn open(&self, step: i64) -> Result<Source, SubmitError> {
        match (&self.chunks, &self.lines, &self.range) {
            (Some(path), _, _) => Ok(Source::Chunks(Input::open(path)?)),
            (_, Some(path), _) => Ok(Source::Lines(Input::open(path)?)),
            (_, _, Some(range)) => Ok(Source::Range(Range::parse(range, step)?)),
            (None, None, None) => {
                Err(SubmitError::Request("one of --chunks, --lines and --range is needed".to_owned()))
            }
        }
    }
}

/// Runs the command.
///
/// # Errors
/// The request or the input is wrong, the key belongs to another run, or the control database stays away.
pub async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let header = Header {
        queue: args.queue,
        name: args.name,
        shards: args.shards,
        priority: args.priority,
        tolerated_failures: args.tolerated_failures,
        deadline: args.deadline,
        policy: args.policy,
    };
    // Before the input is opened: reading may wait for a person.
    header.validate().map_err(cli_error)?;
    let source = args.source.open(args.step).map_err(cli_error)?;
    let options = Options::from(&context.config().submission);
    let request = Request { header, idempotency_key: args.idempotency_key.clone(), source, options };
    let store = ClientStore::new(context.control()?);

    let stop = CancellationToken::new();
    let signals = tokio::spawn(stop_on_signal(stop.clone()));
    let mut shown = Shown::new(context.draws_progress());
    let result = submit(&store, request, &mut shown, &stop).await;
    signals.abort();
    shown.clear();
    let submitted = match result {
        Ok(submitted) => submitted,
        Err(error @ SubmitError::Interrupted { .. }) => {
            say(&error.to_string());
            return Ok(EXIT_INTERRUPTED);
        }
        Err(error) => {
            if let (SubmitError::Store(StoreError::Unavailable { .. }), Some(key)) = (&error, &args.idempotency_key) {
                say(&format!("the same command with --idempotency-key {key} goes on where this one stopped"));
            }
            return Err(cli_error(error));
        }
    };
    if args.wait { wait(&submitted, store, context).await } else { print(&submitted, context) }
}

fn print(submitted: &Submitted, context: &Context) -> Result<u8, CliError> {
    let Submitted { run_id, chunks, parts, created } = submitted;
    let mut out = std::io::stdout().lock();
    if context.json {
        let value = json!({ "run_id": run_id, "chunks": chunks, "parts": parts, "created": created });
        writeln!(out, "{value}")?;
    } else {
        writeln!(out, "{run_id}")?;
    }
    Ok(EXIT_OK)
}

async fn wait(submitted: &Submitted, store: ClientStore, context: &Context) -> Result<u8, CliError> {
    print(submitted, context)?;
    let Some(last) = watch::follow(&mut Looker::new(store, submitted.run_id), context).await? else {
        return Ok(EXIT_INTERRUPTED);
    };
    if context.json {
        watch::print_last(&last, context)?;
    } else {
        // Standard output holds the run's name and nothing else.
        say(&last.summary());
    }
    Ok(exit_code(last.run.status))
}

fn cli_error(error: SubmitError) -> CliError {
    match error {
        SubmitError::Store(error) => CliError::Store(error),
        broken @ SubmitError::Broken { .. } => CliError::Other(broken.to_string(), None),
        other => CliError::Data(other.to_string()),
    }
}

/// Ctrl-C, and the signal that service managers and `timeout` send.
async fn stop_on_signal(stop: CancellationToken) {
    match Signals::new() {
        Ok(mut signals) => signals.next().await,
        Err(_) => std::future::pending().await,
    }
    stop.cancel();
}

/// How a submission is shown while it goes on.
struct Shown {
    bar: Option<ProgressBar>,
    started: Instant,
    last_line: Instant,
    waiting: bool,
}

impl Shown {
    fn new(terminal: bool) -> Self {
        let bar = terminal.then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            bar.set_style(ProgressStyle::default_spinner());
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        let now = Instant::now();
        Self { bar, started: now, last_line: now, waiting: false }
    }

    fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| say(line)),
            None => say(line),
        }
    }

    fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Observer for Shown {
    fn begun(&mut self, run_id: RunId, parts_present: u32, sealed: bool) {
        if std::mem::take(&mut self.waiting) {
            self.say("the database is back");
        }
        if sealed {
            self.say(&format!("run {run_id} was submitted before under this key; comparing"));
        } else if parts_present > 0 {
            self.say(&format!("going on with run {run_id}: {parts_present} parts are there already"));
        }
    }

    fn progress(&mut self, progress: Progress) {
        let Progress { chunks, bytes, .. } = progress;
        let line = || {
            let seconds = self.started.elapsed().as_secs_f64().max(0.001);
            #[expect(clippy::cast_precision_loss, reason = "an estimate")]
            let rate = chunks as f64 / seconds;
            format!("submitting: {chunks} chunks, {}, {rate:.0} chunks/s", HumanBytes(bytes))
        };
        match &self.bar {
            Some(bar) => bar.set_message(line()),
            None if self.last_line.elapsed() >= LINE_EVERY => {
                say(&line());
                self.last_line = Instant::now();
            }
            None => {}
        }
    }

    fn waiting(&mut self, error: &StoreError, pause: Duration) {
        if !std::mem::replace(&mut self.waiting, true) {
            let pause = humantime::format_duration(pause);
            self.say(&format!("{}; trying again in {pause}, and then ever more slowly", error_chain(error)));
        }
    }
}
