//! The names of log fields. A fact has one name in all of the log; whoever logs a new fact adds its name here.
//!
//! A name that ends in `_ms` or `_us` holds milliseconds or microseconds; `_bytes`, bytes; `_ratio`, a number from 0 to 1; the
//! other numbers are counts. All are whole but ratios and the times of routes, which take less than a microsecond.
//! `docs/logs.md` lists the records of a coordinator with their fields; a test compares it with a real log. The runtime,
//! which knows nothing of this module, names its own fields by the same rules.
//!
//! A child logger does not set a field again that its parent or a line of it sets: both would stand
//! in the line.
//!
//! ```
//! use runherd::telemetry::field;
//! let log = slog::Logger::root(slog::Discard, slog::o!(field::STAGE => "finalizer"));
//! slog::info!(log, "run finished"; field::RUN_ID => "0190…", field::DURATION_MS => 12);
//! ```

/// When the line was logged: RFC 3339, UTC, milliseconds. JSON only; a terminal line begins with it.
pub const TS: &str = "ts";
/// `trace`, `debug`, `info`, `warning`, `error` or `critical`.
pub const LEVEL: &str = "level";
/// What happened. The text of one kind of event never varies: what varies is in fields.
pub const MSG: &str = "msg";

/// The coordinator's own id, on every line of it.
pub const COORDINATOR_ID: &str = "coordinator_id";
/// A stage, with its instance: `shard_dispatcher/1`.
pub const STAGE: &str = "stage";
/// The number of a stage's cycle since the process started.
pub const ITERATION: &str = "iteration";
/// How something ended, in one word.
pub const OUTCOME: &str = "outcome";
/// Why something was done.
pub const REASON: &str = "reason";
/// An error and its causes, as [`error_chain`](super::error_chain) writes them.
pub const ERROR: &str = "error";
/// What keeps a stage from going on.
pub const BLOCKED_BY: &str = "blocked_by";
/// How often something was tried.
pub const ATTEMPT: &str = "attempt";
/// How often in a row something failed: told at each doubling.
pub const IN_ROW: &str = "in_row";
/// How long until it is tried again.
pub const RETRY_IN_MS: &str = "retry_in_ms";

/// How a process ended before, oldest first.
pub const HISTORY: &str = "history";
/// Stages that did not end in time.
pub const UNFINISHED: &str = "unfinished";
/// This program's version.
pub const VERSION: &str = "version";
/// The host's name.
pub const HOST: &str = "host";
/// The process's id.
pub const PID: &str = "pid";
/// How many placements there are.
pub const PLACEMENTS: &str = "placements";
/// The broker's URL, without its password.
pub const BROKER: &str = "broker";
/// Which of the process's connections to the broker: `control/0`.
pub const LINK: &str = "link";
/// Queue names, separated by commas.
pub const QUEUES: &str = "queues";
/// The broker's answer to a message, as the AMQP library prints it.
pub const CONFIRM: &str = "confirm";
/// How many deliveries may wait for a consumer's word.
pub const PREFETCH: &str = "prefetch";

/// A placement's name; `control` for the control database.
pub const PLACEMENT: &str = "placement";
/// A run.
pub const RUN_ID: &str = "run_id";
/// A shard of a run.
pub const RUN_SHARD: &str = "run_shard";
/// A chunk of a shard.
pub const CHUNK_NO: &str = "chunk_no";
/// A run's queue.
pub const QUEUE: &str = "queue";
/// A worker.
pub const WORKER_ID: &str = "worker_id";
/// A ledger event.
pub const EVENT_ID: &str = "event_id";
/// A ledger event's dedupe key, which is its message id.
pub const DEDUPE_KEY: &str = "dedupe_key";

/// How long one thing took: a cycle of a stage, where the line has [`STAGE`].
pub const DURATION_MS: &str = "duration_ms";
/// Over how long the counts of a record were added up.
pub const INTERVAL_MS: &str = "interval_ms";

