//! Logging: one root logger on standard error, and the names of all fields.
//!
//! It promises that a line carries the moment at which it was logged, that nobody waits for the log, that lost lines
//! are counted in the log itself, and that what was logged before the end is written before the process ends. Standard
//! output stays free for what commands print.
//!
//! **When standard error stalls** (a full pipe, a stuck collector), lines are dropped once 4096 of them wait, and their
//! number is reported in the next line that gets through. The other choice, to block, would stop stages, heartbeats and
//! renewals because of a reader of logs. What must not be lost is in the databases.

use std::error::Error;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::panic::UnwindSafe;
use std::sync::mpsc;
use std::time::{Duration, SystemTime};

use slog::{Drain, FnValue, LevelFilter, Logger, OwnedKVList, PushFnValue, Record, RecordStatic, o};
use slog_async::{Async, AsyncGuard, OverflowStrategy};
use slog_term::{FullFormat, PlainDecorator, TermDecorator};

use crate::config::{LogConfig, LogFormat, LogLevel};

/// Lines that may wait for standard error.
const WAITING_LINES: usize = 4096;
/// How long the end of the process waits for them.
const FLUSH_WITHIN: Duration = Duration::from_secs(2);

/// The names of log fields. A fact has one name in all of the log; whoever logs a new fact adds its name here.
///
/// A name that ends in `_ms` or `_us` holds a whole number of milliseconds or microseconds; `_bytes`, bytes; the other
/// numbers are counts. A child logger does not set a field again that its parent or a line of it sets: both would stand
/// in the line.
///
/// ```
/// use runherd::telemetry::field;
/// let log = slog::Logger::root(slog::Discard, slog::o!(field::STAGE => "finalizer"));
/// slog::info!(log, "run finished"; field::RUN_ID => "0190…", field::DURATION_MS => 12);
/// ```
pub mod field {
    /// When the line was logged: RFC 3339, UTC, milliseconds. JSON only; a terminal line begins with it.
    pub const TS: &str = "ts";
    /// `trace`, `debug`, `info`, `warning`, `error` or `critical`.
    pub const LEVEL: &str = "level";
    /// What happened. The text of one kind of event never varies: what varies is in fields.
    pub const MSG: &str = "msg";

    /// The coordinator's own id, on every line of it.
    pub const COORDINATOR_ID: &str = "coordinator_id";
    /// A stage, with its instance: `shard_dispatcher/1`.
    pub const STAGE: &str = "stage";
    /// An actor of the runtime.
    pub const ACTOR: &str = "actor";
    /// The number of a stage's cycle since the process started.
    pub const ITERATION: &str = "iteration";
    /// How something ended, in one word.
    pub const OUTCOME: &str = "outcome";
    /// Why something was done.
    pub const REASON: &str = "reason";
    /// An error and its causes, as [`error_chain`](super::error_chain) writes them.
    pub const ERROR: &str = "error";
    /// What keeps a stage from going on.
    pub const BLOCKED_BY: &str = "blocked_by";
    /// How often something was tried.
    pub const ATTEMPT: &str = "attempt";
    /// How long until it is tried again.
    pub const RETRY_IN_MS: &str = "retry_in_ms";

    /// A placement's name; `control` for the control database.
    pub const PLACEMENT: &str = "placement";
    /// A run.
    pub const RUN_ID: &str = "run_id";
    /// A shard of a run.
    pub const RUN_SHARD: &str = "run_shard";
    /// A chunk of a shard.
    pub const CHUNK_NO: &str = "chunk_no";
    /// A run's queue.
    pub const QUEUE: &str = "queue";
    /// A worker.
    pub const WORKER_ID: &str = "worker_id";
    /// A ledger event.
    pub const EVENT_ID: &str = "event_id";
    /// A ledger event's dedupe key, which is its message id.
    pub const DEDUPE_KEY: &str = "dedupe_key";

    /// How long one thing took: a cycle of a stage, where the line has [`STAGE`].
    pub const DURATION_MS: &str = "duration_ms";
    /// How long it took to find a shard's pool.
    pub const ROUTE_RESOLUTION_US: &str = "route_resolution_us";
    /// How long it took to get a connection from a pool.
    pub const POOL_ACQUISITION_US: &str = "pool_acquisition_us";

