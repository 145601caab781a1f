//! One database: its pool, its identity and its health.
//!
//! A [`Database`] never blocks its caller for longer than the acquire timeout and the session's own time-outs. After a failure
//! to reach the server its circuit is open for a moment: callers are answered at once, with the last error, and the first one
//! after the pause tries again.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use deadpool_postgres::{
    Hook, HookError, Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime, Timeouts,
};
use runherd_actors::runtime::backoff::Backoff;
use tokio_postgres::types::ToSql;
use tokio_postgres::{NoTls, Row};
use uuid::Uuid;

use super::error::is_retryable;
use super::query::{Query, query};
use super::{SessionSettings, StoreError};

/// How long the circuit stays open after the server could not be reached.
const PAUSES: Backoff = Backoff { min: Duration::from_millis(250), max: Duration::from_secs(5) };
/// Attempts at a transaction that meets deadlocks or serialization failures.
const ATTEMPTS: u32 = 5;

/// Parameters of a statement.
pub type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// What a transaction's body returns.
pub type TxFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Which database a placement must be; checked on every new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The installation.
    pub installation_id: Uuid,
    /// The placement.
    pub placement_id: i32,
}

#[derive(Debug, Default)]
struct Circuit {
    failures: u32,
    open_until: Option<Instant>,
    reason: String,
}

/// Waits for connections, added up since they were last taken.
#[derive(Debug, Default)]
pub struct AcquireTimes {
    count: AtomicU64,
    total_us: AtomicU64,
    max_us: AtomicU64,
    timeouts: AtomicU64,
}

/// A reading of [`AcquireTimes`].
#[derive(Clone, Copy, Debug, Default)]
pub struct AcquireReading {
    /// Connections that were asked for.
    pub count: u64,
    /// The mean wait, in microseconds.
    pub mean_us: u64,
    /// The longest wait, in microseconds.
    pub max_us: u64,
    /// Waits that ended without a connection.
    pub timeouts: u64,
}

impl AcquireTimes {
    fn record(&self, wait: Duration) {
        let us = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.total_us.fetch_add(us, Ordering::Relaxed);
        self.max_us.fetch_max(us, Ordering::Relaxed);
    }

    /// Reads the times and begins anew.
    pub fn take(&self) -> AcquireReading {
        let count = self.count.swap(0, Ordering::Relaxed);
        let total = self.total_us.swap(0, Ordering::Relaxed);
        let max_us = self.max_us.swap(0, Ordering::Relaxed);
        let timeouts = self.timeouts.swap(0, Ordering::Relaxed);
        AcquireReading { count, mean_us: total.checked_div(count).unwrap_or(0), max_us, timeouts }
    }
}

/// The connections of one pool at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStatus {
    /// The most connections that may be open.
    pub size: usize,
    /// Those that are.
    pub connections: usize,
    /// Those that somebody has taken.
    pub in_use: usize,
    /// Tasks that wait for one.
    pub waiting: usize,
}

/// One database under its name in the configuration. Cheap to clone.
#[derive(Clone)]
pub struct Database {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    pool: Pool,
    circuit: Mutex<Circuit>,
    acquire_times: AcquireTimes,
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database").field("name", &self.inner.name).finish_non_exhaustive()
    }
}

