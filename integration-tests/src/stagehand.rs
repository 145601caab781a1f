//! Stages put together by hand: real adapters over the databases of a test's world, one cycle at a time.
//!
//! A [`Stagehand`] gives a test migrated databases, every stage as the coordinator builds it, what a client and a worker may
//! do ([`client`], [`worker`]), and a look at the invariants ([`invariants`]). It never waits: a test that needs time to pass
//! moves a stored time to the past.

pub mod client;
pub mod invariants;
pub mod worker;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use runherd::broker::outbox_publisher::BrokerPort;
use runherd::broker::{BrokerSettings, BrokerState, Publisher, silent};
use runherd::config::{Config, Sources};
use runherd::router::{Router, SharedRouter};
use runherd::store::creation_recovery::CreationRecoveryStore;
use runherd::store::finalizer::FinalizerStore;
use runherd::store::lease_recovery::LeaseRecoveryStore;
use runherd::store::migrate::migrate;
use runherd::store::outbox_publisher::OutboxStore;
use runherd::store::shard_dispatcher::ShardDispatcherStore;
use runherd_actors::model::{PlacementId, RunId};
use runherd_actors::runtime::backoff::Backoff;
use runherd_actors::runtime::report::CycleReport;
use runherd_actors::runtime::stage::{CycleContext, Stage};
use runherd_actors::runtime::testkit::context;
use runherd_actors::stages::creation_recovery::{CreationRecovery, CreationRecoverySettings};
use runherd_actors::stages::finalizer::{Finalizer, FinalizerSettings};
use runherd_actors::stages::lease_recovery::LeaseRecovery;
use runherd_actors::stages::outbox_publisher::{OutboxPublisher, OutboxPublisherSettings, PublishPort};
use runherd_actors::stages::shard_dispatcher::{ShardDispatcher, ShardDispatcherSettings};
use tokio::time::timeout;
use tokio_postgres::types::{FromSqlOwned, ToSql};
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use crate::World;

/// The name of the second placement of [`Stagehand::with_two_placements`].
pub const SECOND: &str = "p2";
/// More time than any cycle of a test needs.
const PLENTY: Duration = Duration::from_secs(120);

/// Parameters of a statement.
pub type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// A connection of the test's own, on which a statement that fails ends the test.
pub struct Sql(Client);

impl Sql {
    /// The rows of a query.
    ///
    /// # Panics
    /// If it fails, with its text.
    pub async fn rows(&self, sql: &str, params: Params<'_>) -> Vec<Row> {
        self.0.query(sql, params).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"))
    }

    /// The first column of the only row.
    ///
    /// # Panics
    /// If there is no such row.
    pub async fn value<T: FromSqlOwned>(&self, sql: &str, params: Params<'_>) -> T {
        let row = self.0.query_one(sql, params).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        row.try_get(0).unwrap_or_else(|error| panic!("{sql}: {error:?}"))
    }

    /// The first column of every row.
    pub async fn column<T: FromSqlOwned>(&self, sql: &str, params: Params<'_>) -> Vec<T> {
        self.rows(sql, params).await.iter().map(|row| row.get(0)).collect()
    }

    /// Runs a statement; how many rows it changed.
    ///
    /// # Panics
    /// If it fails, with its text.
    pub async fn run(&self, sql: &str, params: Params<'_>) -> u64 {
        self.0.execute(sql, params).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"))
    }

    /// The connection, for what is expected to fail.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.0
    }
}

/// Migrated databases, and the stages over them.
pub struct Stagehand {
    /// Connections of the test's own to every placement, the control database among them.
    pub placements: BTreeMap<PlacementId, Sql>,
    /// The routes that the adapters share.
    pub router: SharedRouter,
    /// The configuration.
    pub config: Config,
    /// A connection of the test's own to the control database.
    pub control: Sql,
    /// The test's world.
    pub world: World,
}

impl Stagehand {
    /// A world with one database. `settings` are `(section.key, value)`.
    pub async fn new(test: &str, settings: &[(&str, &str)]) -> Self {
        Self::make(test, settings, false).await
    }

    /// A world with a second placement, [`SECOND`].
    pub async fn with_two_placements(test: &str, settings: &[(&str, &str)]) -> Self {
        Self::make(test, settings, true).await
    }

