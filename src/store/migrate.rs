//! `runherd migrate`: brings every configured database to the schema of this program.
//!
//! Safe to run twice, and from two machines at once (an advisory lock in each database). A database that is newer than the
//! program is refused and left alone. The control database comes first: it says which installation this is.

use refinery::{Migration, Runner, Target};
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

use super::StoreError;
use super::query::{Query, query};
use crate::config::CONTROL;

mod placement_set {
    refinery::embed_migrations!("sql/migrations/placement");
}
mod control_set {
    refinery::embed_migrations!("sql/migrations/control");
}

/// Which coordinators a schema allows: a database whose `min_coordinator` is higher than this is refused.
pub const COORDINATOR_GENERATION: i32 = 1;

const CREATE_ROLES: Query = query!("migrate/create_roles");
const HISTORY_EXISTS: Query = query!("migrate/history_exists");
const REGISTER_PLACEMENT: Query = query!("migrate/register_placement");
const WRITE_IDENTITY: Query = query!("migrate/write_identity");
const IDENTITY: Query = query!("session/identity");

/// The key of the advisory lock; any number that nobody else uses.
const LOCK_KEY: i64 = 0x7275_6e68_6572_6400;

/// What was done, or would be done, to one set of one database.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct MigrationReport {
    /// The database's name in the configuration.
    pub database: String,
    /// `placement` or `control`.
    pub set: &'static str,
    /// The migrations that were pending, such as `V1__placement`.
    pub migrations: Vec<String>,
}

/// Migrates the databases, control first; with `dry_run` only lists what is pending.
///
/// # Errors
/// The first database that cannot be migrated; those before it are done, and running again goes on from there.
pub async fn migrate(
    databases: &[(String, tokio_postgres::Config)],
    dry_run: bool,
) -> Result<Vec<MigrationReport>, StoreError> {
    let mut reports = Vec::new();
    let mut control: Option<Session> = None;
    let mut installation = None;
    for (name, config) in databases {
        let mut session = Session::open(name, config).await?;
        let sets: &[Set] = if name == CONTROL { &[Set::Placement, Set::Control] } else { &[Set::Placement] };
        if !dry_run {
            session.lock().await?;
            session.batch(CREATE_ROLES.text, "creating the roles").await?;
            session.batch("CREATE SCHEMA IF NOT EXISTS runherd", "creating the schema").await?;
        }
        for set in sets {
            reports.push(session.migrate(*set, dry_run).await?);
        }
        if dry_run {
            continue;
        }
        let registrar = control.as_ref().unwrap_or(&session);
        let placement_id = registrar.register(name).await?;
        let id = session.identify(installation, placement_id).await?;
        session.unlock().await;
        installation.get_or_insert(id);
        if name == CONTROL {
            control = Some(session);
        }
    }
    Ok(reports)
}

#[derive(Clone, Copy)]
enum Set {
    Placement,
    Control,
}

impl Set {
    fn name(self) -> &'static str {
        match self {
            Self::Placement => "placement",
            Self::Control => "control",
        }
    }

    fn history(self) -> &'static str {
        match self {
            Self::Placement => "runherd.placement_migrations",
            Self::Control => "runherd.control_migrations",
        }
    }

    fn runner(self) -> Runner {
        let mut runner = match self {
            Self::Placement => placement_set::migrations::runner(),
            Self::Control => control_set::migrations::runner(),
        };
        runner.set_migration_table_name(self.history());
        runner.set_abort_divergent(true).set_abort_missing(true)
    }
}

/// One connection that migrates: without statement time-outs, since an index may take long.
struct Session {
    name: String,
    client: Client,
}

impl Session {
    async fn open(name: &str, config: &tokio_postgres::Config) -> Result<Self, StoreError> {
        let mut config = config.clone();
        config.application_name("runherd migrate").connect_timeout(std::time::Duration::from_secs(10));
        let (client, connection) =
            config.connect(NoTls).await.map_err(|error| StoreError::from_driver(name, "connecting", error))?;
        tokio::spawn(connection);
        Ok(Self { name: name.to_owned(), client })
    }