impl Database {
    /// A database that connects when it is first used.
    ///
    /// `identity` is what the database must say of itself; `None` where that is not known yet.
    ///
    /// # Errors
    /// The pool cannot be made from these settings.
    pub fn new(
        name: &str,
        mut connection: tokio_postgres::Config,
        settings: &SessionSettings,
        identity: Option<Identity>,
    ) -> Result<Self, StoreError> {
        settings.apply(&mut connection, "runherd");
        let manager =
            Manager::from_config(connection, NoTls, ManagerConfig { recycling_method: RecyclingMethod::Fast });
        let mut builder =
            Pool::builder(manager).max_size(settings.pool_size).runtime(Runtime::Tokio1).timeouts(Timeouts {
                wait: Some(settings.acquire_timeout),
                create: Some(settings.connect_timeout + settings.connect_timeout),
                recycle: Some(settings.connect_timeout),
            });
        if let Some(identity) = identity {
            builder = builder.post_create(Hook::async_fn(move |client: &mut deadpool_postgres::ClientWrapper, _| {
                Box::pin(async move { check_identity(client, identity).await.map_err(HookError::message) })
            }));
        }
        let pool = builder.build().map_err(|error| StoreError::Failed {
            database: name.to_owned(),
            doing: "building the connection pool".to_owned(),
            source: error.into(),
        })?;
        let inner =
            Inner { name: name.to_owned(), pool, circuit: Mutex::default(), acquire_times: AcquireTimes::default() };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Its name in the configuration.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Waits for connections since the last reading.
    #[must_use]
    pub fn acquire_times(&self) -> &AcquireTimes {
        &self.inner.acquire_times
    }

    /// The pool's connections, as they are now.
    #[must_use]
    pub fn pool_status(&self) -> PoolStatus {
        let status = self.inner.pool.status();
        PoolStatus {
            size: status.max_size,
            connections: status.size,
            in_use: status.size.saturating_sub(status.available),
            waiting: status.waiting,
        }
    }

    /// Why the database is skipped just now; `None` when it may be tried.
    #[must_use]
    pub fn circuit_open(&self) -> Option<String> {
        let circuit = self.inner.circuit.lock().unwrap_or_else(PoisonError::into_inner);
        circuit.open_until.filter(|until| Instant::now() < *until).map(|_| circuit.reason.clone())
    }

    /// Runs one statement. Deadlocks and serialization failures are retried.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn query(&self, query: &Query, params: Params<'_>) -> Result<Vec<Row>, StoreError> {
        let mut attempt = 0;
        loop {
            let client = self.client(query.name).await?;
            let result = async {
                let statement = client.prepare_cached(query.text).await?;
                client.query(&statement, params).await
            }
            .await;
            match result {
                Ok(rows) => {
                    self.note_success();
                    return Ok(rows);
                }
                Err(error) if is_retryable(&error) && attempt + 1 < ATTEMPTS => {
                    attempt += 1;
                    pause(attempt).await;
                }
                Err(error) => return Err(self.sort(query.name, error, client)),
            }
        }
    }

