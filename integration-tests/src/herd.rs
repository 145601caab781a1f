//! A whole herd in a test's world: a migrated database, coordinators and workers as real processes, and workers inside the test.
//!
//! Promises short leases and delays, so that recovery is seen within seconds, and that everything is gone when it is dropped.

use std::path::PathBuf;
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use runherd::broker::BrokerSettings;
use runherd::config::{Config, Sources};
use runherd::store::{Database as Pool, SessionSettings};
use runherd::worker::{Chunk, ChunkError, Handler, Outcome, Worker};
use runherd_actors::model::RunId;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::process::{CONTROL_SOCKET, Launch, runherd_binary};
use crate::{Database, Process, World, logs, until};

/// What any one step may take on a slow machine.
pub const LIMIT: Duration = Duration::from_secs(90);

/// Settings that let a test see recovery within seconds.
const QUICK: [&str; 17] = [
    "cycle.interval=200ms",
    "session.statement_timeout=10s",
    "session.lock_timeout=2s",
    "session.idle_in_transaction_session_timeout=1s",
    "creation_recovery.lease=2s",
    "lease_recovery.spread=100ms",
    "shard_dispatcher.lease=2s",
    "shard_dispatcher.full_delay=50ms",
    "finalizer.lease=2s",
    "finalizer.look_delay_max=200ms",
    "outbox_publisher.lease=6s",
    "outbox_publisher.poll_interval=200ms",
    "outbox_publisher.retry_delay_min=100ms",
    "outbox_publisher.retry_delay_max=1s",
    "broker.confirm_deadline=5s",
    "broker.reconnect_delay_max=500ms",
    "submission.lease=5s",
];

/// A migrated database, and everything that works on it.
pub struct Herd {
    /// Databases, virtual host, logs. Dropped last.
    pub world: World,
    /// Further placements, by name.
    placements: Vec<(String, Database)>,
}

impl Herd {
    /// A herd with the control database as its only placement.
    pub async fn new(test: &str) -> Self {
        Self::in_world(World::new(test).await, &[]).await
    }

    /// A herd in a world of the test's making, with further placements.
    ///
    /// # Panics
    /// If the databases cannot be migrated.
    pub async fn in_world(world: World, placements: &[&str]) -> Self {
        let mut further = Vec::new();
        for name in placements {
            further.push(((*name).to_owned(), world.extra_database(name).await));
        }
        let herd = Self { world, placements: further };
        let output = herd.run(&["migrate"]).await;
        assert!(output.status.success(), "migrate: {}", String::from_utf8_lossy(&output.stderr));
        herd
    }

    /// The settings of every process of this herd, as `key=value`.
    #[must_use]
    pub fn settings(&self) -> Vec<String> {
        let servers = [format!("control.url={}", self.world.pg_url()), format!("broker.url={}", self.world.amqp_url())];
        let placements =
            self.placements.iter().map(|(name, database)| format!("placements.{name}.url={}", database.url));
        servers.into_iter().chain(placements).chain(QUICK.iter().map(|&set| set.to_owned())).collect()
    }

    /// The same, as a configuration.
    ///
    /// # Panics
    /// If the settings are refused.
    #[must_use]
    pub fn config(&self) -> Config {
        let sources = Sources { sets: self.settings(), ..Sources::default() };
        Config::load(&sources).unwrap_or_else(|error| panic!("the test's settings: {error}")).config
    }

    /// A `runherd` process with this herd's settings, to be completed and started.
    #[must_use]
    pub fn launch(&self, name: &str, command: &[&str]) -> Launch {
        Process::runherd(&self.world, name).args(self.flags()).args(command)
    }

    /// A coordinator.
    #[must_use]
    pub fn coordinator(&self, name: &str) -> Process {
        self.launch(name, &["serve"]).start()
    }

    /// Runs a command to its end.
    ///
    /// # Panics
    /// If it cannot be started.
    pub async fn run(&self, command: &[&str]) -> Output {
        let mut process = tokio::process::Command::new(runherd_binary());
        process.args(self.flags()).args(command).env(CONTROL_SOCKET, "none").kill_on_drop(true);
        let output = tokio::time::timeout(LIMIT, process.output()).await;
        output.unwrap_or_else(|_| panic!("{command:?} did not end; logs: {}", logs::whereabouts())).expect("it starts")
    }

    /// Runs a command that must succeed; answers its standard output.
    ///
    /// # Panics
    /// If it fails.
    pub async fn succeed(&self, command: &[&str]) -> String {
        let output = self.run(command).await;
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{command:?}: {}\n{out}\n{err}", output.status);
        out.into_owned()
    }

    fn flags(&self) -> Vec<String> {
        self.settings().into_iter().flat_map(|set| ["--set".to_owned(), set]).collect()
    }