    /// Chunks that are seeded and not handed out.
    pub const DISPATCH_BACKLOG: &str = "dispatch_backlog";
    /// Runs that wait for the finalizer.
    pub const FINALIZATION_BACKLOG: &str = "finalization_backlog";
    /// For how long the oldest of them has waited.
    pub const FINALIZATION_LAG_MS: &str = "finalization_lag_ms";
    /// Rows of one database's delivery queue, parked ones among them.
    pub const OUTBOX_BACKLOG: &str = "outbox_backlog";
    /// Parked rows of one database's delivery queue.
    pub const OUTBOX_PARKED: &str = "outbox_parked";
    /// For how long the oldest due delivery of one database has waited.
    pub const OUTBOX_LAG_MS: &str = "outbox_lag_ms";

    /// Messages that wait in an actor's mailbox.
    pub const MAILBOX_DEPTH: &str = "mailbox_depth";
    /// Messages that an actor has handled.
    pub const MAILBOX_HANDLED: &str = "mailbox_handled";
    /// Messages that a full mailbox refused.
    pub const MAILBOX_REJECTED: &str = "mailbox_rejected";
    /// Messages that were lost with an actor that ended.
    pub const MAILBOX_DEAD_LETTERS: &str = "mailbox_dead_letters";
    /// How long messages waited in the mailbox: the 99th percentile.
    pub const MAILBOX_WAIT_P99_US: &str = "mailbox_wait_p99_us";
    /// How long messages took to handle: the 99th percentile.
    pub const MAILBOX_HANDLING_P99_US: &str = "mailbox_handling_p99_us";
}

/// The root logger and what writes its lines. Keep it in `main` to the end: dropping it writes what waits, for two
/// seconds at most.
///
/// `std::process::exit` drops nothing: drop this first.
pub struct Telemetry {
    /// The root logger. Lines that are logged after the drop of `Telemetry` are lost.
    pub log: Logger,
    guard: Option<AsyncGuard>,
    flush_within: Duration,
}

impl Telemetry {
    /// Starts logging to standard error.
    #[must_use]
    pub fn start(config: &LogConfig) -> Self {
        let stderr = io::stderr();
        let on_terminal = stderr.is_terminal();
        if is_json(config.format, on_terminal) {
            // A line is one write, however many pieces it is made of.
            Self::json(config.level, BufWriter::new(stderr))
        } else if on_terminal {
            Self::terminal(config.level, TermDecorator::new().stderr().build())
        } else {
            Self::terminal(config.level, PlainDecorator::new(stderr))
        }
    }

    /// Logs nothing: for tests and embedders that do not care.
    #[must_use]
    pub fn discard() -> Self {
        Self { log: Logger::root(slog::Discard, o!()), guard: None, flush_within: FLUSH_WITHIN }
    }

    fn json<W: Write + Send + 'static>(level: LogLevel, writer: W) -> Self {
        // The last one is written first.
        let keys = o!(
            field::MSG => PushFnValue(|record: &Record<'_>, serializer| serializer.emit(record.msg())),
            field::LEVEL => FnValue(|record: &Record<'_>| level_name(record.level())),
            field::TS => FnValue(logged_at),
        );
        let drain = slog_json::Json::new(writer).set_flush(true).add_key_value(keys).build();
        let (queue, guard) = queue(drain);
        Self::root(level, Stamped(queue), guard)
    }

    fn terminal<D: slog_term::Decorator + Send + 'static>(level: LogLevel, decorator: D) -> Self {
        let write_now = |io: &mut dyn Write| write!(io, "{}", now());
        let drain = FullFormat::new(decorator).use_custom_timestamp(write_now).use_original_order().build();
        let (queue, guard) = queue(drain);
        Self::root(level, queue, guard)
    }

