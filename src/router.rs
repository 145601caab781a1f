//! The route of a shard: placement → connection pool, with its timings.
//!
//! The control database lists the placements; the configuration says how to reach them, under the same names. A placement that
//! is offline, not configured here or down is skipped and named; it never fails the others.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use runherd_actors::model::PlacementId;
use runherd_actors::runtime::report::StageError;
use runherd_actors::stages::placements::{PlacementRef, Placements};
use uuid::Uuid;

use crate::config::{CONTROL, Config};
use crate::store::migrate::COORDINATOR_GENERATION;
use crate::store::pool::read_identity;
use crate::store::query::{Query, query};
use crate::store::{Database, Identity, SessionSettings, StoreError};

const PLACEMENTS: Query = query!("router/placements");

/// How long the list of placements is used before it is read again.
const LIST_TTL: Duration = Duration::from_secs(1);

/// Resolves routes. Shared by every adapter of the process.
pub struct Router {
    control: Database,
    installation_id: Uuid,
    connections: BTreeMap<String, tokio_postgres::Config>,
    settings: SessionSettings,
    state: Mutex<State>,
    resolution: ResolutionTimes,
}

#[derive(Default)]
struct State {
    read_at: Option<Instant>,
    listed: Vec<Listed>,
    databases: HashMap<PlacementId, Database>,
}

#[derive(Clone)]
struct Listed {
    placement: PlacementRef,
    offline: bool,
}

/// Route resolutions, added up since they were last taken.
#[derive(Debug, Default)]
struct ResolutionTimes {
    count: AtomicU64,
    total_ns: AtomicU64,
    max_ns: AtomicU64,
}

/// A reading of the time that route resolutions took.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResolutionReading {
    /// Routes that were resolved.
    pub count: u64,
    /// The mean, in microseconds.
    pub mean_us: f64,
    /// The longest, in microseconds.
    pub max_us: f64,
}

impl Router {
    /// Reads from the control database which installation this is, and checks that its schema allows this program.
    ///
    /// # Errors
    /// The database cannot be reached, has no schema, or needs a newer coordinator.
    pub async fn connect(config: &Config) -> Result<Self, RouterError> {
        let settings = SessionSettings::new(&config.pool, &config.session, true);
        let connections: BTreeMap<_, _> = config.databases()?.into_iter().collect();
        let control_connection = config.control_connection()?;
        let first = Database::new(CONTROL, control_connection.clone(), &settings, None)?;
        let identity = read_identity(&first).await?;
        let control = Database::new(CONTROL, control_connection, &settings, Some(identity))?;
        Ok(Self {
            control,
            installation_id: identity.installation_id,
            connections,
            settings,
            state: Mutex::default(),
            resolution: ResolutionTimes::default(),
        })
    }

    /// The control database.
    #[must_use]
    pub fn control(&self) -> &Database {
        &self.control
    }

    /// The placements as of now: those that can be worked on, and those that cannot, with the reason.
    ///
    /// # Errors
    /// The control database cannot be read, or its schema needs a newer coordinator.
    pub async fn placements(&self) -> Result<Placements, StageError> {
        let mut placements = Placements::default();
        for listed in self.listed().await? {
            match self.skip_reason(&listed) {
                None => placements.reachable.push(listed.placement),
                Some(reason) => placements.skipped.push((listed.placement, reason)),
            }
        }
        Ok(placements)
    }

    /// The database of a placement.
    ///
    /// # Errors
    /// Transient: the placement is unknown, not configured here, or its pool cannot be made.
    pub fn route(&self, placement: PlacementId) -> Result<Database, StageError> {
        let started = Instant::now();
        let result = self.resolve(placement);
        self.resolution.record(started.elapsed());
        result
    }

