//! A running coordinator as its operator meets it: the control socket, the probe, and what systemd is told.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use runherd_actors::stages::STAGES;
use runherd_integration_tests::herd::{Herd, LIMIT};
use runherd_integration_tests::process::{CONTROL_SOCKET, Launch};
use runherd_integration_tests::servers::PrivatePostgres;
use runherd_integration_tests::world::Servers;
use runherd_integration_tests::{Process, World, until};
use serde_json::Value;
use tokio::net::UnixDatagram;
use uuid::Uuid;

/// A folder with a path that is short enough for sockets, gone at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("runherd-{}", Uuid::new_v4().simple()));
        fs::create_dir(&path).expect("a folder");
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("a plain path").to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A herd, and a coordinator's socket.
struct Station {
    herd: Herd,
    folder: Folder,
    socket: String,
}

impl Station {
    fn new(herd: Herd) -> Self {
        let folder = Folder::new();
        let socket = folder.path("own/control.sock");
        Self { herd, folder, socket }
    }

    fn coordinator(&self, name: &str) -> Launch {
        self.herd.launch(name, &["serve", "--set", &format!("runtime.control_socket={}", self.socket)])
    }

    async fn stages(&self, command: &[&str]) -> Output {
        self.herd.run(&[&["stages"], command, &["--socket", &self.socket, "--json"]].concat()).await
    }

