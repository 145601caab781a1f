//! `runherd status`: everything about one run, in one look.

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::{Duration, SystemTime};

use super::progress::{Live, Looker, Snapshot, totals_words, whole_seconds};
use super::run_arg::RunArg;
use super::{CliError, Context, EXIT_OK};
use crate::store::client::{ClientStore, PlacementView};

/// Show everything about one run
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    runherd status 0193e1c2-7d4e-4c51-9f0a-5b1d2c3e4f60\n  \
    runherd --json status 0193e1c2 | jq .progress\n\n\
    While a run goes on, the outcomes are counted on its placements and may be a moment old; once it has ended they are \
    final.")]
pub struct Args {
    /// The run: its identifier, or a unique prefix of at least 8 hexadecimal digits
    run: RunArg,
}

/// Runs the command.
///
/// # Errors
/// The run is unknown, or the control database cannot be asked.
pub async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let store = ClientStore::new(context.control()?);
    let run_id = args.run.resolve(&store).await?;
    let snapshot = Looker::new(store, run_id).look(context).await?;
    let mut out = std::io::stdout().lock();
    if context.json {
        // Plain data under fixed names: this cannot fail.
        writeln!(out, "{}", serde_json::to_value(&snapshot).unwrap_or_default())?;
    } else {
        out.write_all(text(&snapshot).as_bytes())?;
    }
    Ok(EXIT_OK)
}

fn text(snapshot: &Snapshot) -> String {
    let mut lines = Lines::default();
    identity(snapshot, &mut lines);
    counts(snapshot, &mut lines);
    treatment(snapshot, &mut lines);
    times(snapshot, &mut lines);
    for (view, live) in snapshot.run.placements.iter().zip(&snapshot.live) {
        lines.put("placement", placement(view, live));
    }
    lines.0
}

fn identity(snapshot: &Snapshot, lines: &mut Lines) {
    let run = &snapshot.run;
    lines.put("run", run.run_id.to_string());
    lines.put_some("name", Some(run.name.clone()).filter(|name| !name.is_empty()));
    lines.put("queue", run.queue.clone());
    lines.put("status", snapshot.status_words());
    lines.put_some("reason", run.reason.clone());
    for intent in &run.intents {
        let waiting = whole_seconds(Duration::from_millis(intent.waiting_ms.max(0).unsigned_abs()));
        let why = intent.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        lines.put("requested", format!("{} by {}, {waiting} ago{why}", intent.intent, intent.requested_by));
    }
}

fn counts(snapshot: &Snapshot, lines: &mut Lines) {
    let (run, progress) = (&snapshot.run, &snapshot.progress);
    let Some(chunks) = run.chunks else {
        lines.put("chunks", "not known before the run is sealed".to_owned());
        return;
    };
    lines.put("chunks", format!("{chunks} in {} parts, over {} shards", run.parts.unwrap_or(0), run.shards));
    if !run.status.is_terminal() {
        lines.put("seeded", progress.seeded.to_string());
        lines.put("handed out", progress.handed_out.to_string());
        lines.put("in flight", format!("{}, {} of them leased", progress.in_flight, progress.leased));
    }
    let incomplete = if progress.incomplete { " (incomplete: see the placements)" } else { "" };
    lines.put("finished", format!("{}: {}{incomplete}", progress.finished, totals_words(&progress.totals)));
    if let Some(ms) = run.running_ms.filter(|ms| *ms > 0) {
        #[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
        let rate = progress.finished as f64 * 1000.0 / ms as f64;
        let time = whole_seconds(Duration::from_millis(ms.unsigned_abs()));
        lines.put("rate", format!("{rate:.1} chunks/s over {time}"));
    }
}

fn treatment(snapshot: &Snapshot, lines: &mut Lines) {
    let run = &snapshot.run;
    lines.put("priority", run.priority.to_string());
    let tolerated = run.tolerated_failures.map(|failures| failures.to_string());
    lines.put("tolerated failures", tolerated.unwrap_or_else(|| "0, counted at the end".to_owned()));
    let policy = run.policy.as_object().filter(|policy| !policy.is_empty());
    let policy =
        policy.map(|policy| policy.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" "));
    lines.put("policy", policy.unwrap_or_else(|| "as configured".to_owned()));
    lines.put_some("idempotency key", run.idempotency_key.clone());
}

fn times(snapshot: &Snapshot, lines: &mut Lines) {
    let run = &snapshot.run;
    let time = |time: SystemTime| humantime::format_rfc3339_seconds(time).to_string();
    lines.put("created", time(run.created_at));
    lines.put_some("sealed", run.sealed_at.map(time));
    lines.put_some("started", run.started_at.map(time));
    lines.put_some("finished", run.finished_at.map(time));
    lines.put_some("deadline", run.deadline_at.map(time));
}

fn placement(view: &PlacementView, live: &Live) -> String {
    let state = match (view.seeded, view.reseeding) {
        (_, true) => ", being seeded again after a failover",
        (false, _) => ", being seeded",
        (true, _) => "",
    };
    let mut line = format!("{}: {} chunks{state}", view.name, view.chunks);
    if view.shards > 0 {
        let PlacementView { shards, open, exhausted, drained, .. } = view;
        // Writing to a String cannot fail.
        let _ = write!(line, "; {shards} shards: {open} open, {exhausted} exhausted, {drained} drained");
    }
    let _ = match (&live.progress, &live.problem) {
        (Some(progress), _) => write!(line, "; {} finished, {} in flight", progress.finished, progress.in_flight),
        (None, problem) => {
            let problem = problem.as_deref().unwrap_or("no answer");
            write!(line, "; {} handed out; cannot be asked: {problem}", view.handed_out)
        }
    };
    line
}

/// Names and values, in two columns.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn put(&mut self, name: &str, value: String) {
        let value: String = value.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "{name:<20}{value}");
    }

    fn put_some(&mut self, name: &str, value: Option<String>) {
        if let Some(value) = value {
            self.put(name, value);
        }
    }
}