    /// Databases that are open in this process, the control database among them.
    #[must_use]
    pub fn open_databases(&self) -> Vec<Database> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let others = state.databases.values().filter(|database| database.name() != CONTROL).cloned();
        let mut databases: Vec<Database> = std::iter::once(self.control.clone()).chain(others).collect();
        databases.sort_by(|a, b| a.name().cmp(b.name()));
        databases
    }

    /// Takes the time that route resolutions took since the last reading.
    #[must_use]
    pub fn take_resolution_times(&self) -> ResolutionReading {
        self.resolution.take()
    }

    fn resolve(&self, placement: PlacementId) -> Result<Database, StageError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(database) = state.databases.get(&placement) {
            return Ok(database.clone());
        }
        let listed = state.listed.iter().find(|listed| listed.placement.id == placement).cloned();
        let name = listed.map(|listed| listed.placement.name).ok_or_else(|| {
            StageError::transient(format!("routing to placement {placement}"), "the control database does not list it")
        })?;
        let database = self.open(placement, &name)?;
        state.databases.insert(placement, database.clone());
        Ok(database)
    }

    fn open(&self, placement_id: PlacementId, name: &str) -> Result<Database, StageError> {
        if name == CONTROL {
            return Ok(self.control.clone());
        }
        let connection = self.connections.get(name).ok_or_else(|| {
            StageError::transient(format!("routing to placement {name}"), "it has no [placements] section here")
        })?;
        let identity = Identity { installation_id: self.installation_id, placement_id };
        Ok(Database::new(name, connection.clone(), &self.settings, Some(identity))?)
    }

    fn skip_reason(&self, listed: &Listed) -> Option<String> {
        let name = &listed.placement.name;
        if listed.offline {
            return Some("it is set offline".to_owned());
        }
        if name != CONTROL && !self.connections.contains_key(name) {
            return Some(format!("it has no [placements.{name}] section in this coordinator's configuration"));
        }
        let database = self.resolve(listed.placement.id).ok()?;
        database.circuit_open()
    }

    async fn listed(&self) -> Result<Vec<Listed>, StageError> {
        {
            let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.read_at.is_some_and(|read_at| read_at.elapsed() < LIST_TTL) {
                return Ok(state.listed.clone());
            }
        }
        let rows = self.control.query(&PLACEMENTS, &[]).await?;
        let mut listed = Vec::with_capacity(rows.len());
        for row in &rows {
            check_generation(CONTROL, row.get("min_coordinator"))?;
            let placement = PlacementRef { id: row.get("placement_id"), name: row.get("name") };
            listed.push(Listed { placement, offline: row.get::<_, &str>("state") == "offline" });
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.read_at = Some(Instant::now());
        state.listed.clone_from(&listed);
        Ok(listed)
    }
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Router").field("installation_id", &self.installation_id).finish_non_exhaustive()
    }
}

/// Why there is no router yet.
#[derive(Debug, thiserror::Error)]
pub enum RouterError {
    /// The configuration does not say how to reach a database.
    #[error(transparent)]
    Config(#[from] crate::config::ConfigError),
    /// The control database cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Whether the schema of a database allows this program.
///
/// # Errors
/// [`StoreError::Schema`], when it needs a newer coordinator.
pub fn check_generation(database: &str, min_coordinator: i32) -> Result<(), StoreError> {
    if min_coordinator <= COORDINATOR_GENERATION {
        return Ok(());
    }
    Err(StoreError::Schema {
        database: database.to_owned(),
        reason: format!(
            "its schema needs coordinators of generation {min_coordinator}, this is {COORDINATOR_GENERATION}; use a newer runherd"
        ),
    })
}

impl ResolutionTimes {
    fn record(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.total_ns.fetch_add(ns, Ordering::Relaxed);
        self.max_ns.fetch_max(ns, Ordering::Relaxed);
    }

    #[expect(clippy::cast_precision_loss, reason = "a time in a log line")]
    fn take(&self) -> ResolutionReading {
        let count = self.count.swap(0, Ordering::Relaxed);
        let total_ns = self.total_ns.swap(0, Ordering::Relaxed);
        let max_ns = self.max_ns.swap(0, Ordering::Relaxed);
        // To the nanosecond: more digits would only be noise.
        let mean_us = total_ns.checked_div(count).unwrap_or(0) as f64 / 1_000.0;
        ResolutionReading { count, mean_us, max_us: max_ns as f64 / 1_000.0 }
    }
}

/// A router that adapters share.
pub type SharedRouter = Arc<Router>;
