//! What a session sets when it connects, so that nothing in it can hold others up for long.

use std::time::Duration;

use crate::config::{PoolConfig, SessionConfig};

/// Bounds of every session, and of the pool it belongs to.
#[derive(Clone, Copy, Debug)]
pub struct SessionSettings {
    /// The most connections.
    pub pool_size: usize,
    /// How long to wait for a free one.
    pub acquire_timeout: Duration,
    /// How long opening one may take.
    pub connect_timeout: Duration,
    /// PostgreSQL's `statement_timeout`.
    pub statement_timeout: Duration,
    /// PostgreSQL's `lock_timeout`.
    pub lock_timeout: Duration,
    /// PostgreSQL's `idle_in_transaction_session_timeout`.
    pub idle_in_transaction_session_timeout: Duration,
    /// How long sent data may stay unacknowledged.
    pub tcp_user_timeout: Duration,
    /// True for the coordinator's hot statements: nested loops over primary keys, whatever the statistics say.
    pub fixed_plans: bool,
}

impl SessionSettings {
    /// The settings that the configuration gives.
    #[must_use]
    pub fn new(pool: &PoolConfig, session: &SessionConfig, fixed_plans: bool) -> Self {
        Self {
            pool_size: pool.size as usize,
            acquire_timeout: pool.acquire_timeout,
            connect_timeout: pool.connect_timeout,
            statement_timeout: session.statement_timeout,
            lock_timeout: session.lock_timeout,
            idle_in_transaction_session_timeout: session.idle_in_transaction_session_timeout,
            tcp_user_timeout: session.tcp_user_timeout,
            fixed_plans,
        }
    }

    /// Puts the settings into a connection's start-up parameters, after those that the URL brings.
    pub(super) fn apply(&self, config: &mut tokio_postgres::Config, application_name: &str) {
        let mut options = config.get_options().unwrap_or_default().to_owned();
        let mut set = |name: &str, value: String| {
            options.push_str(&format!(" -c {name}={value}"));
        };
        set("statement_timeout", self.statement_timeout.as_millis().to_string());
        set("lock_timeout", self.lock_timeout.as_millis().to_string());
        set("idle_in_transaction_session_timeout", self.idle_in_transaction_session_timeout.as_millis().to_string());
        set("jit", "off".to_owned());
        if self.fixed_plans {
            for plan in ["enable_seqscan", "enable_hashjoin", "enable_mergejoin", "enable_bitmapscan"] {
                set(plan, "off".to_owned());
            }
        }
        config.options(options.trim_start());
        config.connect_timeout(self.connect_timeout);
        config.tcp_user_timeout(self.tcp_user_timeout);
        if config.get_application_name().is_none() {
            config.application_name(application_name);
        }
    }
}
