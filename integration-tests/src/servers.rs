//! Servers of a test's own, for tests that stop, kill or freeze one, or make it raise an alarm: the others share theirs.
//!
//! `deploy/dev/servers.sh` does the work. Each server is an instance of its own there; it goes when the value is
//! dropped, and also when the test's process ends without dropping it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::logs;

/// One server, whichever it is.
#[derive(Debug)]
struct Private {
    service: &'static str,
    instance: PathBuf,
    logs: PathBuf,
    /// What `servers.sh env` printed: names and values.
    variables: Vec<(String, String)>,
}

/// The repository's folder. Cargo names the package's folder when it runs a test; what was compiled in is for a test that
/// is run by hand (and is another clone's if two of them share a target folder).
fn clone_folder() -> PathBuf {
    let package =
        std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    package.parent().expect("this package is in a folder of the repository").to_owned()
}

fn servers_script(instance: &Path) -> Command {
    let mut command = Command::new(clone_folder().join("deploy/dev/servers.sh"));
    command.arg("--instance").arg(instance).stdin(Stdio::null());
    // These would name servers to use instead of starting some.
    for variable in ["RUNHERD_TEST_PG_URL", "RUNHERD_TEST_AMQP_URL", "RUNHERD_TEST_AMQP_API_URL"] {
        command.env_remove(variable);
    }
    command
}

/// Runs it and returns what it printed.
fn run(mut command: Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let Output { status, stdout, stderr } = output;
    assert!(status.success(), "{command:?}: {status}\n{}", String::from_utf8_lossy(&stderr));
    String::from_utf8_lossy(&stdout).into_owned()
}

async fn run_async(command: Command) -> String {
    match tokio::task::spawn_blocking(move || run(command)).await {
        Ok(printed) => printed,
        Err(e) => std::panic::resume_unwind(e.into_panic()),
    }
}

impl Private {
    async fn up(test: &str, service: &'static str) -> Self {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let pid = std::process::id();
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let instance = clone_folder().join(format!(".run/private.{pid}.{number}"));
        let mut private = Self { service, instance, logs: logs::folder_of(test), variables: Vec::new() };
        let mut up = servers_script(&private.instance);
        up.args(["--only", service, "--fsync", "off", "--while", &pid.to_string(), "up"]);
        run_async(up).await;
        let mut env = servers_script(&private.instance);
        env.arg("env");
        private.variables = parse_exports(&run_async(env).await);
        private
    }

    fn variable(&self, name: &str) -> &str {
        let found = self.variables.iter().find(|(known, _)| known == name);
        found.map_or_else(|| panic!("servers.sh env did not print {name}"), |(_, value)| value)
    }

    /// `servers.sh <verb> <service>`
    async fn tell(&self, verb: &str) {
        let mut command = servers_script(&self.instance);
        command.args([verb, self.service]);
        run_async(command).await;
    }
}

/// The names and values of `export NAME='value'` lines.
fn parse_exports(printed: &str) -> Vec<(String, String)> {
    let assignments = printed.lines().filter_map(|line| line.strip_prefix("export ")?.split_once('='));
    assignments.map(|(name, value)| (name.to_owned(), value.trim_matches('\'').to_owned())).collect()
}

impl Drop for Private {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.instance.join(format!("{}.log", self.service));
            let number = self.instance.extension().unwrap_or_default().to_string_lossy().into_owned();
            let copy = self.logs.join(format!("{}.{number}.log", self.service));
            if std::fs::copy(log, &copy).is_ok() {
                eprintln!("the log of this test's own {}: {}", self.service, copy.display());
            }
        } else if !logs::keep_everything() {
            // For a test without a world. It stays if there is anything in it.
            let _ = std::fs::remove_dir(&self.logs);
        }
        let mut down = servers_script(&self.instance);
        match down.arg("down").output() {
            Ok(output) if output.status.success() => {}
            other => eprintln!("{}: not taken down: {other:?}", self.instance.display()),
        }
    }
}

/// A PostgreSQL of the test's own, without fsync (a killed server loses nothing by that).
#[derive(Debug)]
pub struct PrivatePostgres(Private);

impl PrivatePostgres {
    /// Makes it and waits until it takes connections. The test's name is for its logs.
    ///
    /// # Panics
    /// If it does not start, with the end of its log.
    pub async fn up(test: &str) -> Self {
        Self(Private::up(test, "postgres").await)
    }

    /// The URL of its database `postgres`, as its superuser.
    #[must_use]
    pub fn url(&self) -> &str {
        self.0.variable("RUNHERD_TEST_PG_URL")
    }

    /// Starts it again after [`stop`](Self::stop) or [`kill`](Self::kill): same port, same data.
    pub async fn start(&self) {
        self.0.tell("start").await;
    }

    /// Stops it in order, ending all connections.
    pub async fn stop(&self) {
        self.0.tell("stop").await;
    }

    /// SIGKILL, to all its processes.
    pub async fn kill(&self) {
        self.0.tell("kill").await;
    }

    /// SIGSTOP, to all its processes: connections stay open and nothing answers.
    pub async fn pause(&self) {
        self.0.tell("pause").await;
    }

    /// SIGCONT, after [`pause`](Self::pause).
    pub async fn resume(&self) {
        self.0.tell("continue").await;
    }
}

/// A RabbitMQ of the test's own.
#[derive(Debug)]
pub struct PrivateRabbit(Private);

impl PrivateRabbit {
    /// Makes it and waits until it takes connections (about five seconds). The test's name is for its logs.
    ///
    /// # Panics
    /// If it does not start, with the end of its log.
    pub async fn up(test: &str) -> Self {
        Self(Private::up(test, "rabbitmq").await)
    }

    /// The URL of its default virtual host, as an administrator.
    #[must_use]
    pub fn amqp_url(&self) -> &str {
        self.0.variable("RUNHERD_TEST_AMQP_URL")
    }

    /// The URL of its management API, as an administrator.
    #[must_use]
    pub fn api_url(&self) -> &str {
        self.0.variable("RUNHERD_TEST_AMQP_API_URL")
    }

    /// Starts it again after [`stop`](Self::stop) or [`kill`](Self::kill): same port, same data.
    pub async fn start(&self) {
        self.0.tell("start").await;
    }

    /// Stops it in order, closing all connections (about six seconds).
    pub async fn stop(&self) {
        self.0.tell("stop").await;
    }

    /// SIGKILL.
    pub async fn kill(&self) {
        self.0.tell("kill").await;
    }

    /// SIGSTOP: connections stay open and nothing answers.
    pub async fn pause(&self) {
        self.0.tell("pause").await;
    }

    /// SIGCONT, after [`pause`](Self::pause).
    pub async fn resume(&self) {
        self.0.tell("continue").await;
    }

    /// Raises the memory alarm, which blocks every connection that publishes, or ends it.
    pub async fn memory_alarm(&self, on: bool) {
        self.ctl(&["set_vm_memory_high_watermark", if on { "0" } else { "0.4" }]).await;
    }

    /// `rabbitmqctl` for this server; returns what it printed.
    ///
    /// # Panics
    /// If it fails, with what it said.
    pub async fn ctl(&self, arguments: &[&str]) -> String {
        let mut command = servers_script(&self.0.instance);
        command.arg("ctl").args(arguments);
        run_async(command).await
    }
}
