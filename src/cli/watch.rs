//! `runherd watch`: follows a run until it has ended.
//!
//! On a terminal it draws a bar; elsewhere it prints a line when something has changed. A database that goes away is waited
//! for: the run goes on without its watchers.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use runherd_actors::model::RunStatus;
use tokio::time::sleep;

use super::progress::{Looker, Snapshot, exit_code, passes, whole_seconds};
use super::run_arg::RunArg;
use super::{CliError, Context, EXIT_INTERRUPTED};
use crate::store::client::ClientStore;
use crate::telemetry::error_chain;

/// Between two looks, on a terminal and elsewhere.
const LOOK_TERMINAL: Duration = Duration::from_millis(500);
const LOOK_PLAIN: Duration = Duration::from_millis(1500);
/// Looking takes at most one part in so many of the time, however many shards there are to count.
const LOOK_SHARE: u32 = 8;
const BAR: &str = "{elapsed:>4} [{bar:20}] {percent:>3}% {human_pos}/{human_len} {wide_msg}";
/// How long to wait for a control database that went away.
const PATIENCE: Duration = Duration::from_secs(300);

/// Follow a run until it has ended
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    runherd watch 0193e1c2-7d4e-4c51-9f0a-5b1d2c3e4f60    by its full identifier\n  \
    runherd watch 0193e1c2                                by a prefix of at least 8 digits, if only one run has it\n  \
    runherd --json watch 0193e1c2 2>/dev/null             nothing but the final state, as JSON\n\n\
    Progress goes to standard error, the final state to standard output. Ends with 0 when the run succeeded, 1 when it \
    failed, 3 when it was cancelled. Stopping this command does not stop the run.")]
pub struct Args {
    /// The run: its identifier, or a unique prefix of at least 8 hexadecimal digits
    run: RunArg,
}

/// Runs the command.
///
/// # Errors
/// The run is unknown, or the control database stays away.
pub async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let store = ClientStore::new(context.control()?);
    let run_id = args.run.resolve(&store).await?;
    let Some(last) = follow(&mut Looker::new(store, run_id), context).await? else { return Ok(EXIT_INTERRUPTED) };
    print_last(&last, context)?;
    Ok(exit_code(last.run.status))
}

/// Prints how a run ended.
pub(super) fn print_last(last: &Snapshot, context: &Context) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    if context.json {
        // Plain data under fixed names: this cannot fail.
        writeln!(out, "{}", serde_json::to_value(last).unwrap_or_default())?;
    } else {
        writeln!(out, "{}", last.summary())?;
    }
    Ok(())
}

/// Follows a run until it has ended; `None` when Ctrl-C came first.
pub(super) async fn follow(looker: &mut Looker, context: &Context) -> Result<Option<Snapshot>, CliError> {
    let mut shown = Shown::new(context.draws_progress());
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    loop {
        let started = Instant::now();
        let look = tokio::select! {
            look = looker.look(context) => look,
            _ = &mut interrupted => {
                shown.say("stopped watching; the run goes on");
                return Ok(None);
            }
        };
        match look {
            Ok(snapshot) => {
                shown.update(&snapshot);
                if snapshot.run.status.is_terminal() {
                    shown.clear();
                    return Ok(Some(snapshot));
                }
            }
            Err(error) if passes(&error) && shown.away() < PATIENCE => shown.lost(&error),
            Err(error) => return Err(error),
        }
        let pause = shown.interval().max(started.elapsed() * LOOK_SHARE);
        tokio::select! {
            () = sleep(pause) => {}
            _ = &mut interrupted => {
                shown.say("stopped watching; the run goes on");
                return Ok(None);
            }
        }
    }
}

/// What is on the screen, or was printed last.
struct Shown {
    bar: Option<ProgressBar>,
    status: String,
    line: String,
    silent: Vec<String>,
    away_since: Option<Instant>,
    rate: Rate,
}

impl Shown {
    fn new(terminal: bool) -> Self {
        let bar = terminal.then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            bar.set_style(spinner());
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        let (status, line, silent) = (String::new(), String::new(), Vec::new());
        Self { bar, status, line, silent, away_since: None, rate: Rate::default() }
    }

    fn interval(&self) -> Duration {
        if self.bar.is_some() { LOOK_TERMINAL } else { LOOK_PLAIN }
    }