    fn root<D>(level: LogLevel, drain: D, guard: AsyncGuard) -> Self
    where
        D: slog::SendSyncRefUnwindSafeDrain + UnwindSafe + 'static,
    {
        // What cannot be queued was counted; what cannot be written has nowhere else to go.
        let drain = LevelFilter::new(drain, severity(level)).ignore_res();
        Self { log: Logger::root(drain, o!()), guard: Some(guard), flush_within: FLUSH_WITHIN }
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        let Some(guard) = self.guard.take() else { return };
        // The guard waits for the writing thread, and that may be stuck in a write for ever.
        let (done, written) = mpsc::channel();
        let flushing = std::thread::Builder::new().name("log-flush".to_owned()).spawn(move || {
            drop(guard);
            // Nobody may be waiting any more.
            let _ = done.send(());
        });
        if flushing.is_ok() {
            // A timeout means that lines are lost, and there is nowhere to say so.
            let _ = written.recv_timeout(self.flush_within);
        }
    }
}

fn is_json(format: LogFormat, on_terminal: bool) -> bool {
    match format {
        LogFormat::Json => true,
        LogFormat::Terminal => false,
        LogFormat::Auto => !on_terminal,
    }
}

fn queue<D>(drain: D) -> (Async, AsyncGuard)
where
    D: Drain + Send + 'static,
{
    Async::new(drain.ignore_res())
        .chan_size(WAITING_LINES)
        .overflow_strategy(OverflowStrategy::DropAndReport)
        .thread_name("log".to_owned())
        .build_with_guard()
}

/// What the tag of a record with a time begins with.
const LOGGED_AT: &str = "logged at ";

/// Gives each line its time before it is queued: the writing thread may come to it much later. The time travels in the
/// record's tag, which nothing else here uses.
struct Stamped<D>(D);

impl<D: Drain> Drain for Stamped<D> {
    type Ok = D::Ok;
    type Err = D::Err;

    fn log(&self, record: &Record<'_>, values: &OwnedKVList) -> Result<D::Ok, D::Err> {
        let tag = format!("{LOGGED_AT}{}", now());
        let origin = RecordStatic { location: record.location(), tag: &tag, level: record.level() };
        self.0.log(&Record::new(&origin, record.msg(), record.kv()), values)
    }
}

/// The time that [`Stamped`] gave; now, for the queue's own line about what it dropped.
fn logged_at(record: &Record<'_>) -> String {
    record.tag().strip_prefix(LOGGED_AT).map_or_else(now, str::to_owned)
}

fn now() -> String {
    humantime::format_rfc3339_millis(SystemTime::now()).to_string()
}

fn severity(level: LogLevel) -> slog::Level {
    match level {
        LogLevel::Trace => slog::Level::Trace,
        LogLevel::Debug => slog::Level::Debug,
        LogLevel::Info => slog::Level::Info,
        LogLevel::Warning => slog::Level::Warning,
        LogLevel::Error => slog::Level::Error,
    }
}

fn level_name(level: slog::Level) -> &'static str {
    match level {
        slog::Level::Critical => "critical",
        slog::Level::Error => "error",
        slog::Level::Warning => "warning",
        slog::Level::Info => "info",
        slog::Level::Debug => "debug",
        slog::Level::Trace => "trace",
    }
}

