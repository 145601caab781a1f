//! What systemd is told: READY once the stages run, a status line, STOPPING when the drain begins, and that the coordinator lives.
//!
//! Everything is told upon a beat of the control thread, and nothing otherwise: a coordinator whose control thread stands still is
//! silent, and systemd's watchdog ends it. Without NOTIFY_SOCKET all this does nothing.

use std::time::{Duration, Instant};

use runherd_actors::runtime::RuntimeHandle;
use runherd_actors::runtime::status::{Phase, RuntimeStatus};
use sd_notify::NotifyState;
use slog::{Logger, warn};
use tokio::sync::watch;

use super::health::lacks;
use crate::telemetry::field;

/// The shortest watchdog that beats, one a second, can keep quiet.
const SHORTEST: Duration = Duration::from_secs(2);

/// Tells that the servers are waited for.
pub(super) fn starting(log: &Logger) {
    tell(&[NotifyState::Status("waiting for its servers")], log);
}

/// Tells how the run goes, from the next beat until it has ended.
pub(super) fn follow(handle: RuntimeHandle, log: Logger) -> impl Future<Output = ()> + Send {
    // Before the run begins: its first beat is that it has.
    let beats = handle.beats();
    follow_beats(handle, beats, log)
}

async fn follow_beats(handle: RuntimeHandle, mut beats: watch::Receiver<Instant>, log: Logger) {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return;
    }
    let mut told = Told { watchdog: sd_notify::watchdog_enabled(), ..Told::default() };
    if let Some(limit) = told.watchdog.filter(|limit| *limit < SHORTEST) {
        warn!(log, "systemd's watchdog is shorter than a coordinator's beats; set WatchdogSec to 2 s or more";
            "watchdog_ms" => u64::try_from(limit.as_millis()).unwrap_or(u64::MAX));
    }
    while beats.changed().await.is_ok() {
        let status = handle.status();
        told.all(&status, &log);
        if status.phase == Phase::Ended {
            return;
        }
    }
}

/// What was told so far.
#[derive(Default)]
struct Told {
    watchdog: Option<Duration>,
    pinged: Option<Instant>,
    ready: bool,
    stopping: bool,
    line: String,
}

impl Told {
    fn all(&mut self, status: &RuntimeStatus, log: &Logger) {
        let line = line(status);
        let mut news = Vec::new();
        if status.phase == Phase::Running && !self.ready {
            self.ready = true;
            news.push(NotifyState::Ready);
        }
        if matches!(status.phase, Phase::Draining | Phase::Ended) && !self.stopping {
            self.stopping = true;
            news.push(NotifyState::Stopping);
        }
        if self.is_due() {
            self.pinged = Some(Instant::now());
            news.push(NotifyState::Watchdog);
        }
        if line != self.line {
            news.push(NotifyState::Status(&line));
        }
        tell(&news, log);
        self.line = line;
    }

    /// A third of the limit, so that one ping may be lost.
    fn is_due(&self) -> bool {
        self.watchdog.is_some_and(|limit| self.pinged.is_none_or(|pinged| pinged.elapsed() >= limit / 3))
    }
}

/// One line for `systemctl status`; the same as long as all is well.
fn line(status: &RuntimeStatus) -> String {
    match status.phase {
        Phase::Draining => return "draining".to_owned(),
        Phase::Ended => return "ended".to_owned(),
        Phase::Created | Phase::Running => {}
    }
    let lacks = lacks(status);
    let line = match lacks.first() {
        None => format!("{} stages run, all well", status.stages.len()),
        Some(lack) => {
            let others = lacks.len() - 1;
            let others = if others == 0 { String::new() } else { format!(", and {others} more") };
            format!("not ready: {}: {}{others}", lack.what, lack.why)
        }
    };
    // A line break would begin another message.
    line.replace(char::is_control, " ")
}

fn tell(news: &[NotifyState<'_>], log: &Logger) {
    if news.is_empty() {
        return;
    }
    if let Err(error) = sd_notify::notify(news) {
        warn!(log, "systemd cannot be told"; field::ERROR => %error);
    }
}