    async fn make(test: &str, settings: &[(&str, &str)], two: bool) -> Self {
        let world = World::new(test).await;
        let mut databases = vec![("control", world.database().clone())];
        let mut sources = Sources::default().with("control.url", world.pg_url()).with("broker.url", world.amqp_url());
        if two {
            let second = world.extra_database(SECOND).await;
            sources = sources.with(format!("placements.{SECOND}.url"), second.url.clone());
            databases.push((SECOND, second));
        }
        let sources = settings.iter().fold(sources, |sources, (key, value)| sources.with(*key, *value));
        let config = Config::load(&sources).unwrap_or_else(|error| panic!("the test's settings: {error}")).config;
        migrate(&config.databases().expect("they are set"), false).await.expect("fresh databases can be migrated");
        let router = Arc::new(Router::connect(&config).await.expect("the control database is there"));
        let control = Sql(world.pg(world.database()).await);
        let mut placements = BTreeMap::new();
        for (name, database) in &databases {
            let find = "SELECT placement_id FROM runherd.placements WHERE name = $1";
            placements.insert(control.value(find, &[name]).await, Sql(world.pg(database).await));
        }
        // A stage lists the placements first in each cycle; ports that a test calls directly need that too.
        router.placements().await.expect("the control database lists them");
        Self { placements, router, config, control, world }
    }

    /// Another connection to the control database, for what happens at the same time.
    pub async fn another(&self) -> Sql {
        Sql(self.world.pg(self.world.database()).await)
    }

    /// The only placement of a world that has one.
    #[must_use]
    pub fn only(&self) -> &Sql {
        assert_eq!(self.placements.len(), 1, "this world has several placements");
        &self.control
    }

    /// The control database's own number as a placement.
    #[must_use]
    pub fn control_id(&self) -> PlacementId {
        *self.placements.keys().next().expect("control is registered first")
    }

    /// creation_recovery's adapter.
    #[must_use]
    pub fn creation_port(&self) -> CreationRecoveryStore {
        let config = &self.config.creation_recovery;
        CreationRecoveryStore {
            router: Arc::clone(&self.router),
            lease: config.lease,
            abandon_after: config.abandon_after,
            policy: self.config.policy.clone(),
        }
    }

    /// A creation_recovery of its own.
    #[must_use]
    pub fn creation_recovery(&self) -> CreationRecovery<CreationRecoveryStore> {
        let config = &self.config.creation_recovery;
        let settings = CreationRecoverySettings { batch: config.batch, parts_per_pass: config.parts_per_pass };
        CreationRecovery::new(self.creation_port(), settings)
    }

    /// A lease_recovery of its own.
    #[must_use]
    pub fn lease_recovery(&self) -> LeaseRecovery<LeaseRecoveryStore> {
        let config = &self.config.lease_recovery;
        LeaseRecovery::new(LeaseRecoveryStore {
            router: Arc::clone(&self.router),
            batch: config.batch,
            scan_rows: config.scan_rows,
            spread: config.spread,
        })
    }

    /// The adapter of dispatcher `instance` of `instances`.
    #[must_use]
    pub fn dispatcher_port(&self, instance: i32, instances: i32) -> ShardDispatcherStore {
        let lease = self.config.shard_dispatcher.lease;
        ShardDispatcherStore { router: Arc::clone(&self.router), lease, instances, instance }
    }

    /// Dispatcher `instance` of `instances`.
    #[must_use]
    pub fn dispatcher_of(&self, instance: i32, instances: i32) -> ShardDispatcher<ShardDispatcherStore> {
        let config = &self.config.shard_dispatcher;
        let settings =
            ShardDispatcherSettings { cursors_per_pass: config.cursors_per_pass, full_delay: config.full_delay };
        ShardDispatcher::new(self.dispatcher_port(instance, instances), settings)
    }

    /// A dispatcher that owns every shard.
    #[must_use]
    pub fn dispatcher(&self) -> ShardDispatcher<ShardDispatcherStore> {
        self.dispatcher_of(0, 1)
    }

