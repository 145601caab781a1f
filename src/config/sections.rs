//! The sections, with their defaults and ranges. Each name is also a stage's, a folder's or a log value's name.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::keys::{Section, hours, mins, ms, secs, section};
use super::secret::SecretUrl;
use crate::policy::Policy;

section! {
    /// One PostgreSQL database.
    pub struct DatabaseConfig {
        /// Where it is: host, port, user and database. Several hosts (host1,host2) are tried in order.
        url: Option<SecretUrl> = None, Rule::PostgresUrl;
        /// A file that holds the password, read at each start, so that it need not stand in the URL.
        password_file: Option<PathBuf> = None, Rule::Path;
    }
}

section! {
    /// The RabbitMQ broker that carries events to workers.
    pub struct BrokerConfig {
        /// Where it is: host, port, user and vhost.
        url: Option<SecretUrl> = None, Rule::AmqpUrl;
        /// A file that holds the password, read at each start, so that it need not stand in the URL.
        password_file: Option<PathBuf> = None, Rule::Path;
        /// AMQP heartbeat, in whole seconds; a dead connection is noticed after twice this time.
        #[serde(with = "humantime_serde")]
        heartbeat: Duration = secs(10), span(secs(1)..=mins(1));
        /// How long opening a connection may take.
        #[serde(with = "humantime_serde")]
        connect_timeout: Duration = secs(10), span(ms(100)..=mins(5));
        /// How long to wait for the broker's confirms of a batch; what is unanswered then is sent again under the same
        /// id.
        #[serde(with = "humantime_serde")]
        confirm_deadline: Duration = secs(30), span(ms(100)..=mins(10));
        /// The first pause before connecting again; it doubles, jittered, from failure to failure.
        #[serde(with = "humantime_serde")]
        reconnect_delay_min: Duration = ms(200), span(ms(10)..=mins(1));
        /// The longest pause before connecting again.
        #[serde(with = "humantime_serde")]
        reconnect_delay_max: Duration = secs(10), span(ms(10)..=mins(10));
        /// The type of the queues that are declared; quorum queues survive the loss of a broker node.
        queue_type: QueueType = QueueType::Quorum, Rule::OneOf(QueueType::NAMES);
        /// The most run events that wait in the queue runherd.events; beyond it the oldest are dropped.
        events_max_length: u32 = 100_000, count(1..=100_000_000);
    }
}

section! {
    /// The connection pools, one for each database.
    pub struct PoolConfig {
        /// The most connections that this process opens to each database.
        size: u32 = 8, count(1..=200);
        /// How long a cycle waits for a free connection; after it the placement counts as slow and is skipped.
        #[serde(with = "humantime_serde")]
        acquire_timeout: Duration = secs(5), span(ms(10)..=mins(5));
        /// How long opening a connection may take.
        #[serde(with = "humantime_serde")]
        connect_timeout: Duration = secs(5), span(ms(10)..=mins(5));
    }
}

section! {
    /// What every database session sets, so that no statement, lock or dead peer can hold a stage up for long.
    pub struct SessionConfig {
        /// PostgreSQL's statement_timeout; below cycle.deadline, so that the server ends a statement before the cycle
        /// is aborted.
        #[serde(with = "humantime_serde")]
        statement_timeout: Duration = secs(20), span(ms(50)..=hours(1));
        /// PostgreSQL's lock_timeout; at most the statement timeout, or it would never be reached.
        #[serde(with = "humantime_serde")]
        lock_timeout: Duration = secs(5), span(ms(10)..=mins(10));
        /// PostgreSQL's idle_in_transaction_session_timeout; below the shortest lease, so that a stopped process loses
        /// its locks before its lease.
        #[serde(with = "humantime_serde")]
        idle_in_transaction_session_timeout: Duration = secs(15), span(ms(50)..=hours(1));
        /// How long sent data may stay unacknowledged before the connection counts as dead.
        #[serde(with = "humantime_serde")]
        tcp_user_timeout: Duration = secs(15), span(secs(1)..=mins(10));
    }
}

section! {
    /// The cycle: creation_recovery, lease_recovery, shard_dispatcher, finalizer, in this order.
    pub struct CycleConfig {
        /// How often a cycle begins when nothing asks for one sooner.
        #[serde(with = "humantime_serde")]
        interval: Duration = secs(1), span(ms(10)..=hours(1));
        /// By how much, in percent, each interval is shortened or lengthened at random, so that coordinators do not
        /// march in step.
        jitter_percent: u32 = 10, count(0..=50);
        /// How long one stage's cycle may take before it is aborted.
        #[serde(with = "humantime_serde")]
        deadline: Duration = secs(60), span(ms(100)..=hours(1));
        /// How long a stage may hold back the next one; after it the next begins, and the slow one finishes beside it.
        #[serde(with = "humantime_serde")]
        stage_budget: Duration = secs(10), span(ms(10)..=hours(1));
    }
}

