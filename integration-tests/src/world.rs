//! A test's world: databases and a RabbitMQ virtual host that nobody else uses, gone when the test ends.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use tokio_postgres::{Client, NoTls};
use url::Url;

use crate::logs;
use crate::rabbit::Rabbit;
use crate::servers::{PrivatePostgres, PrivateRabbit};

/// What removing a world may take; servers that a test broke do not answer.
const CLEANUP_LIMIT: Duration = Duration::from_secs(30);

/// The servers that a world is made on.
#[derive(Clone, Debug)]
pub struct Servers {
    /// PostgreSQL, as a user that may create databases.
    pub pg_url: String,
    /// RabbitMQ; the virtual host in it does not matter.
    pub amqp_url: String,
    /// RabbitMQ's management API.
    pub amqp_api_url: String,
}

impl Servers {
    /// The servers that the environment names.
    ///
    /// # Panics
    /// If it names none, with what to do.
    #[must_use]
    pub fn from_env() -> Self {
        let variable = |name: &str| {
            std::env::var(name).ok().filter(|value| !value.is_empty()).unwrap_or_else(|| {
                panic!(
                    "{name} is not set: this test needs PostgreSQL and RabbitMQ. `make test` starts both and runs \
                     all tests; or run `make up`, then `eval \"$(deploy/dev/servers.sh env)\"`, then cargo test"
                )
            })
        };
        Self {
            pg_url: variable("RUNHERD_TEST_PG_URL"),
            amqp_url: variable("RUNHERD_TEST_AMQP_URL"),
            amqp_api_url: variable("RUNHERD_TEST_AMQP_API_URL"),
        }
    }

    /// The same, with a RabbitMQ of the test's own.
    #[must_use]
    pub fn with_rabbit(self, rabbit: &PrivateRabbit) -> Self {
        Self { amqp_url: rabbit.amqp_url().to_owned(), amqp_api_url: rabbit.api_url().to_owned(), ..self }
    }

    /// The same, with a PostgreSQL of the test's own.
    #[must_use]
    pub fn with_postgres(self, postgres: &PrivatePostgres) -> Self {
        Self { pg_url: postgres.url().to_owned(), ..self }
    }
}

/// A database of a world.
#[derive(Clone, Debug)]
pub struct Database {
    /// Its name on the server.
    pub name: String,
    /// Its URL, with the user that made it.
    pub url: String,
}

/// Databases, a virtual host and a log folder for one test. Dropping it removes them, also when the test panics; the
/// log folder stays if it does. With `RUNHERD_TEST_KEEP=1` in the environment everything stays.
#[derive(Debug)]
pub struct World {
    id: String,
    servers: Servers,
    database: Database,
    /// Names of all databases to drop.
    databases: Mutex<Vec<String>>,
    amqp_url: String,
    rabbit: Rabbit,
    logs: PathBuf,
}

impl World {
    /// A world on the servers that the environment names. The test's name becomes part of all names.
    ///
    /// # Panics
    /// If a server is missing or refuses.
    pub async fn new(test: &str) -> Self {
        Self::on(test, Servers::from_env()).await
    }

    /// A world on these servers.
    ///
    /// # Panics
    /// If a server is missing or refuses.
    pub async fn on(test: &str, servers: Servers) -> Self {
        let logs = logs::folder_of(test);
        // PostgreSQL cuts names after 63 bytes: keep enough room for what comes behind the test's name.
        let short: String = test.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_').take(32).collect();
        let id = format!("t_{}_{}", short.to_ascii_lowercase(), logs::random_suffix());
        let mut amqp = Url::parse(&servers.amqp_url).expect("RUNHERD_TEST_AMQP_URL is a URL");
        amqp.set_path(&id);
        let rabbit = Rabbit::new(&servers.amqp_api_url, &id);
        let world = Self {
            database: database(&servers, &id),
            databases: Mutex::default(),
            amqp_url: amqp.to_string(),
            rabbit,
            logs,
            servers,
            id,
        };
        world.create(&world.database).await;
        world.rabbit.create_vhost().await;
        world
    }