    /// Runs one statement that answers at most one row.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn query_opt(&self, query: &Query, params: Params<'_>) -> Result<Option<Row>, StoreError> {
        Ok(self.query(query, params).await?.into_iter().next())
    }

    /// Runs one statement that answers no rows, and says how many it changed.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn execute(&self, query: &Query, params: Params<'_>) -> Result<u64, StoreError> {
        let query = *query;
        let client = self.client(query.name).await?;
        let result = async {
            let statement = client.prepare_cached(query.text).await?;
            client.execute(&statement, params).await
        }
        .await;
        match result {
            Ok(rows) => {
                self.note_success();
                Ok(rows)
            }
            Err(error) => Err(self.sort(query.name, error, client)),
        }
    }

    /// Runs one statement that always answers a row.
    ///
    /// # Errors
    /// See [`StoreError`]; also when no row came.
    pub async fn query_one(&self, query: &Query, params: Params<'_>) -> Result<Row, StoreError> {
        self.query_opt(query, params).await?.ok_or_else(|| StoreError::Failed {
            database: self.name().to_owned(),
            doing: query.name.to_owned(),
            source: "it answered no row".into(),
        })
    }

    /// Runs a transaction; `body` may run several times, when the server asks for that.
    ///
    /// # Errors
    /// See [`StoreError`]. The transaction is rolled back.
    pub async fn run_tx<T, F>(&self, doing: &str, body: F) -> Result<T, StoreError>
    where
        F: for<'a> Fn(&'a Tx<'a>) -> TxFuture<'a, T> + Send + Sync,
        T: Send,
    {
        let mut attempt = 0;
        loop {
            let mut client = self.client(doing).await?;
            let transaction = match client.transaction().await {
                Ok(transaction) => transaction,
                Err(error) => {
                    let error = StoreError::from_driver(self.name(), doing, error);
                    self.note(&error);
                    return Err(error);
                }
            };
            let tx = Tx { database: self.name(), transaction };
            let result = match body(&tx).await {
                Ok(value) => tx.transaction.commit().await.map(|()| value).map_err(|error| {
                    let retry = is_retryable(&error);
                    (StoreError::from_driver(self.name(), doing, error), retry)
                }),
                Err(error) => {
                    let retry = tx_is_retryable(&error);
                    Err((error, retry))
                }
            };
            match result {
                Ok(value) => {
                    self.note_success();
                    return Ok(value);
                }
                Err((_, true)) if attempt + 1 < ATTEMPTS => {
                    attempt += 1;
                    pause(attempt).await;
                }
                Err((error, _)) => {
                    self.note(&error);
                    return Err(error);
                }
            }
        }
    }

    /// A connection of its own, for what does not fit a statement or a transaction (LISTEN, streaming, migrations).
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], or [`StoreError::Identity`] when this is another database.
    pub async fn client(&self, doing: &str) -> Result<Object, StoreError> {
        if let Some(reason) = self.circuit_open() {
            return Err(StoreError::Unavailable {
                database: self.name().to_owned(),
                doing: doing.to_owned(),
                source: reason.into(),
            });
        }
        let started = Instant::now();
        let result = self.inner.pool.get().await;
        let times = &self.inner.acquire_times;
        times.record(started.elapsed());
        if matches!(result, Err(PoolError::Timeout(_))) {
            times.timeouts.fetch_add(1, Ordering::Relaxed);
        }
        result.map_err(|error| {
            let error = self.sort_pool(doing, error);
            self.note(&error);
            error
        })
    }

    fn sort_pool(&self, doing: &str, error: PoolError) -> StoreError {
        let database = self.name().to_owned();
        match error {
            PoolError::Backend(error) => StoreError::from_driver(self.name(), doing, error),
            PoolError::PostCreateHook(HookError::Message(reason)) => {
                StoreError::Identity { database, reason: reason.into_owned() }
            }
            PoolError::PostCreateHook(HookError::Backend(error)) => StoreError::from_driver(self.name(), doing, error),
            PoolError::Timeout(_) => StoreError::Unavailable {
                database,
                doing: doing.to_owned(),
                source: "no connection became free, or none could be opened in time".into(),
            },
            other => StoreError::Unavailable { database, doing: doing.to_owned(), source: other.into() },
        }
    }

    /// Sorts a statement's error; a connection that may be broken does not go back to the pool.
    fn sort(&self, doing: &str, error: tokio_postgres::Error, client: Object) -> StoreError {
        let error = StoreError::from_driver(self.name(), doing, error);
        if error.is_unavailable() {
            drop(Object::take(client));
        }
        self.note(&error);
        error
    }

    fn note(&self, error: &StoreError) {
        let StoreError::Unavailable { source, .. } = error else { return };
        // A statement that only timed out says nothing about the server's health.
        if is_statement_timeout(source.as_ref()) {
            return;
        }
        let mut circuit = self.inner.circuit.lock().unwrap_or_else(PoisonError::into_inner);
        if circuit.open_until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        circuit.open_until = Some(Instant::now() + PAUSES.delay(circuit.failures));
        circuit.failures += 1;
        circuit.reason = crate::telemetry::error_chain(source.as_ref());
    }

    fn note_success(&self) {
        let mut circuit = self.inner.circuit.lock().unwrap_or_else(PoisonError::into_inner);
        if circuit.failures > 0 {
            *circuit = Circuit::default();
        }
    }
}

