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

mod control;
mod custom;
mod health;
mod listener;
mod notify;
mod outside;
mod presence;
mod probe;
mod reporting;
mod stages;
mod start;

use std::sync::Arc;
use std::time::Duration;

use runherd_actors::runtime::stage::StageSpec;
use runherd_actors::runtime::{Registry, RegistryError, RunOutcome, Runtime, RuntimeHandle};
use slog::{Logger, info, o, warn};
use uuid::Uuid;

pub use self::custom::Services;
use self::outside::Outside;
use crate::broker::{BrokerSettings, Publisher};
use crate::config::{Config, ConfigError, EXIT_CONFIG};
use crate::process::{EXIT_FAILED, EXIT_OK, EXIT_UNAVAILABLE, Signals, host_name};
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
    custom: Vec<custom::MakeSpec>,
}

/// What everything in one coordinator shares.
pub(crate) struct Shared {
    pub(crate) config: Arc<Config>,
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
    /// A stage of one's own bears the name of a built-in one.
    #[error("stage {name:?}: a built-in stage has this name; choose another")]
    NameTaken {
        /// The name.
        name: String,
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

impl StartError {
    /// The process's exit code: 78 for a configuration or a set of stages that is refused, 69 for a server that is not
    /// available, 0 for a signal, 1 for the rest.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::NameTaken { .. } | Self::Stages(_) => EXIT_CONFIG,
            Self::Store(StoreError::Unavailable { .. } | StoreError::Schema { .. }) | Self::Broker { .. } => {
                EXIT_UNAVAILABLE
            }
            Self::Store(_) | Self::Runtime(_) => EXIT_FAILED,
            Self::Interrupted => EXIT_OK,
        }
    }
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
    pub fn stage(self, spec: StageSpec) -> Self {
        self.stage_with(|_| spec)
    }

    /// Adds a stage of one's own that works with the coordinator's databases: it is made once these are there.
    #[must_use]
    pub fn stage_with(mut self, make: impl FnOnce(&Services) -> StageSpec + Send + 'static) -> Self {
        self.custom.push(Box::new(make));
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
        let mut outside = tokio.block_on(Outside::open(&self.config, &self.log))?;
        let started = tokio.block_on(async {
            tokio::select! {
                started = self.start() => started,
                () = signals.next() => Err(StartError::Interrupted),
            }
        })?;
        let Started { shared, runtime, publishers } = started;
        let handle = runtime.handle();
        tokio.block_on(async { outside.begin(&handle, &shared.log) });
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
            outside.close(SHUTDOWN).await;
        });
        log_outcome(&shared.log, &outcome);
        Ok(outcome)
    }

    /// Waits for the control database, then makes every adapter and stage.
    async fn start(self) -> Result<Started, StartError> {
        let coordinator_id = Uuid::new_v4();
        let log = self.log.new(o!(field::COORDINATOR_ID => coordinator_id.to_string()));
        let broker = BrokerSettings::from_config(&self.config)?;
        if self.custom.is_empty() {
            // Known at once; with stages of one's own it is known when they are made.
            custom::check(&self.config, &[])?;
        }
        let router = Arc::new(start::router(&self.config, self.fail_fast, &log).await?);
        let placements = start::placements(&router, self.fail_fast, &log).await?;
        let config = Arc::new(self.config);
        let shared = Arc::new(Shared { router, coordinator_id, host: host_name(), log, config });
        let custom = custom::specs(&shared, self.custom)?;
        let (mut specs, publishers) = stages::built_in(&shared, &broker, &placements);
        specs.extend(custom);
        let registry = Registry::new(specs)?;
        start::check_broker(&publishers, &broker, self.fail_fast).await?;
        let settings = stages::runtime_settings(&shared.config);
        let runtime = Runtime::new(shared.log.clone(), settings, registry);
        info!(shared.log, "coordinator starts"; field::VERSION => env!("CARGO_PKG_VERSION"), field::HOST => &shared.host,
            field::PID => std::process::id(), field::PLACEMENTS => placements.len(), field::BROKER => broker.url.to_string());
        Ok(Started { shared, runtime, publishers })
    }
}

impl std::fmt::Debug for Coordinator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Coordinator").field("custom", &self.custom.len()).finish_non_exhaustive()
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
