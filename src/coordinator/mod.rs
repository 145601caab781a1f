//! The composition root: adapters, stages, the start and the drain of one coordinator.
//!
//! ```no_run
//! # use runherd::{config::{Config, Sources}, coordinator::Coordinator, telemetry::Telemetry};
//! let config = Config::load(&Sources::default())?.config;
//! let telemetry = Telemetry::start(&config.log);
//! let ended = Coordinator::builder(config, telemetry.log.clone()).run()?;
//! std::process::exit(ended.exit_code().into());
//! # #[allow(unreachable_code)]
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod listener;
mod presence;
mod reporting;
mod stages;
mod start;

use std::sync::Arc;
use std::time::Duration;

use runherd_actors::runtime::stage::StageSpec;
use runherd_actors::runtime::{Registry, RegistryError, RunOutcome, Runtime, RuntimeHandle};
use slog::{Logger, info, o, warn};
use uuid::Uuid;

use crate::broker::{BrokerSettings, Publisher};
use crate::config::{Config, ConfigError};
use crate::process::{Signals, host_name};
use crate::router::{Router, RouterError};
use crate::store::{StoreError, presence as presence_store};
use crate::telemetry::field;

/// How long the end of the process waits for its threads.
const SHUTDOWN: Duration = Duration::from_secs(2);

/// A coordinator that is about to run.
pub struct Coordinator {
    config: Config,
    log: Logger,
    fail_fast: bool,
    custom: Vec<StageSpec>,
}

/// What everything in one coordinator shares.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) router: Arc<Router>,
    pub(crate) coordinator_id: Uuid,
    pub(crate) host: String,
    pub(crate) log: Logger,
}

/// Why a coordinator did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is incomplete.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The control database cannot be used, and waiting would not help (or was not wanted).
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The broker cannot be reached, and waiting was not wanted.
    #[error("the broker at {url} is not available: {reason}")]
    Broker {
        /// Its URL, without the password.
        url: String,
        /// Why.
        reason: String,
    },
    /// The stages do not fit together.
    #[error(transparent)]
    Stages(#[from] RegistryError),
    /// The process could not start its runtime.
    #[error("starting the runtime")]
    Runtime(#[from] std::io::Error),
    /// A signal came while the servers were waited for.
    #[error("stopped by a signal before it was ready")]
    Interrupted,
}

impl From<RouterError> for StartError {
    fn from(error: RouterError) -> Self {
        match error {
            RouterError::Config(error) => Self::Config(error),
            RouterError::Store(error) => Self::Store(error),
        }
    }
}

impl Coordinator {
    /// A coordinator with the built-in stages.
    #[must_use]
    pub fn builder(config: Config, log: Logger) -> Self {
        Self { config, log, fail_fast: false, custom: Vec::new() }
    }

    /// Adds a stage of one's own; it is supervised, logged and listed like the built-in ones.
    #[must_use]
    pub fn stage(mut self, spec: StageSpec) -> Self {
        self.custom.push(spec);
        self
    }

    /// Ends at once where a server cannot be reached at the start, instead of waiting for it.
    #[must_use]
    pub fn fail_fast(mut self, fail_fast: bool) -> Self {
        self.fail_fast = fail_fast;
        self
    }

    /// Runs until SIGTERM or SIGINT has drained it, or something escalates. Call it outside of any async runtime.
    ///
    /// # Errors
    /// It did not start; see [`StartError`].
    pub fn run(self) -> Result<RunOutcome, StartError> {
        let tokio = Arc::new(tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("runherd").build()?);
        let outcome = self.run_on(&tokio);
        // A wedged task would be waited for if the runtime were dropped.
        if let Some(tokio) = Arc::into_inner(tokio) {
            tokio.shutdown_timeout(SHUTDOWN);
        }
        outcome
    }

    fn run_on(self, tokio: &Arc<tokio::runtime::Runtime>) -> Result<RunOutcome, StartError> {
        let mut signals = tokio.block_on(async { Signals::new() })?;
        let started = tokio.block_on(async {
            tokio::select! {
                started = self.start() => started,
                () = signals.next() => Err(StartError::Interrupted),
            }
        })?;
        let Started { shared, runtime, publishers } = started;
        let handle = runtime.handle();
        let listener = tokio.spawn(listener::listen(Arc::clone(&shared), handle.clone()));
        let drain = tokio.spawn(drain_on_signals(signals, handle, shared.log.clone()));
        let outcome = runtime.run(Arc::clone(tokio));
        listener.abort();
        drain.abort();
        tokio.block_on(async {
            for publisher in &publishers {
                publisher.close().await;
            }
            let withdrawn = presence_store::withdraw(shared.router.control(), shared.coordinator_id);
            drop(tokio::time::timeout(SHUTDOWN, withdrawn).await);
        });
        log_outcome(&shared.log, &outcome);
        Ok(outcome)
    }

    /// Waits for the control database, then makes every adapter and stage.
    async fn start(self) -> Result<Started, StartError> {
        let coordinator_id = Uuid::new_v4();
        let log = self.log.new(o!(field::COORDINATOR_ID => coordinator_id.to_string()));
        let broker = BrokerSettings::from_config(&self.config)?;
        let router = Arc::new(start::router(&self.config, self.fail_fast, &log).await?);
        let placements = start::placements(&router, self.fail_fast, &log).await?;
        let shared = Arc::new(Shared { router, coordinator_id, host: host_name(), log, config: self.config });
        let (mut specs, publishers) = stages::built_in(&shared, &broker, &placements);
        start::check_broker(&publishers, &broker, self.fail_fast).await?;
        specs.extend(self.custom);
        let registry = Registry::new(specs)?;
        let settings = stages::runtime_settings(&shared.config);
        let runtime = Runtime::new(shared.log.clone(), settings, registry);
        info!(shared.log, "coordinator starts"; field::VERSION => env!("CARGO_PKG_VERSION"), field::HOST => &shared.host,
            field::PID => std::process::id(), field::PLACEMENTS => placements.len(), field::BROKER => broker.url.to_string());
        Ok(Started { shared, runtime, publishers })
    }
}

impl std::fmt::Debug for Coordinator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Coordinator").field("custom", &self.custom).finish_non_exhaustive()
    }
}

struct Started {
    shared: Arc<Shared>,
    runtime: Runtime,
    publishers: Vec<Publisher>,
}

/// The first signal drains; a second one leaves at once.
async fn drain_on_signals(mut signals: Signals, handle: RuntimeHandle, log: Logger) {
    signals.next().await;
    info!(log, "drain begins"; field::REASON => "signal");
    handle.drain();
    signals.next().await;
    warn!(log, "drain is cut short"; field::REASON => "second signal");
    handle.drain();
}

fn log_outcome(log: &Logger, outcome: &RunOutcome) {
    match outcome {
        RunOutcome::Drained => info!(log, "coordinator ended"; field::OUTCOME => "drained"),
        RunOutcome::Forced { unfinished } => {
            warn!(log, "coordinator ended"; field::OUTCOME => "forced", field::UNFINISHED => unfinished.join(" "));
        }
        RunOutcome::Escalated { stage, reason, history } => {
            slog::crit!(log, "coordinator ended"; field::OUTCOME => "escalated", field::STAGE => stage, field::REASON => reason,
                field::HISTORY => history.join(" | "));
        }
    }
}
