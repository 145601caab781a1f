//! The configuration: typed, complete, and either valid as a whole or refused with every reason.
//!
//! Defaults < file < environment (`RUNHERD__SECTION__KEY`) < command line. Each value keeps its [`Origin`]; passwords
//! are never printed. Nothing here connects to anything: a valid configuration may still name a database that is down.
//!
//! The sections are declared in `sections.rs`, once each: a declaration gives the struct, the defaults, the ranges and
//! the reference file `deploy/config/full.toml`. Stages that are not built in have sections of their own, `[stages.<name>]`,
//! which are kept as they are (`stages.rs`). [`Config::load`] takes [`Sources`] and gives [`Loaded`], or a
//! [`ConfigError`] with all that is wrong.

mod checks;
pub(crate) mod keys;
mod load;
mod problem;
mod reference;
mod secret;
mod sections;
mod stages;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use self::load::{Loaded, Setting, Sources};
pub use self::problem::{ConfigError, EXIT_CONFIG, Fault, Origin, Problem};
pub use self::reference::reference;
pub use self::secret::{SecretUrl, redact};
pub use self::sections::{
    BrokerConfig, CreationRecoveryConfig, CycleConfig, DatabaseConfig, FinalizerConfig, LeaseRecoveryConfig, LogConfig,
    LogFormat, LogLevel, OutboxPublisherConfig, PoolConfig, QueueType, RuntimeConfig, SessionConfig,
    ShardDispatcherConfig, SubmissionConfig,
};
pub use self::stages::StageSections;
use crate::policy::Policy;

/// The name of the control database among the placements.
pub const CONTROL: &str = "control";

/// Everything that can be set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The control database.
    pub control: DatabaseConfig,
    /// The other placements, by name. Each has its URL.
    pub placements: BTreeMap<String, DatabaseConfig>,
    /// The broker.
    pub broker: BrokerConfig,
    /// Connection pools.
    pub pool: PoolConfig,
    /// Database sessions.
    pub session: SessionConfig,
    /// The cycle.
    pub cycle: CycleConfig,
    /// The stage creation_recovery.
    pub creation_recovery: CreationRecoveryConfig,
    /// The stage lease_recovery.
    pub lease_recovery: LeaseRecoveryConfig,
    /// The stage shard_dispatcher.
    pub shard_dispatcher: ShardDispatcherConfig,
    /// The stage finalizer.
    pub finalizer: FinalizerConfig,
    /// The pool of publishers.
    pub outbox_publisher: OutboxPublisherConfig,
    /// Submission.
    pub submission: SubmissionConfig,
    /// The supervised runtime.
    pub runtime: RuntimeConfig,
    /// The log.
    pub log: LogConfig,
    /// Defaults for runs that do not state their own.
    pub policy: Policy,
    /// Stages that are not built in. Serde passes them by: only [`Config::load`] fills them.
    #[serde(skip_serializing, deserialize_with = "stages::elsewhere")]
    pub stages: StageSections,
}

impl Config {
    /// The control database's URL as it was written, without what is in its password file; to connect, use
    /// [`control_connection`](Self::control_connection).
    ///
    /// # Errors
    /// It is not set; the error says how to set it.
    pub fn control_url(&self) -> Result<&SecretUrl, ConfigError> {
        set("control.url", self.control.url.as_ref())
    }

    /// How to connect to the control database, with the password from its file.
    ///
    /// # Errors
    /// It is not set, or its password file cannot be read.
    pub fn control_connection(&self) -> Result<tokio_postgres::Config, ConfigError> {
        self.control.connection(CONTROL)
    }

    /// How to connect to the placement `name`, which may be `control`.
    ///
    /// # Errors
    /// It is not configured, or its password file cannot be read.
    pub fn placement_connection(&self, name: &str) -> Result<tokio_postgres::Config, ConfigError> {
        if name == CONTROL {
            return self.control_connection();
        }
        let section = format!("placements.{name}");
        let placement = set(&format!("{section}.url"), self.placements.get(name))?;
        placement.connection(&section)
    }

    /// How to connect to every database: the control database first, then the other placements by name.
    ///
    /// # Errors
    /// The control database is not set, or a password file cannot be read.
    pub fn databases(&self) -> Result<Vec<(String, tokio_postgres::Config)>, ConfigError> {
        std::iter::once(CONTROL)
            .chain(self.placements.keys().map(String::as_str))
            .map(|name| Ok((name.to_owned(), self.placement_connection(name)?)))
            .collect()
    }

    /// The section `[stages.<stage>]`, read into a type of the stage's own. The runtime's keys `period` and `deadline` are
    /// not in it; a section that nobody wrote is empty. Texts from variables and flags become what the type asks for.
    ///
    /// # Errors
    /// The type refuses something; the error names the place and the key.
    pub fn stage_settings<T: serde::de::DeserializeOwned>(&self, stage: &str) -> Result<T, ConfigError> {
        self.stages.read(stage)
    }

    /// The broker's URL, with the password from its file.
    ///
    /// # Errors
    /// It is not set, cannot be parsed, or its password file cannot be read.
    pub fn broker_url(&self) -> Result<SecretUrl, ConfigError> {
        let url = set("broker.url", self.broker.url.as_ref())?;
        let Some(file) = &self.broker.password_file else { return Ok(url.clone()) };
        let bad = |why| bad_url("broker.url", url, why);
        let mut with_password = keys::amqp_url(url.expose()).map_err(bad)?;
        let password = read_password(file)?;
        with_password.set_password(Some(&password)).map_err(|()| bad("it can carry no password".to_owned()))?;
        Ok(SecretUrl::new(with_password))
    }
}

impl DatabaseConfig {
    fn connection(&self, section: &str) -> Result<tokio_postgres::Config, ConfigError> {
        let key = format!("{section}.url");
        let url = set(&key, self.url.as_ref())?;
        let mut connection = keys::postgres_url(url.expose()).map_err(|why| bad_url(&key, url, why))?;
        if let Some(file) = &self.password_file {
            connection.password(read_password(file)?);
        }
        Ok(connection)
    }
}

fn set<'a, T>(key: &str, value: Option<&'a T>) -> Result<&'a T, ConfigError> {
    value.ok_or_else(|| ConfigError::of(Fault::NotSet { key: key.to_owned() }))
}

fn bad_url(key: &str, url: &SecretUrl, why: String) -> ConfigError {
    ConfigError::of(Fault::BadUrl { key: key.to_owned(), url: url.to_string(), why })
}

/// The file's text without the line end that editors put there.
fn read_password(path: &std::path::Path) -> Result<String, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| ConfigError::of(Fault::Unreadable { path: path.to_owned(), why: error.to_string() }))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}