    async fn lock(&self) -> Result<(), StoreError> {
        let result = self.client.execute("SELECT pg_advisory_lock($1)", &[&LOCK_KEY]).await;
        result.map(drop).map_err(|error| self.sort("waiting for another migration to end", error))
    }

    /// Closing the connection would release the lock too; this lets the next one begin sooner.
    async fn unlock(&self) {
        drop(self.client.execute("SELECT pg_advisory_unlock($1)", &[&LOCK_KEY]).await);
    }

    async fn batch(&self, text: &str, doing: &str) -> Result<(), StoreError> {
        self.client.batch_execute(text).await.map_err(|error| self.sort(doing, error))
    }

    async fn migrate(&mut self, set: Set, dry_run: bool) -> Result<MigrationReport, StoreError> {
        let pending = self.pending(set).await?;
        let report = MigrationReport {
            database: self.name.clone(),
            set: set.name(),
            migrations: pending.iter().map(ToString::to_string).collect(),
        };
        if !dry_run && !pending.is_empty() {
            let result = set.runner().set_target(Target::Latest).run_async(&mut self.client).await;
            result.map_err(|error| self.failed("migrating", error))?;
        }
        Ok(report)
    }

    async fn pending(&mut self, set: Set) -> Result<Vec<Migration>, StoreError> {
        let runner = set.runner();
        let mut known = runner.get_migrations().clone();
        known.sort();
        let row = self.client.query_one(HISTORY_EXISTS.text, &[&set.history()]).await;
        let present: bool = row.map_err(|error| self.sort("reading the history", error))?.get("present");
        if !present {
            return Ok(known);
        }
        let applied = runner.get_applied_migrations_async(&mut self.client).await;
        let applied = applied.map_err(|error| self.failed("reading the history", error))?;
        let newest = known.last().map_or(0, Migration::version);
        if let Some(newer) = applied.iter().find(|migration| migration.version() > newest) {
            return Err(StoreError::Schema {
                database: self.name.clone(),
                reason: format!(
                    "its {} schema is at {newer}, newer than this program knows (V{newest}); use a newer runherd, nothing was changed",
                    set.name()
                ),
            });
        }
        known.retain(|migration| applied.iter().all(|done| done.version() != migration.version()));
        Ok(known)
    }

    async fn register(&self, name: &str) -> Result<i32, StoreError> {
        let row = self.client.query_one(REGISTER_PLACEMENT.text, &[&name]).await;
        Ok(row.map_err(|error| self.sort("registering the placement", error))?.get("placement_id"))
    }

    /// Writes the identity where there is none, and checks it.
    async fn identify(&self, installation: Option<Uuid>, placement_id: i32) -> Result<Uuid, StoreError> {
        let wanted = installation.unwrap_or_else(Uuid::new_v4);
        let write = self.client.execute(WRITE_IDENTITY.text, &[&wanted, &placement_id, &self.name]).await;
        write.map_err(|error| self.sort("writing the identity", error))?;
        let row = self.client.query_one(IDENTITY.text, &[]).await;
        let row = row.map_err(|error| self.sort("reading the identity", error))?;
        let (found, id): (Uuid, i32) = (row.get("installation_id"), row.get("placement_id"));
        if id == placement_id && installation.is_none_or(|installation| installation == found) {
            return Ok(found);
        }
        let (owner, holder): (String, Uuid) = (row.get("name"), found);
        Err(StoreError::Identity {
            database: self.name.clone(),
            reason: format!(
                "it is already placement {owner} ({id}) of installation {holder}; every placement needs a database of its own, in one installation"
            ),
        })
    }

    fn sort(&self, doing: &str, error: tokio_postgres::Error) -> StoreError {
        StoreError::from_driver(&self.name, doing, error)
    }

    fn failed(&self, doing: &str, error: refinery::Error) -> StoreError {
        StoreError::Failed { database: self.name.clone(), doing: doing.to_owned(), source: error.into() }
    }
}
