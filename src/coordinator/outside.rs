//! What a coordinator shows to its machine: the control socket, the probe, and what systemd is told.
//!
//! Sockets are opened before anything else, so that a setting that cannot be is refused at once, and answer from then on.

use std::time::Duration;

use runherd_actors::runtime::RuntimeHandle;
use slog::Logger;
use tokio::task::{JoinHandle, JoinSet};

use super::health::Health;
use super::{control, notify, probe};
use crate::config::{Config, ConfigError};

/// All of it, while it is open. Dropping it closes the sockets.
pub(super) struct Outside {
    health: Health,
    servers: JoinSet<()>,
    notifying: Option<JoinHandle<()>>,
}

impl Outside {
    /// Opens what the configuration asks for.
    ///
    /// # Errors
    /// Something that it asks for cannot be.
    pub(super) async fn open(config: &Config, log: &Logger) -> Result<Self, ConfigError> {
        let socket = control::Socket::open(config, log).await?;
        let probe = probe::Probe::bind(config, log).await?;
        let health = Health::default();
        let mut servers = JoinSet::new();
        if let Some(socket) = socket {
            servers.spawn(socket.serve(health.clone(), log.clone()));
        }
        if let Some(probe) = probe {
            servers.spawn(probe.serve(health.clone(), log.clone()));
        }
        notify::starting(log);
        Ok(Self { health, servers, notifying: None })
    }

    /// The stages are about to run. Call it within a tokio runtime.
    pub(super) fn begin(&mut self, handle: &RuntimeHandle, log: &Logger) {
        self.health.begin(handle);
        self.notifying = Some(tokio::spawn(notify::follow(handle.clone(), log.clone())));
    }

    /// Closes everything, once systemd knows how the run ended.
    pub(super) async fn close(mut self, limit: Duration) {
        if let Some(notifying) = self.notifying.take() {
            drop(tokio::time::timeout(limit, notifying).await);
        }
        self.servers.shutdown().await;
    }
}