    /// One more empty database on the same server, for instance a placement.
    ///
    /// # Panics
    /// If the server refuses.
    pub async fn extra_database(&self, label: &str) -> Database {
        let extra = database(&self.servers, &format!("{}_{label}", self.id));
        self.create(&extra).await;
        extra
    }

    async fn create(&self, database: &Database) {
        // Noted first: a test that is cancelled right after the statement still drops it.
        self.databases.lock().expect("no panic while locked").push(database.name.clone());
        let server = connect(&self.servers.pg_url).await;
        server
            .batch_execute(&format!("CREATE DATABASE \"{}\" TEMPLATE template0", database.name))
            .await
            .unwrap_or_else(|e| panic!("creating database {}: {e:?}", database.name));
    }

    /// The world's first database.
    #[must_use]
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// The URL of the world's first database.
    #[must_use]
    pub fn pg_url(&self) -> &str {
        &self.database.url
    }

    /// The URL of the world's virtual host.
    #[must_use]
    pub fn amqp_url(&self) -> &str {
        &self.amqp_url
    }

    /// RabbitMQ's management API, for the world's virtual host.
    #[must_use]
    pub fn rabbit(&self) -> &Rabbit {
        &self.rabbit
    }

    /// The folder for the logs of whatever the test starts.
    #[must_use]
    pub fn logs(&self) -> &Path {
        &self.logs
    }

    /// A new connection to a database.
    ///
    /// # Panics
    /// If the server refuses.
    pub async fn pg(&self, database: &Database) -> Client {
        connect(&database.url).await
    }

    /// Ends all connections to a database, as an administrator would; returns how many there were.
    ///
    /// # Panics
    /// If the server refuses.
    pub async fn terminate_backends(&self, database: &Database) -> i64 {
        let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = $1";
        let server = connect(&self.servers.pg_url).await;
        server.query_one(sql, &[&database.name]).await.expect("ending the connections").get(0)
    }
}

fn database(servers: &Servers, name: &str) -> Database {
    let mut url = Url::parse(&servers.pg_url).expect("RUNHERD_TEST_PG_URL is a URL");
    url.set_path(name);
    Database { name: name.to_owned(), url: url.to_string() }
}

async fn connect(url: &str) -> Client {
    let (client, connection) =
        tokio_postgres::connect(url, NoTls).await.unwrap_or_else(|e| panic!("connecting to {url}: {e:?}"));
    // Ends with the client; what goes wrong with the connection, the client's calls report.
    tokio::spawn(connection);
    client
}

impl Drop for World {
    fn drop(&mut self) {
        let failed = std::thread::panicking();
        if failed || logs::keep_everything() {
            eprintln!("world {}: logs are in {}", self.id, self.logs.display());
        } else {
            // What it cannot remove does no harm.
            let _ = std::fs::remove_dir_all(&self.logs);
        }
        if logs::keep_everything() {
            eprintln!("world {}: kept: {} and {}", self.id, self.database.url, self.amqp_url);
            return;
        }
        let databases = std::mem::take(&mut *self.databases.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
        let (pg_url, rabbit, id) = (self.servers.pg_url.clone(), self.rabbit.clone(), self.id.clone());
        // A thread with a runtime of its own: Drop may run inside the test's runtime, while it unwinds.
        let cleanup = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let vhost = rabbit.request("DELETE", format!("vhosts/{}", rabbit.vhost()), None);
                let (databases, vhost) = tokio::join!(
                    tokio::time::timeout(CLEANUP_LIMIT, drop_databases(&pg_url, &databases)),
                    tokio::time::timeout(CLEANUP_LIMIT, vhost),
                );
                vhost??;
                databases?
            })?;
            anyhow::Ok(())
        });
        if let Ok(Err(e)) = cleanup.join() {
            eprintln!("world {id}: not all of it could be removed: {e:#}");
        }
    }
}

async fn drop_databases(pg_url: &str, databases: &[String]) -> anyhow::Result<()> {
    let (server, connection) = tokio_postgres::connect(pg_url, NoTls).await?;
    tokio::spawn(connection);
    for name in databases {
        server.batch_execute(&format!("DROP DATABASE IF EXISTS \"{name}\" WITH (FORCE)")).await?;
    }
    Ok(())
}