section! {
    /// Finishes the creation of runs whose client stopped in the middle, or that were submitted with SQL alone.
    pub struct CreationRecoveryConfig {
        /// Runs claimed in one pass.
        batch: u32 = 10, count(1..=10_000);
        /// Seed parts written in one pass; a larger run goes on in the next.
        parts_per_pass: u32 = 200, count(1..=100_000);
        /// How long a claim lasts; it is renewed with each part.
        #[serde(with = "humantime_serde")]
        lease: Duration = secs(30), span(ms(200)..=hours(1));
        /// A run that was not sealed this long after its creation fails, and frees its idempotency key.
        #[serde(with = "humantime_serde")]
        abandon_after: Duration = hours(1), span(secs(1)..=days(30));
    }
}

section! {
    /// Takes chunks back from workers whose lease expired, and announces lost events again.
    pub struct LeaseRecoveryConfig {
        /// Expired leases recovered on each placement in one pass.
        batch: u32 = 1_000, count(1..=100_000);
        /// Rows of active chunks looked at on each placement in one pass.
        scan_rows: u32 = 50_000, count(1..=10_000_000);
        /// Recovered chunks are announced over this time, jittered, so that a crashed fleet's chunks do not return all
        /// at once.
        #[serde(with = "humantime_serde")]
        spread: Duration = secs(1), span(ms(0)..=mins(1));
    }
}

section! {
    /// Hands out chunks, one window of one shard at a time.
    pub struct ShardDispatcherConfig {
        /// Dispatchers in this process; each owns its own cursors.
        instances: u32 = 2, count(1..=64);
        /// Cursors that one dispatcher claims in one pass.
        cursors_per_pass: u32 = 32, count(1..=10_000);
        /// How long a claim of a cursor lasts.
        #[serde(with = "humantime_serde")]
        lease: Duration = secs(30), span(ms(200)..=hours(1));
        /// How long a cursor whose window is full waits before it is looked at again.
        #[serde(with = "humantime_serde")]
        full_delay: Duration = ms(250), span(ms(1)..=mins(1));
    }
}

section! {
    /// Finishes runs, and stops those that are to be cancelled or failed.
    pub struct FinalizerConfig {
        /// Runs claimed in one pass.
        batch: u32 = 20, count(1..=10_000);
        /// How long a claim of a run's finalization lasts.
        #[serde(with = "humantime_serde")]
        lease: Duration = secs(30), span(ms(200)..=hours(1));
        /// The first pause before a run that is not ready is looked at again; it grows from look to look.
        #[serde(with = "humantime_serde")]
        look_delay_min: Duration = ms(50), span(ms(1)..=mins(1));
        /// The longest pause before a run that is not ready is looked at again.
        #[serde(with = "humantime_serde")]
        look_delay_max: Duration = secs(2), span(ms(1)..=mins(10));
        /// Rows swept in one statement when a run is stopped.
        sweep_batch: u32 = 5_000, count(1..=1_000_000);
        /// How long a guard without a run is left alone before it is cancelled and swept.
        #[serde(with = "humantime_serde")]
        orphan_grace: Duration = hours(1), span(secs(1)..=days(30));
    }
}

section! {
    /// Takes committed events from the outbox of each database to the broker.
    pub struct OutboxPublisherConfig {
        /// Publishers in this process for each database.
        publishers: u32 = 2, count(1..=64);
        /// Deliveries claimed at once.
        batch: u32 = 500, count(1..=10_000);
        /// The most unconfirmed messages of one publisher.
        publish_parallelism: u32 = 500, count(1..=10_000);
        /// How long a claim of deliveries lasts; above broker.confirm_deadline, or another publisher would send the
        /// batch while its confirms are awaited.
        #[serde(with = "humantime_serde")]
        lease: Duration = secs(60), span(ms(200)..=hours(1));
        /// The first pause after an event was returned or refused; it doubles, jittered, from attempt to attempt.
        #[serde(with = "humantime_serde")]
        retry_delay_min: Duration = secs(1), span(ms(10)..=hours(1));
        /// The longest pause between two attempts.
        #[serde(with = "humantime_serde")]
        retry_delay_max: Duration = mins(5), span(ms(10)..=hours(24));
        /// Attempts after which an event is parked: kept, counted, logged, and retried slowly.
        max_attempts: u32 = 20, count(1..=1_000);
        /// The pause between two attempts of a parked event.
        #[serde(with = "humantime_serde")]
        parked_delay: Duration = mins(10), span(ms(100)..=hours(24));
        /// How often a publisher that nobody wakes looks for due deliveries.
        #[serde(with = "humantime_serde")]
        poll_interval: Duration = secs(1), span(ms(10)..=hours(1));
    }
}

section! {
    /// Limits of what clients of this process submit.
    pub struct SubmissionConfig {
        /// The largest payload of one chunk, in bytes.
        payload_limit_bytes: u32 = 262_144, count(1..=67_108_864);
        /// The most chunks in one part; a part is one statement.
        part_chunks: u32 = 1_000, count(1..=100_000);
        /// The most bytes of payload in one part; at least submission.payload_limit_bytes.
        part_bytes: u32 = 4_194_304, count(1..=268_435_456);
        /// How long a client holds its run's creation between two parts; after it creation_recovery takes over.
        #[serde(with = "humantime_serde")]
        lease: Duration = mins(1), span(ms(200)..=hours(1));
    }
}