/// How often a shard's pool was looked for.
pub const ROUTE_RESOLUTIONS: &str = "route_resolutions";
/// How long it took to find a shard's pool: the mean.
pub const ROUTE_RESOLUTION_US: &str = "route_resolution_us";
/// The longest it took.
pub const ROUTE_RESOLUTION_MAX_US: &str = "route_resolution_max_us";

/// How often a connection was asked for.
pub const POOL_ACQUISITIONS: &str = "pool_acquisitions";
/// How long it took to get a connection from a pool: the mean.
pub const POOL_ACQUISITION_US: &str = "pool_acquisition_us";
/// The longest it took.
pub const POOL_ACQUISITION_MAX_US: &str = "pool_acquisition_max_us";
/// How often none came in time.
pub const POOL_ACQUISITION_TIMEOUTS: &str = "pool_acquisition_timeouts";
/// The most connections that a pool may have.
pub const POOL_SIZE: &str = "pool_size";
/// Connections that are open.
pub const POOL_CONNECTIONS: &str = "pool_connections";
/// Connections that somebody has taken.
pub const POOL_IN_USE: &str = "pool_in_use";
/// Tasks that wait for a connection.
pub const POOL_WAITING: &str = "pool_waiting";

/// Connections for publishing that this process has.
pub const PUBLISHERS: &str = "publishers";
/// Those of them that can publish now.
pub const PUBLISHERS_READY: &str = "publishers_ready";
/// Those that the broker takes no messages from now, because of an alarm.
pub const PUBLISHERS_BLOCKED: &str = "publishers_blocked";
/// Messages that were given to the broker.
pub const MESSAGES_SENT: &str = "messages_sent";
/// Messages that the broker confirmed and did not return.
pub const MESSAGES_CONFIRMED: &str = "messages_confirmed";
/// Messages that the broker returned.
pub const MESSAGES_RETURNED: &str = "messages_returned";
/// Messages that the broker refused.
pub const MESSAGES_NACKED: &str = "messages_nacked";
/// Messages that the broker gave no answer to.
pub const MESSAGES_UNKNOWN: &str = "messages_unknown";
/// Connections that took the place of an earlier one.
pub const RECONNECTS: &str = "reconnects";

/// Chunks that are seeded and not handed out.
pub const DISPATCH_BACKLOG: &str = "dispatch_backlog";
/// Cursors with such chunks.
pub const DISPATCH_CURSORS: &str = "dispatch_cursors";
/// Runs that are being created.
pub const CREATING_RUNS: &str = "creating_runs";
/// For how long the oldest sealed run has waited to be seeded.
pub const OLDEST_UNSEEDED_MS: &str = "oldest_unseeded_ms";
/// For how long the oldest due cursor has waited for a dispatcher.
pub const OLDEST_UNDISPATCHED_MS: &str = "oldest_undispatched_ms";
/// For how long the oldest run has waited for whatever the finalizer owes it.
pub const OLDEST_UNFINALIZED_MS: &str = "oldest_unfinalized_ms";
/// Runs that wait for the finalizer.
pub const FINALIZATION_BACKLOG: &str = "finalization_backlog";
/// For how long the oldest of them has waited.
pub const FINALIZATION_LAG_MS: &str = "finalization_lag_ms";
/// Rows of one database's delivery queue, parked ones among them.
pub const OUTBOX_BACKLOG: &str = "outbox_backlog";
/// Parked rows of one database's delivery queue.
pub const OUTBOX_PARKED: &str = "outbox_parked";
/// For how long the oldest due delivery of one database has waited.
pub const OUTBOX_LAG_MS: &str = "outbox_lag_ms";
/// Chunks of one placement that are handed out and not finished.
pub const CHUNKS_IN_FLIGHT: &str = "chunks_in_flight";
/// Those of them that a worker has leased.
pub const CHUNKS_LEASED: &str = "chunks_leased";
/// For how long the oldest of the others has been ready.
pub const OLDEST_UNLEASED_MS: &str = "oldest_unleased_ms";