    /// The answer to a command that must succeed.
    async fn told(&self, command: &[&str]) -> Value {
        let output = self.stages(command).await;
        assert_eq!(output.status.code(), Some(0), "{command:?}: {}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// Waits until the coordinator answers and is ready.
    async fn ready(&self) -> Value {
        until("the coordinator to be ready", LIMIT, async || {
            let output = self.stages(&["status"]).await;
            let status: Value = serde_json::from_slice(&output.stdout).ok()?;
            (status["not_ready"] == Value::Array(Vec::new())).then_some(status)
        })
        .await
    }

    /// Waits for two more whole cycles of the coordinator.
    async fn two_cycles(&self) {
        let cycles = async || self.told(&["status"]).await["runtime"]["totals"]["cycles"].as_u64().expect("a number");
        let before = cycles().await;
        until("two more cycles", LIMIT, async || (cycles().await >= before + 2).then_some(())).await;
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").permissions().mode() & 0o7777
}

#[tokio::test]
async fn an_operator_sees_and_steers_the_stages() {
    let station = Station::new(Herd::new("an_operator_sees").await);
    let herd = &station.herd;
    let _coordinator = station.coordinator("coordinator").start();
    let status = station.ready().await;
    let stages = status["runtime"]["stages"].as_array().expect("a list");
    for family in STAGES.iter().map(|stage| stage.name).chain(["presence", "reporting"]) {
        assert!(stages.iter().any(|stage| stage["family"] == family), "{family} is not in {status}");
    }
    until("every stage's first cycle to end well", LIMIT, async || {
        let status = station.told(&["status"]).await;
        let stages = status["runtime"]["stages"].as_array()?;
        stages.iter().all(|stage| stage["last"]["end"] == "ok").then_some(())
    })
    .await;
    let table = herd.succeed(&["stages", "status", "--socket", &station.socket]).await;
    assert!(table.contains("ready") && table.contains("outbox_publisher/control/1"), "{table}");

    let both = serde_json::json!({ "stages": ["shard_dispatcher/0", "shard_dispatcher/1"] });
    assert_eq!(station.told(&["pause", "shard_dispatcher"]).await, both);
    let run = herd.submit(10, &[]).await;
    let handed_out = format!("SELECT count(*) FROM runherd.active_chunks WHERE run_id = '{run}'");
    herd.until_number(&format!("SELECT count(*) FROM runherd.dispatch_cursors WHERE run_id = '{run}'"), 1).await;
    station.two_cycles().await;
    assert_eq!(herd.number(&handed_out).await, 0, "the dispatchers are paused");
    let table = herd.succeed(&["stages", "status", "--socket", &station.socket]).await;
    assert!(table.lines().any(|line| line.starts_with("shard_dispatcher/1") && line.contains("paused")), "{table}");

    // A tick passes the pause, once.
    assert_eq!(station.told(&["tick", "shard_dispatcher"]).await, both);
    herd.until_number(&handed_out, 10).await;
    let second = herd.submit(10, &[]).await;
    let handed_out = format!("SELECT count(*) FROM runherd.active_chunks WHERE run_id = '{second}'");
    herd.until_number(&format!("SELECT count(*) FROM runherd.dispatch_cursors WHERE run_id = '{second}'"), 1).await;
    station.two_cycles().await;
    assert_eq!(herd.number(&handed_out).await, 0, "they are paused still");
    station.told(&["resume", "shard_dispatcher"]).await;
    herd.until_number(&handed_out, 10).await;

    let unknown = station.stages(&["pause", "shard"]).await;
    assert_eq!(unknown.status.code(), Some(65));
    assert!(text(&unknown.stderr).contains("\"shard\""), "{}", text(&unknown.stderr));
    assert!(text(&unknown.stderr).contains("shard_dispatcher/0"), "the names that there are");
}

#[tokio::test]
async fn a_coordinator_that_waits_for_its_servers_says_so() {
    let station = Station::new(Herd::new("a_coordinator_that_waits").await);
    let nobody = ["--set", "control.url=postgresql://x@127.0.0.1:1/x", "--set", "runtime.probe_listen=127.0.0.1:0"];
    let mut coordinator = station.coordinator("coordinator").args(nobody).start();
    let address = probe_address(&mut coordinator).await;
    assert_eq!(get(&address, "/livez").await.map(|(status, _)| status), Some(200));
    let (status, body) = get(&address, "/readyz").await.expect("an answer");
    assert_eq!((status, &body["not_ready"][0]["what"]), (503, &Value::from("coordinator")), "{body}");
    let answer = station.stages(&["status"]).await;
    assert_eq!(answer.status.code(), Some(69));
    assert!(text(&answer.stderr).contains("waits for its servers"), "{}", text(&answer.stderr));
    coordinator.term();
    assert_eq!(coordinator.wait(LIMIT).await.code(), Some(0));
    assert!(!Path::new(&station.socket).exists(), "it leaves nothing behind");
}

#[tokio::test]
async fn without_a_coordinator_it_says_where_it_looked() {
    let station = Station::new(Herd::new("without_a_coordinator").await);
    let nobody = station.stages(&["status"]).await;
    assert_eq!(nobody.status.code(), Some(69));
    for word in [&station.socket, "--socket", "runtime.control_socket"] {
        assert!(text(&nobody.stderr).contains(word), "{word}: {}", text(&nobody.stderr));
    }
}

#[tokio::test]
async fn the_socket_is_the_owners_alone_and_outlives_no_coordinator() {
    let station = Station::new(Herd::new("the_socket_is_the_owners").await);
    let path = Path::new(&station.socket);
    let mut killed = station.coordinator("killed").start();
    station.ready().await;
    assert_eq!((mode(path), mode(path.parent().expect("a folder"))), (0o600, 0o700));

    let mut second = station.coordinator("second").start();
    assert_eq!(second.wait(LIMIT).await.code(), Some(78), "the path was set, and is taken");
    assert!(second.stderr().contains("another process listens there"), "{}", second.stderr());

    killed.kill();
    assert!(path.exists(), "nobody removed it");
    let mut successor = station.coordinator("successor").start();
    let status = station.ready().await;
    assert_eq!(status["pid"], successor.pid());
    successor.term();
    assert_eq!(successor.wait(LIMIT).await.code(), Some(0));
    assert!(!path.exists(), "a drained coordinator removes its socket");

    fs::set_permissions(path.parent().expect("a folder"), fs::Permissions::from_mode(0o755)).expect("it is ours");
    let mut wide = station.coordinator("wide").start();
    assert_eq!(wide.wait(LIMIT).await.code(), Some(78));
    assert!(wide.stderr().contains("mode 0755") && wide.stderr().contains("chmod 0700"), "{}", wide.stderr());
}

#[tokio::test]
async fn at_the_usual_place_the_second_coordinator_runs_without_a_socket() {
    let station = Station::new(Herd::new("at_the_usual_place").await);
    let session = station.folder.path("session");
    fs::create_dir(&session).expect("a folder");
    let usual =
        |name: &str| station.herd.launch(name, &["serve"]).env(CONTROL_SOCKET, "").env("XDG_RUNTIME_DIR", &session);
    let mut first = usual("first").start();
    first.wait_for_line("control socket listens", LIMIT).await;
    let mut second = usual("second").start();
    let refusal = second.wait_for_line("no control socket", LIMIT).await;
    assert!(refusal.contains("another process listens there"), "{refusal}");
    second.wait_for_line("run begins", LIMIT).await;
}

/// Where the probe listens: the system chose the port.
async fn probe_address(coordinator: &mut Process) -> String {
    let line = coordinator.wait_for_line("the probe listens", LIMIT).await;
    let line: Value = serde_json::from_str(&line).expect("a line of JSON");
    line["address"].as_str().expect("an address").to_owned()
}

/// The status and the body of an answer.
async fn get(address: &str, path: &str) -> Option<(u16, Value)> {
    let url = format!("http://{address}{path}");
    let asked = tokio::task::spawn_blocking(move || {
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(5)))
            .build()
            .new_agent();
        let mut response = agent.get(&url).call().ok()?;
        Some((response.status().as_u16(), response.body_mut().read_json().ok()?))
    });
    asked.await.expect("it does not panic")
}

#[tokio::test]
async fn the_probe_tells_readiness_from_life() {
    let postgres = PrivatePostgres::up("the_probe_tells").await;
    let world = World::on("the_probe_tells", Servers::from_env().with_postgres(&postgres)).await;
    let herd = Herd::in_world(world, &[]).await;
    let mut coordinator = herd.launch("coordinator", &["serve", "--set", "runtime.probe_listen=127.0.0.1:0"]).start();
    let address = probe_address(&mut coordinator).await;
    let readiness = async |expected: u16| {
        until(format!("/readyz to answer {expected}"), LIMIT, async || {
            get(&address, "/readyz").await.filter(|(status, _)| *status == expected)
        })
        .await
        .1
    };
    assert_eq!(readiness(200).await["ready"], true);
    postgres.stop().await;
    let body = readiness(503).await;
    assert!(body["not_ready"][0]["what"].is_string() && body["not_ready"][0]["why"].is_string(), "{body}");
    assert_eq!(get(&address, "/livez").await.map(|(status, _)| status), Some(200), "a restart would help nothing");
    postgres.start().await;
    readiness(200).await;
    assert_eq!(get(&address, "/").await.map(|(status, _)| status), Some(404));
}

#[tokio::test]
async fn systemd_is_told_how_it_goes() {
    let herd = Herd::new("systemd_is_told").await;
    let folder = Folder::new();
    let path = folder.path("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    let serve = herd.launch("coordinator", &["serve"]).env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "3000000");
    let mut coordinator = serve.start();
    let mut told = Vec::new();
    let mut until_told = async |word: &str, times: usize| {
        let mut found = 0;
        while found < times {
            let mut message = [0; 4096];
            let received = tokio::time::timeout(LIMIT, socket.recv(&mut message)).await;
            let length = received.unwrap_or_else(|_| panic!("no {word}")).expect("a message");
            let lines: Vec<String> = text(&message[..length]).lines().map(str::to_owned).collect();
            found += usize::from(lines.iter().any(|line| line == word));
            told.extend(lines);
        }
    };
    until_told("READY=1", 1).await;
    until_told("WATCHDOG=1", 3).await;
    coordinator.term();
    until_told("STOPPING=1", 1).await;
    assert_eq!(coordinator.wait(LIMIT).await.code(), Some(0));
    let waiting = told.iter().position(|line| line == "STATUS=waiting for its servers");
    let ready = told.iter().position(|line| line == "READY=1");
    let well = told.iter().position(|line| line.starts_with("STATUS=") && line.ends_with("all well"));
    assert!(waiting < ready && ready < well, "{told:?}");
    assert_eq!(told.iter().filter(|line| line.starts_with("READY") || line.starts_with("STOPPING")).count(), 2);
}