    fn away(&self) -> Duration {
        self.away_since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Prints a line, above the bar where there is one.
    fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| say(line)),
            None => say(line),
        }
    }

    fn lost(&mut self, error: &CliError) {
        if self.away_since.is_none() {
            self.away_since = Some(Instant::now());
            self.say(&format!("{}; still watching", error_chain(error)));
        }
    }

    fn update(&mut self, snapshot: &Snapshot) {
        if let Some(since) = self.away_since.take() {
            self.say(&format!("the database is back after {}", whole_seconds(since.elapsed())));
        }
        self.name_silent(snapshot);
        self.rate.note(snapshot.progress.finished, Instant::now());
        let status = snapshot.status_words();
        if status != self.status {
            // The line of progress says it too, where there is no bar.
            if self.bar.is_some() {
                self.say(&format!("run {} {status}", snapshot.run.run_id));
            }
            self.status = status;
        }
        match &self.bar {
            Some(bar) => self.draw(bar, snapshot),
            None => self.print(snapshot),
        }
    }

    /// Says which placements fell silent, and which came back, once each.
    fn name_silent(&mut self, snapshot: &Snapshot) {
        let silent: Vec<(&str, &str)> = snapshot.silent().collect();
        for (name, problem) in &silent {
            if !self.silent.iter().any(|known| known == name) {
                self.say(&format!(
                    "placement {name} cannot be asked: {problem}; its chunks are counted as the control database knows"
                ));
            }
        }
        for name in &self.silent {
            if !silent.iter().any(|(now, _)| now == name) {
                self.say(&format!("placement {name} answers again"));
            }
        }
        self.silent = silent.into_iter().map(|(name, _)| name.to_owned()).collect();
    }

    fn draw(&self, bar: &ProgressBar, snapshot: &Snapshot) {
        let Some((done, total)) = extent(snapshot) else {
            bar.set_style(spinner());
            bar.set_message(self.status.clone());
            return;
        };
        bar.set_style(bar_style());
        bar.set_length(total.unsigned_abs());
        bar.set_position(done.unsigned_abs());
        // The words in front say what the bar says already, and a terminal is narrow.
        let details = details(snapshot);
        let details = details.strip_prefix("finished, ").unwrap_or(&details);
        bar.set_message(format!("{details}{}", self.pace(snapshot)));
    }

    /// A line, when it differs from the one before.
    fn print(&mut self, snapshot: &Snapshot) {
        let line = match extent(snapshot) {
            Some((done, total)) => format!("{done}/{total} chunks {}", details(snapshot)),
            None => String::new(),
        };
        let line = format!("{}{}{line}", self.status, if line.is_empty() { "" } else { ": " });
        if line == self.line || snapshot.run.status.is_terminal() {
            return;
        }
        self.say(&format!("{line}{}", self.pace(snapshot)));
        self.line = line;
    }

    /// The rate and the time that is left, where they can be said.
    fn pace(&self, snapshot: &Snapshot) -> String {
        let (Some(rate), RunStatus::Running) = (self.rate.per_second(), snapshot.run.status) else {
            return String::new();
        };
        let left = snapshot.run.chunks.unwrap_or(0) - snapshot.progress.finished;
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let eta = Duration::try_from_secs_f64(left as f64 / rate).unwrap_or_default();
        format!(", {rate:.1}/s, about {} left", whole_seconds(eta))
    }

    fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// What is counted, and of how many: seeded chunks while the run is made, finished ones after that.
fn extent(snapshot: &Snapshot) -> Option<(i64, i64)> {
    let total = snapshot.run.chunks?;
    Some(match snapshot.run.status {
        RunStatus::Creating => (snapshot.progress.seeded, total),
        _ => (snapshot.progress.finished, total),
    })
}

fn details(snapshot: &Snapshot) -> String {
    let progress = &snapshot.progress;
    if snapshot.run.status == RunStatus::Creating {
        return "seeded".to_owned();
    }
    let mut words = format!("finished, {} handed out, {} in flight", progress.handed_out, progress.in_flight);
    if progress.totals.failed > 0 {
        words.push_str(&format!(", {} failed", progress.totals.failed));
    }
    if progress.incomplete {
        words.push_str(" (incomplete)");
    }
    words
}

/// The rate over the last ten seconds or so.
#[derive(Debug, Default)]
struct Rate {
    last: Option<(i64, Instant)>,
    per_second: Option<f64>,
}

impl Rate {
    const WINDOW_SECONDS: f64 = 10.0;

    fn note(&mut self, finished: i64, now: Instant) {
        if let Some((before, then)) = self.last {
            let seconds = now.duration_since(then).as_secs_f64();
            if seconds <= 0.0 {
                return;
            }
            // A failover may take finished chunks back; that is no rate.
            #[expect(clippy::cast_precision_loss, reason = "an estimate")]
            let current = (finished - before).max(0) as f64 / seconds;
            let weight = (seconds / Self::WINDOW_SECONDS).min(1.0);
            self.per_second = Some(self.per_second.map_or(current, |rate| rate + (current - rate) * weight));
        }
        self.last = Some((finished, now));
    }

    fn per_second(&self) -> Option<f64> {
        self.per_second.filter(|rate| *rate > 0.05)
    }
}

fn spinner() -> ProgressStyle {
    ProgressStyle::default_spinner()
}

fn bar_style() -> ProgressStyle {
    ProgressStyle::with_template(BAR).unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> ")
}

/// A line of progress, or a remark, to standard error; one that cannot be written is not worth an error.
pub(super) fn say(line: &str) {
    let mut err = std::io::stderr().lock();
    let prefix = if std::io::stderr().is_terminal() { "" } else { "runherd: " };
    drop(writeln!(err, "{prefix}{line}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_follows_and_forgets() {
        let mut rate = Rate::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        rate.note(0, at(0));
        assert_eq!(rate.per_second(), None);
        rate.note(100, at(1));
        assert!((rate.per_second().unwrap() - 100.0).abs() < 1e-6);
        rate.note(100, at(1));
        rate.note(50, at(11));
        assert_eq!(rate.per_second(), None);
        rate.note(150, at(21));
        assert!((rate.per_second().unwrap() - 10.0).abs() < 1e-6);
    }

    #[test]
    fn the_styles_are_valid() {
        assert!(ProgressStyle::with_template(BAR).is_ok());
    }
}