/// A transaction in progress.
pub struct Tx<'a> {
    database: &'a str,
    transaction: deadpool_postgres::Transaction<'a>,
}

impl Tx<'_> {
    /// Runs one statement.
    ///
    /// # Errors
    /// See [`StoreError`]; return it, and the transaction is rolled back.
    pub async fn query(&self, query: &Query, params: Params<'_>) -> Result<Vec<Row>, StoreError> {
        let result = async {
            let statement = self.transaction.prepare_cached(query.text).await?;
            self.transaction.query(&statement, params).await
        }
        .await;
        result.map_err(|error| StoreError::from_driver(self.database, query.name, error))
    }

    /// Runs one statement that answers no rows, and says how many it changed.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn execute(&self, query: &Query, params: Params<'_>) -> Result<u64, StoreError> {
        let result = async {
            let statement = self.transaction.prepare_cached(query.text).await?;
            self.transaction.execute(&statement, params).await
        }
        .await;
        result.map_err(|error| StoreError::from_driver(self.database, query.name, error))
    }

    /// Runs one statement that answers at most one row.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn query_opt(&self, query: &Query, params: Params<'_>) -> Result<Option<Row>, StoreError> {
        Ok(self.query(query, params).await?.into_iter().next())
    }
}

const IDENTITY: Query = query!("session/identity");

/// Reads which installation and placement a database says it is.
///
/// # Errors
/// See [`StoreError`]; [`StoreError::Schema`] where the schema is missing or needs a newer program.
pub async fn read_identity(database: &Database) -> Result<Identity, StoreError> {
    let row = database.query_opt(&IDENTITY, &[]).await?.ok_or_else(|| StoreError::Schema {
        database: database.name().to_owned(),
        reason: "it has no identity; run `runherd migrate`".to_owned(),
    })?;
    crate::router::check_generation(database.name(), row.get("min_coordinator"))?;
    Ok(Identity { installation_id: row.get("installation_id"), placement_id: row.get("placement_id") })
}

/// Two names for one database, or another installation's database, must never mix.
async fn check_identity(client: &deadpool_postgres::ClientWrapper, expected: Identity) -> Result<(), String> {
    let row = client
        .query_opt(IDENTITY.text, &[])
        .await
        .map_err(|error| {
            format!(
                "its identity cannot be read ({}); has `runherd migrate` been run?",
                crate::telemetry::error_chain(&error)
            )
        })?
        .ok_or("it has no identity; run `runherd migrate`")?;
    let min_coordinator: i32 = row.get("min_coordinator");
    if min_coordinator > super::migrate::COORDINATOR_GENERATION {
        return Err(format!("its schema needs coordinators of generation {min_coordinator}; use a newer runherd"));
    }
    let found = Identity { installation_id: row.get("installation_id"), placement_id: row.get("placement_id") };
    if found == expected {
        return Ok(());
    }
    let name: String = row.get("name");
    Err(format!(
        "it says that it is placement {name} ({}) of installation {}, but placement {} of installation {} was expected",
        found.placement_id, found.installation_id, expected.placement_id, expected.installation_id
    ))
}

fn tx_is_retryable(error: &StoreError) -> bool {
    let StoreError::Unavailable { source, .. } = error else { return false };
    source.downcast_ref::<tokio_postgres::Error>().is_some_and(is_retryable)
}

fn is_statement_timeout(source: &(dyn std::error::Error + Send + Sync + 'static)) -> bool {
    source
        .downcast_ref::<tokio_postgres::Error>()
        .and_then(|error| error.code())
        .is_some_and(|code| matches!(code.code(), "57014" | "55P03" | "40P01" | "40001"))
}

async fn pause(attempt: u32) {
    let longest = 10 * u64::from(attempt) * u64::from(attempt);
    tokio::time::sleep(Duration::from_millis(rand::random_range(1..=longest))).await;
}
