//! What is told, and how often.

use std::fmt::{Arguments, Write as _};
use std::sync::Mutex;

use slog::{Drain, KV, Key, Level, Never, OwnedKVList, Record, Serializer};

use super::super::watchdog::{Heartbeat, Watchdog};
use super::*;

/// Keeps each record as one line: level, message, and `key=value` for each key.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Serializer for Line {
    fn emit_arguments(&mut self, key: Key, value: &Arguments<'_>) -> slog::Result {
        write!(self.0, " {key}={value}").map_err(Into::into)
    }
}

impl Drain for Lines {
    type Ok = ();
    type Err = Never;

    fn log(&self, record: &Record<'_>, values: &OwnedKVList) -> Result<(), Never> {
        let mut line = Line(format!("{} {}", record.level().as_short_str(), record.msg()));
        record.kv().serialize(record, &mut line).unwrap();
        values.serialize(record, &mut line).unwrap();
        self.0.lock().unwrap().push(line.0);
        Ok(())
    }
}

impl Lines {
    fn logger(&self) -> Logger {
        Logger::root(self.clone().fuse(), o!())
    }

    fn starting(&self, with: &str) -> Vec<String> {
        self.0.lock().unwrap().iter().filter(|line| line.starts_with(with)).cloned().collect()
    }
}

fn logged<F>(settings: RuntimeSettings, specs: Vec<StageSpec>, test: impl FnOnce(RuntimeHandle) -> F) -> Lines
where
    F: Future<Output = ()> + Send + 'static,
{
    let lines = Lines::default();
    run_with(paused(), lines.logger(), settings, specs, test);
    lines
}

#[test]
fn a_cycle_that_did_something_is_told_and_an_empty_one_whispered() {
    let mut report = CycleReport { blocked_by: vec!["placement p1 is down".to_owned()], ..CycleReport::default() };
    report.count("chunks", 7);
    let script = Script::new([Answer::Report(report.clone()), Answer::Report(report), Answer::ok()]);
    let journal = script.journal().clone();
    let lines = logged(settings(), vec![script.spec("stage")], |_| async move {
        journal.until("stage", Happened::Ended, 4).await;
    });
    let told = lines.starting("INFO stage cycle");
    assert_eq!(told.len(), 2);
    for part in ["chunks=7", "stage=stage", "duration_ms=0", "iteration=1", "reason=cycle"] {
        assert!(told[0].contains(part), "{part}: {told:?}");
    }
    assert!(lines.starting("DEBG stage cycle").len() >= 2);
    assert!(told[0].contains("blocked_by=placement p1 is down"), "{told:?}");
    let blocked = lines.starting("WARN stage blocked");
    assert_eq!(blocked.len(), 2, "told at each doubling: {blocked:?}");
    assert!(blocked[1].contains("times=2") && blocked[1].contains("stage=stage"), "{blocked:?}");
    assert_eq!(lines.starting("INFO stage unblocked").len(), 1);
}

#[test]
fn a_row_of_transient_errors_is_told_at_each_doubling() {
    let script = Script::new(vec![Answer::Transient("database down"); 100]);
    let journal = script.journal().clone();
    let lines = logged(settings(), vec![script.spec("stage")], |_| async move {
        journal.until("stage", Happened::Ended, 102).await;
    });
    let told = lines.starting("WARN stage backs off");
    assert_eq!(told.len(), 7, "1, 2, 4, … 64");
    assert!(told[0].contains("error=doing what the script says: database down"), "{told:?}");
    assert!(lines.starting("INFO stage recovered")[0].contains("transient_errors=100"));
}

#[test]
fn an_escalation_ends_with_a_line_that_tells_all() {
    let script = Script::default().then_always(Answer::Panic("boom"));
    let journal = script.journal().clone();
    let settings = RuntimeSettings { child_intensity: Intensity { count: 2, window: LIMIT }, ..settings() };
    let lines = logged(settings, vec![script.spec("ill")], |_| async move {
        journal.until("ill", Happened::Dropped, 3).await;
    });
    let last = lines.0.lock().unwrap().last().cloned().unwrap();
    assert!(last.starts_with("CRIT run ended"), "{last}");
    for part in ["outcome=escalated", "stage=ill", "reason=panicked: in its cycle: boom", "history=0.000s panicked"] {
        assert!(last.contains(part), "{part}: {last}");
    }
    assert_eq!(lines.starting("WARN stage died").len(), 2);
    assert_eq!(lines.starting("INFO stage restarted").len(), 2);
}

