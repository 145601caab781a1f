//! The life of the one thread that talks AMQP: connect, serve, lose, wait, connect again.
//!
//! Promises that all that blocks happens on this thread, that a lost connection is replaced after a jittered pause that
//! grows while the broker stays away, and that whoever let go of the handle is obeyed during every pause. Does not know
//! what is done with a connection: that is a [`Duty`], to publish or to consume.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::{Duration, Instant};

use runherd_actors::runtime::backoff::{Backoff, worth_a_line};
use slog::{Logger, debug, info, o, warn};
use tokio::sync::watch;

use super::settings::BrokerSettings;
use super::socket::{Link, Loss, Watchdog};
use crate::telemetry::{field, millis};

/// What the broker is to us right now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BrokerState {
    /// Connected, and as far as is known able to work.
    Connected,
    /// Connected, and the broker takes no messages for now (an alarm). It says so only after the first one is sent.
    Blocked {
        /// The broker's own words.
        reason: String,
    },
    /// Not connected.
    Disconnected {
        /// Why.
        error: String,
        /// Since when.
        since: Instant,
        /// How long until the next attempt, counted from when this was reported.
        retry_in: Duration,
    },
    /// Closed by its owner. It will not come back.
    Closed,
}

impl BrokerState {
    pub(super) fn not_yet() -> Self {
        let error = "not connected yet".to_owned();
        Self::Disconnected { error, since: Instant::now(), retry_in: Duration::ZERO }
    }

    /// Why nothing can be published now, if so.
    #[must_use]
    pub fn obstacle(&self) -> Option<String> {
        match self {
            Self::Connected => None,
            Self::Blocked { reason } => Some(format!("the broker takes no messages: {reason}")),
            Self::Disconnected { error, .. } => Some(error.clone()),
            Self::Closed => Some("the broker's adapter is closed".to_owned()),
        }
    }
}

/// How serving one connection ended.
pub(super) enum End {
    /// The owner let go.
    Released,
    /// The broker works, but this connection cannot be used further: the next one is opened at once.
    UsedUp { loss: Loss },
    /// The connection is lost. `healthy` if it had worked: then the next pause is short again.
    Lost { loss: Loss, healthy: bool },
}

/// What is done with connections.
pub(super) trait Duty: Send + 'static {
    /// How many messages it hands over at once, at most.
    fn pending(&self) -> usize;
    /// Serves one connection until it is lost or the owner lets go.
    fn serve(&mut self, link: Link, life: &Life) -> End;
    /// Answers the owner until `until`, while there is no connection. False if the owner let go.
    fn pause(&mut self, until: Instant, why: &str) -> bool;
}

/// What the thread and its duty share.
pub(super) struct Life {
    pub(super) settings: BrokerSettings,
    pub(super) log: Logger,
    state: watch::Sender<BrokerState>,
}

impl Life {
    pub(super) fn report(&self, state: BrokerState) {
        self.state.send_if_modified(|old| {
            let changed = *old != state;
            *old = state;
            changed
        });
    }

    fn is_connected(&self) -> bool {
        matches!(*self.state.borrow(), BrokerState::Connected | BrokerState::Blocked { .. })
    }

    fn tell_no_connection(&self, error: &str, pause: Duration, in_row: u32) {
        let log = self.log.new(o!(field::ERROR => error.to_owned(), field::IN_ROW => in_row,
            field::RETRY_IN_MS => millis(pause)));
        if worth_a_line(in_row) {
            warn!(log, "no connection to the broker");
        } else {
            debug!(log, "no connection to the broker");
        }
    }
}

/// Starts the thread, and returns at once.
pub(super) fn start(
    settings: BrokerSettings,
    name: &str,
    log: &Logger,
    duty: impl Duty,
) -> watch::Receiver<BrokerState> {
    let (state, watched) = watch::channel(BrokerState::not_yet());
    let log = log.new(o!(field::BROKER => settings.url.to_string(), field::LINK => name.to_owned()));
    let life = Life { settings, log: log.clone(), state };
    let thread_name = format!("amqp-{name}");
    let spawned = thread::Builder::new().name(thread_name.clone()).spawn(move || match Watchdog::start(&thread_name) {
        Ok(watchdog) => {
            live(duty, &life, &watchdog);
            watchdog.dismiss();
        }
        Err(error) => warn!(life.log, "cannot start the broker's watchdog thread"; field::ERROR => %error),
    });
    if let Err(error) = spawned {
        // The state's sender is gone with the thread: it stays "not connected yet", and every call says so.
        warn!(log, "cannot start the broker's thread"; field::ERROR => %error);
    }
    watched
}

fn live(mut duty: impl Duty, life: &Life, watchdog: &Watchdog) {
    let backoff = Backoff { min: life.settings.reconnect_min, max: life.settings.reconnect_max };
    let mut failures = 0;
    // Counts on where only the attempt took long: the pause is short then, the news is not new.
    let mut in_row = 0;
    let mut since = None;
    loop {
        let started = Instant::now();
        // A panic in amiquip must not leave the coordinator without a publisher.
        let attempt = catch_unwind(AssertUnwindSafe(|| attempt(&mut duty, life, watchdog)));
        let end = attempt.unwrap_or_else(|_| End::Lost { loss: Loss::Socket("a panic".to_owned()), healthy: false });
        let (loss, healthy) = match end {
            End::Released => break,
            End::UsedUp { loss } => {
                info!(life.log, "opening a new connection"; field::REASON => %loss);
                continue;
            }
            End::Lost { loss, healthy } => (loss, healthy),
        };
        if healthy || started.elapsed() > life.settings.reconnect_max {
            failures = 0;
            since = None;
        }
        if healthy || (life.is_connected() && started.elapsed() > life.settings.reconnect_max) {
            in_row = 0;
        }
        let pause = backoff.delay(failures);
        failures += 1;
        in_row += 1;
        let error = loss.to_string();
        life.tell_no_connection(&error, pause, in_row);
        let since = *since.get_or_insert_with(Instant::now);
        life.report(BrokerState::Disconnected { error: error.clone(), since, retry_in: pause });
        if !duty.pause(Instant::now() + pause, &error) {
            break;
        }
    }
    life.report(BrokerState::Closed);
    info!(life.log, "closed the connection to the broker");
}

fn attempt(duty: &mut impl Duty, life: &Life, watchdog: &Watchdog) -> End {
    match Link::open(&life.settings, duty.pending(), watchdog) {
        Ok(link) => duty.serve(link, life),
        Err(loss) => End::Lost { loss, healthy: false },
    }
}