/// The error and its causes in one line: `cannot claim cursors: connection lost: broken pipe`.
///
/// A cause that its effect already quotes at its end is not said twice.
#[must_use]
pub fn error_chain(error: &dyn Error) -> String {
    let mut chain = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !chain.ends_with(&text) {
            chain.push_str(": ");
            chain.push_str(&text);
        }
        cause = error.source();
    }
    chain
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use slog::{debug, info, warn};

    use super::*;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Shared {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_json_line_is_one_object_with_its_time_level_and_fields() {
        let out = Shared::default();
        let telemetry = Telemetry::json(LogLevel::Info, out.clone());
        let log = telemetry.log.new(o!(field::STAGE => "finalizer"));
        warn!(log, "run {}", "finished\nhere"; field::DURATION_MS => 12, field::RUN_ID => "r");
        drop(telemetry);
        let text = out.text();
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.starts_with("{\"ts\":\"") && text.contains("Z\",\"level\":\"warning\",\"msg\":\""), "{text}");
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["level"], "warning");
        assert_eq!(line["msg"], "run finished\nhere");
        assert_eq!(line["stage"], "finalizer");
        assert_eq!(line["duration_ms"], 12);
        assert_eq!(line["run_id"], "r");
        let ts = line["ts"].as_str().unwrap();
        assert_eq!(ts.len(), "2026-01-01T00:00:00.000Z".len(), "{ts}");
        let logged = humantime::parse_rfc3339(ts).unwrap();
        assert!(SystemTime::now().duration_since(logged).unwrap() < Duration::from_secs(60));
    }

    #[test]
    fn dropping_it_writes_all_that_was_logged() {
        let out = Shared::default();
        let telemetry = Telemetry::json(LogLevel::Info, out.clone());
        for n in 0..1000 {
            info!(telemetry.log, "line"; "n" => n);
        }
        drop(telemetry);
        assert_eq!(out.text().lines().count(), 1000);
    }

    #[test]
    fn lines_below_the_level_are_not_written() {
        let out = Shared::default();
        let telemetry = Telemetry::json(LogLevel::Warning, out.clone());
        debug!(telemetry.log, "no");
        info!(telemetry.log, "no");
        warn!(telemetry.log, "yes");
        drop(telemetry);
        assert_eq!(out.text().lines().count(), 1);
    }

    #[test]
    fn a_terminal_line_is_plain_where_there_is_no_terminal() {
        let out = Shared::default();
        let telemetry = Telemetry::terminal(LogLevel::Info, PlainDecorator::new(out.clone()));
        info!(telemetry.log, "run finished"; field::RUN_ID => "r", field::DURATION_MS => 12);
        drop(telemetry);
        let text = out.text();
        assert!(text.contains("INFO run finished, run_id: r, duration_ms: 12"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }

    /// Blocks in its first write until the test lets go.
    struct Stuck(mpsc::Receiver<()>, Shared);

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // An error says that the other end is gone: go on.
            let _ = self.0.recv();
            self.1.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_stuck_reader_stops_nobody_and_what_was_dropped_is_counted() {
        let (release, stuck) = mpsc::channel();
        let out = Shared::default();
        let telemetry = Telemetry::json(LogLevel::Info, Stuck(stuck, out.clone()));
        for n in 0..WAITING_LINES + 1000 {
            info!(telemetry.log, "line"; "n" => n);
        }
        drop(release);
        // The count goes out with the first line that finds room again.
        while !out.text().contains("dropped") {
            info!(telemetry.log, "room again");
            std::thread::yield_now();
        }
        drop(telemetry);
        for line in out.text().lines() {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            assert!(humantime::parse_rfc3339(line["ts"].as_str().unwrap()).is_ok(), "{line}");
        }
        assert!(out.text().lines().count() >= WAITING_LINES);
    }

    #[test]
    fn a_stuck_reader_does_not_keep_the_process_from_ending() {
        let (release, stuck) = mpsc::channel();
        let mut telemetry = Telemetry::json(LogLevel::Info, Stuck(stuck, Shared::default()));
        telemetry.flush_within = Duration::from_millis(1);
        info!(telemetry.log, "line");
        drop(telemetry);
        drop(release);
    }

    #[test]
    fn the_format_follows_the_terminal_when_it_is_auto() {
        assert!(is_json(LogFormat::Auto, false));
        assert!(!is_json(LogFormat::Auto, true));
        assert!(is_json(LogFormat::Json, true));
        assert!(!is_json(LogFormat::Terminal, false));
    }

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Layer(&'static str, #[source] Option<Box<Layer>>);

    #[test]
    fn a_chain_is_one_line_and_says_nothing_twice() {
        let inner = Layer("broken pipe", None);
        let middle = Layer("connection lost", Some(Box::new(inner)));
        assert_eq!(
            error_chain(&Layer("cannot claim", Some(Box::new(middle)))),
            "cannot claim: connection lost: broken pipe"
        );
        let quoting = Layer("cannot claim: timeout", Some(Box::new(Layer("timeout", None))));
        assert_eq!(error_chain(&quoting), "cannot claim: timeout");
    }
}