#[test]
fn each_mailbox_is_told_at_intervals() {
    let script = Script::default();
    let lines = logged(settings(), vec![script.spec("stage")], |_| async move {
        tokio::time::sleep(Duration::from_secs(61)).await;
    });
    let told = lines.starting("INFO mailbox");
    let actors: Vec<bool> =
        ["overseer", "stage", "scheduler"].iter().map(|name| told.iter().any(|line| line.contains(name))).collect();
    assert_eq!((told.len(), actors), (3, vec![true; 3]), "{told:?}");
    for part in ["depth=", "wait_p99_us=", "handling_max_us=", "handled=", "rejected=0", "dead_letters=0"] {
        assert!(told[0].contains(part), "{part}: {told:?}");
    }
}

#[test]
fn the_runtime_is_told_at_intervals_and_at_the_end() {
    let full = CycleReport { more: true, ..CycleReport::default() };
    let script = Script::new([Answer::Report(full.clone()), Answer::Report(full), Answer::Panic("boom")]);
    let lines = logged(settings(), vec![script.spec("stage")], |_| async move {
        tokio::time::sleep(Duration::from_secs(61)).await;
    });
    let told = lines.starting("INFO runtime");
    assert_eq!(told.len(), 2, "{told:?}");
    for part in ["interval_ms=60000", "stage_cycles_full=2", "stage_cycles_failed=1", "deaths=1", "restarts=1"] {
        assert!(told[0].contains(&format!(" {part} ")) || told[0].ends_with(part), "{part}: {told:?}");
    }
    for part in ["stage_cycles_full=0", "deaths=0", "restarts=0"] {
        assert!(told[1].contains(part), "{part}: {told:?}");
    }
}

#[test]
fn a_stalled_control_thread_is_told() {
    let (sender, told) = std::sync::mpsc::channel();
    struct Tell(std::sync::mpsc::Sender<Level>);
    impl Drain for Tell {
        type Ok = ();
        type Err = Never;
        fn log(&self, record: &Record<'_>, _: &OwnedKVList) -> Result<(), Never> {
            let _ = self.0.send(record.level());
            Ok(())
        }
    }
    let heartbeat = Heartbeat::default();
    let log = Logger::root(Mutex::new(Tell(sender)).fuse(), o!());
    let watchdog = Watchdog::start(log, heartbeat.clone(), Duration::from_millis(5));
    assert!(watchdog.is_some());
    assert_eq!(told.recv(), Ok(Level::Error));
    while told.try_recv() != Ok(Level::Info) {
        heartbeat.beat();
        std::thread::yield_now();
    }
}

/// Holds up whoever logs a mailbox, which is the control thread, from when it says so until it is let go.
struct Holdup {
    held: tokio::sync::mpsc::UnboundedSender<()>,
    go: Mutex<std::sync::mpsc::Receiver<()>>,
}

impl Drain for Holdup {
    type Ok = ();
    type Err = Never;
    fn log(&self, record: &Record<'_>, _: &OwnedKVList) -> Result<(), Never> {
        if record.msg().to_string() == "mailbox" {
            let _ = self.held.send(());
            // It answers at once when nobody holds the other end any more.
            let _ = self.go.lock().unwrap().recv();
        }
        Ok(())
    }
}

#[test]
fn a_control_thread_that_stands_still_does_not_beat() {
    let (held, mut is_held) = tokio::sync::mpsc::unbounded_channel();
    let (go, gone) = std::sync::mpsc::channel();
    let log = Logger::root(Holdup { held, go: Mutex::new(gone) }.fuse(), o!());
    let tokio = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let settings = RuntimeSettings { report_interval: Duration::from_millis(10), ..settings() };
    run_with(tokio, log, settings, vec![Script::default().spec("stage")], |handle| async move {
        let mut beats = handle.beats();
        is_held.recv().await.unwrap();
        beats.mark_unchanged();
        // Longer than from one beat to the next.
        while handle.silent_for() < Duration::from_millis(1_500) {
            assert!(!beats.has_changed().unwrap());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        drop(go);
        beats.changed().await.unwrap();
        assert!(handle.silent_for() < Duration::from_millis(1_500));
    });
}

#[test]
fn a_stage_that_was_given_up_is_told_as_an_error_and_then_at_intervals() {
    let script = Script::default().then_always(Answer::Fatal("corrupt"));
    let other = Script::default();
    let journal = other.journal().clone();
    let child_intensity = Intensity { count: 1, window: Duration::from_secs(300) };
    let settings = RuntimeSettings { child_intensity, report_interval: Duration::from_secs(30), ..settings() };
    let lines = logged(settings, vec![script.spec("ill").inessential(), other.spec("other")], |_| async move {
        journal.until("other", Happened::Ended, 100).await;
    });
    let told = lines.starting("ERRO stage is given up");
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("stage=ill") && told[0].contains("corrupt"), "{told:?}");
    assert_eq!(lines.starting("WARN stage stays down").len(), 3);
}
