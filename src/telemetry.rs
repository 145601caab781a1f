//! Logging: one root logger on standard error, and the names of all fields.
//!
//! It promises that a line carries the moment at which it was logged, that nobody waits for the log, that lost lines
//! are counted in the log itself, and that what was logged before the end is written before the process ends. Standard
//! output stays free for what commands print.
//!
//! **When standard error stalls** (a full pipe, a stuck collector), lines are dropped once 4096 of them wait, and their
//! number is reported in the next line that gets through. The other choice, to block, would stop stages, heartbeats and
//! renewals because of a reader of logs. What must not be lost is in the databases.

pub mod field;

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

/// A field that stands in a line only if there is a value.
pub struct Maybe<T>(
    /// Its name.
    pub &'static str,
    /// Its value.
    pub Option<T>,
);

impl<T: slog::Value> slog::KV for Maybe<T> {
    fn serialize(&self, record: &Record<'_>, serializer: &mut dyn slog::Serializer) -> slog::Result {
        self.1.as_ref().map_or(Ok(()), |value| value.serialize(record, self.0, serializer))
    }
}

/// A duration as a field's value, in whole milliseconds.
#[must_use]
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
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