section! {
    /// The supervised runtime: restarts, mailboxes, shutdown, reports.
    pub struct RuntimeConfig {
        /// How long running cycles may go on after a request to stop.
        #[serde(with = "humantime_serde")]
        drain_grace: Duration = secs(30), span(ms(0)..=hours(1));
        /// The first pause before a stage is restarted; it doubles, jittered, from restart to restart.
        #[serde(with = "humantime_serde")]
        restart_delay_min: Duration = ms(200), span(ms(1)..=mins(10));
        /// The longest pause before a stage is restarted.
        #[serde(with = "humantime_serde")]
        restart_delay_max: Duration = secs(30), span(ms(1)..=hours(1));
        /// Restarts of one stage within restart_window; one more ends the process, loudly.
        restarts: u32 = 10, count(0..=1_000);
        /// The sliding window in which restarts are counted.
        #[serde(with = "humantime_serde")]
        restart_window: Duration = mins(5), span(secs(1)..=hours(24));
        /// Restarts of all stages together within restart_window; one more ends the process.
        restarts_total: u32 = 50, count(0..=10_000);
        /// Cycles of a stage that fail in a row before it is restarted (a database that is down is no such failure).
        failures_before_restart: u32 = 3, count(1..=1_000);
        /// The most messages that wait in one actor's mailbox; beyond it senders are refused.
        mailbox_capacity: u32 = 256, count(1..=1_000_000);
        /// How often backlogs, placements, pools, the broker, the runtime and mailboxes are reported in the log.
        #[serde(with = "humantime_serde")]
        report_interval: Duration = secs(30), span(ms(100)..=hours(1));
        /// The Unix socket on which this coordinator listens to its operator (runherd stages status|pause|resume|tick);
        /// none for no socket. Its folder is the owner's alone. Unless it is set: runherd/control.sock in
        /// $XDG_RUNTIME_DIR, or in /run for root.
        control_socket: Option<PathBuf> = None, Rule::Socket;
        /// Where GET /livez and GET /readyz are answered over HTTP, without TLS and for whoever asks. Unless it is set:
        /// nowhere.
        probe_listen: Option<SocketAddr> = None, Rule::Address;
    }
}

section! {
    /// The log, on standard error.
    pub struct LogConfig {
        /// json: one object a line; terminal: for people; auto: terminal if standard error is one, else json.
        format: LogFormat = LogFormat::Auto, Rule::OneOf(LogFormat::NAMES);
        /// The least severe level that is logged. Release builds have no trace.
        level: LogLevel = LogLevel::Info, Rule::OneOf(LogLevel::NAMES);
    }
}

/// Declares an enum whose names in the configuration are the variants' in lower case.
macro_rules! words {
    ($(#[$meta:meta])* pub enum $enum:ident { $($(#[$doc:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $enum {
            $($(#[$doc])* #[serde(rename = $name)] $variant,)+
        }

        impl $enum {
            pub(crate) const NAMES: &'static [&'static str] = &[$($name),+];

            /// The name that is used in the configuration.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }
    };
}

words! {
    /// The type of the queues that are declared.
    pub enum QueueType {
        /// Replicated by Raft.
        Quorum = "quorum",
        /// On one node.
        Classic = "classic",
    }
}

words! {
    /// How log lines look.
    pub enum LogFormat {
        /// Terminal if standard error is one, else JSON.
        Auto = "auto",
        /// One JSON object a line.
        Json = "json",
        /// For people.
        Terminal = "terminal",
    }
}

words! {
    /// The least severe level that is logged.
    pub enum LogLevel {
        /// Everything; not in release builds.
        Trace = "trace",
        /// For whoever debugs runherd.
        Debug = "debug",
        /// What was done.
        Info = "info",
        /// What needs a look.
        Warning = "warning",
        /// What failed.
        Error = "error",
    }
}

/// The sections in the order in which they are shown.
pub(super) fn sections() -> Vec<Section> {
    const CONTROL: &str =
        "The control database: runs, seeds and cursors. It is a placement too, under the name control.";
    const PLACEMENT: &str =
        "More databases that hold chunks, one section for each. A name has lower-case letters, digits, - and _.";
    vec![
        Section { about: CONTROL, ..DatabaseConfig::section("control") },
        Section { about: PLACEMENT, ..DatabaseConfig::section("placements.*") },
        BrokerConfig::section("broker"),
        PoolConfig::section("pool"),
        SessionConfig::section("session"),
        CycleConfig::section("cycle"),
        CreationRecoveryConfig::section("creation_recovery"),
        LeaseRecoveryConfig::section("lease_recovery"),
        ShardDispatcherConfig::section("shard_dispatcher"),
        FinalizerConfig::section("finalizer"),
        OutboxPublisherConfig::section("outbox_publisher"),
        SubmissionConfig::section("submission"),
        RuntimeConfig::section("runtime"),
        LogConfig::section("log"),
        Policy::section("policy"),
    ]
}