    /// The finalizer's adapter.
    #[must_use]
    pub fn finalizer_port(&self) -> FinalizerStore {
        let config = &self.config.finalizer;
        FinalizerStore {
            router: Arc::clone(&self.router),
            lease: config.lease,
            sweep_batch: config.sweep_batch,
            orphan_grace: config.orphan_grace,
        }
    }

    /// A finalizer of its own.
    #[must_use]
    pub fn finalizer(&self) -> Finalizer<FinalizerStore> {
        let config = &self.config.finalizer;
        let settings = FinalizerSettings {
            batch: config.batch,
            look_delay_min: config.look_delay_min,
            look_delay_max: config.look_delay_max,
        };
        Finalizer::new(self.finalizer_port(), settings)
    }

    /// The adapter of a publisher to one database's outbox.
    #[must_use]
    pub fn outbox_port(&self, placement: PlacementId) -> OutboxStore {
        let config = &self.config.outbox_publisher;
        OutboxStore {
            router: Arc::clone(&self.router),
            placement,
            claimed_by: Uuid::nil(),
            lease: config.lease,
            max_attempts: config.max_attempts,
            parked_delay: config.parked_delay,
        }
    }

    /// Publisher `instance` of one database's outbox, to this broker.
    #[must_use]
    pub fn outbox_publisher<B: PublishPort>(
        &self,
        placement: PlacementId,
        broker: B,
        instance: u16,
    ) -> OutboxPublisher<OutboxStore, B> {
        let config = &self.config.outbox_publisher;
        let settings = OutboxPublisherSettings {
            batch: config.batch,
            retry_delay: Backoff { min: config.retry_delay_min, max: config.retry_delay_max },
        };
        OutboxPublisher::new(self.outbox_port(placement), broker, settings, instance)
    }

    /// A connection to the world's RabbitMQ, made once it is there.
    pub async fn broker(&self) -> BrokerPort {
        let publisher = self.broker_at(self.world.amqp_url());
        let connected = publisher.state();
        let connected = async { connected.clone().wait_for(|state| *state == BrokerState::Connected).await.map(drop) };
        timeout(PLENTY, connected).await.expect("a connection in time").expect("its thread lives");
        BrokerPort::new(publisher, silent())
    }

    /// A publisher that tries to reach a broker at this address.
    #[must_use]
    pub fn broker_at(&self, url: &str) -> Publisher {
        let settings = BrokerSettings::new(url.parse().expect("an AMQP URL"));
        Publisher::start(settings, "stagehand", &silent())
    }

    /// A run's status.
    pub async fn status(&self, run: RunId) -> String {
        self.control.value("SELECT status FROM runherd.runs WHERE run_id = $1", &[&run.0]).await
    }

    /// Why a run ended, or is about to; empty where nothing is said.
    pub async fn reason(&self, run: RunId) -> String {
        self.control.value("SELECT COALESCE(reason, '') FROM runherd.runs WHERE run_id = $1", &[&run.0]).await
    }

    /// A number that is added up over the placements.
    pub async fn sum(&self, sql: &str, params: Params<'_>) -> i64 {
        let mut total = 0;
        for placement in self.placements.values() {
            total += placement.value::<i64>(sql, params).await;
        }
        total
    }

    /// How many events of this kind a run has in the control database's ledger.
    pub async fn run_events(&self, run: RunId, kind: &str) -> i64 {
        let sql = "SELECT count(*) FROM runherd.outbox_events WHERE dedupe_key = 'run/' || $1::uuid || '/' || $2::text";
        self.control.value(sql, &[&run.0, &kind]).await
    }
}

/// A context with more time than any cycle of a test needs.
#[must_use]
pub fn plenty() -> CycleContext {
    context(PLENTY)
}

/// One cycle.
///
/// # Panics
/// If it ends with an error.
pub async fn tick(stage: &mut impl Stage) -> CycleReport {
    stage
        .run_cycle(&plenty())
        .await
        .unwrap_or_else(|error| panic!("a cycle failed: {error}: {:?}", error_source(&error)))
}

fn error_source(error: &dyn std::error::Error) -> Option<String> {
    let source = error.source()?;
    Some(match error_source(source) {
        Some(deeper) => format!("{source}: {deeper}"),
        None => source.to_string(),
    })
}