    /// Submits a range of `chunks` chunks to the queue `q`; answers the run.
    ///
    /// # Panics
    /// If the submission is refused.
    pub async fn submit(&self, chunks: u32, flags: &[&str]) -> RunId {
        let range = format!("0..{chunks}");
        let mut command = vec!["submit", "--queue", "q", "--range", &range, "--step", "1"];
        command.extend(flags);
        self.succeed(&command).await.trim().parse().expect("submit prints the run")
    }

    /// A file in the test's log folder, with this text.
    ///
    /// # Panics
    /// If it cannot be written.
    #[must_use]
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.world.logs().join(name);
        std::fs::write(&path, text).expect("the log folder can be written");
        path
    }

    /// One number from the control database.
    ///
    /// # Panics
    /// If the query fails.
    pub async fn number(&self, query: &str) -> i64 {
        self.number_in(self.world.database(), query).await
    }

    /// One number from a database.
    ///
    /// # Panics
    /// If the query fails.
    pub async fn number_in(&self, database: &Database, query: &str) -> i64 {
        let row = self.world.pg(database).await.query_one(query, &[]).await;
        row.unwrap_or_else(|error| panic!("{query}: {error:?}")).get(0)
    }

    /// Waits until a query answers at least `least`.
    pub async fn until_number(&self, query: &str, least: i64) -> i64 {
        until(format!("{query} to reach {least}"), LIMIT, async || {
            let number = self.number(query).await;
            (number >= least).then_some(number)
        })
        .await
    }

    /// Waits until a run has ended; answers its status.
    pub async fn ended(&self, run: RunId) -> String {
        let query = format!(
            "SELECT status FROM runherd.runs WHERE run_id = '{run}' AND status IN ('succeeded', 'failed', 'cancelled')"
        );
        until(format!("run {run} to end"), LIMIT, async || {
            let client = self.world.pg(self.world.database()).await;
            client.query_opt(&query, &[]).await.ok().flatten().map(|row| row.get(0))
        })
        .await
    }

    /// Runs `runherd verify`, which must find nothing.
    pub async fn verify(&self) {
        self.succeed(&["verify"]).await;
    }

    /// Every database of the herd as the worker library takes it.
    ///
    /// # Panics
    /// If a pool cannot be made.
    #[must_use]
    pub fn pools(&self) -> Vec<Pool> {
        let config = self.config();
        let settings = SessionSettings::new(&config.pool, &config.session, false);
        let databases = config.databases().expect("the databases are configured");
        let pool = |(name, connection): (String, _)| Pool::new(&name, connection, &settings, None).expect("a pool");
        databases.into_iter().map(pool).collect()
    }

    /// A worker inside the test, with a handler of the test's.
    ///
    /// # Panics
    /// If its settings are refused.
    #[must_use]
    pub fn worker<H: Handler>(&self, handler: H) -> TestWorker {
        let broker = BrokerSettings::from_config(&self.config()).expect("the broker is configured");
        let builder = Worker::builder(broker, "q").placements(self.pools());
        let builder = builder.concurrency(16).batch(200).lease_ttl(Duration::from_secs(3)).grace(Duration::ZERO);
        let worker = builder.build(handler).unwrap_or_else(|error| panic!("the test's worker: {error}"));
        let drain = CancellationToken::new();
        let task = tokio::spawn({
            let drain = drain.clone();
            async move { drop(worker.run(drain).await) }
        });
        TestWorker { drain, task }
    }
}

/// A worker inside the test; drains when it is dropped or told to.
pub struct TestWorker {
    drain: CancellationToken,
    task: JoinHandle<()>,
}

impl TestWorker {
    /// Drains, and waits for the end of it.
    ///
    /// # Panics
    /// If it does not end.
    pub async fn drain(mut self) {
        self.drain.cancel();
        tokio::time::timeout(LIMIT, &mut self.task).await.expect("the worker drains").expect("it does not panic");
    }
}

impl Drop for TestWorker {
    fn drop(&mut self) {
        self.drain.cancel();
    }
}

/// A handler that answers at once with the payload, and counts.
#[derive(Clone, Debug, Default)]
pub struct Echo {
    handled: Arc<AtomicU64>,
}

impl Echo {
    /// How many chunks it handled, those it handled twice among them.
    #[must_use]
    pub fn handled(&self) -> u64 {
        self.handled.load(Ordering::Relaxed)
    }
}

impl Handler for Echo {
    async fn handle(&self, chunk: Chunk) -> Result<Outcome, ChunkError> {
        self.handled.fetch_add(1, Ordering::Relaxed);
        Outcome::from_json(chunk.payload.get()).map_err(|error| ChunkError::fatal(error.to_string()))
    }
}
