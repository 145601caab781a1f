use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::keys::SECTIONS;
use super::*;

mod stages;

/// A file of its own for each test, removed at the end of it.
struct TempFile(PathBuf);

impl TempFile {
    fn with(text: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("runherd-config-{}-{n}.toml", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        // It is in the way of nobody.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn from_file(text: &str) -> (TempFile, Result<Loaded, ConfigError>) {
    let file = TempFile::with(text);
    let loaded = Config::load(&Sources { file: Some(file.0.clone()), ..Sources::default() });
    (file, loaded)
}

/// What is said about a file, with its path written as `F`.
fn complaints(text: &str) -> Vec<String> {
    let (file, loaded) = from_file(text);
    let path = file.0.display().to_string();
    loaded.unwrap_err().problems.iter().map(|problem| problem.to_string().replace(&path, "F")).collect()
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn from_environment(environment: &[(&str, &str)]) -> Result<Loaded, ConfigError> {
    Config::load(&Sources { environment: pairs(environment), ..Sources::default() })
}

fn from_flags(sets: &[&str]) -> Result<Loaded, ConfigError> {
    Config::load(&Sources { sets: sets.iter().map(|set| (*set).to_owned()).collect(), ..Sources::default() })
}

fn message(loaded: Result<Loaded, ConfigError>) -> String {
    loaded.unwrap_err().to_string()
}

#[test]
fn nothing_at_all_is_valid_and_is_the_default() {
    let loaded = Config::load(&Sources::default()).unwrap();
    assert_eq!(loaded.config, Config::default());
    assert_eq!(loaded.file, None);
    assert_eq!(loaded.origin("pool.size"), &Origin::Default);
}

#[test]
fn each_layer_wins_over_the_one_before() {
    let file = TempFile::with(
        "[pool]\nsize = 10\nacquire_timeout = \"1s\"\nconnect_timeout = \"1s\"\n[cycle]\ninterval = \"10ms\"\njitter_percent = 1\n",
    );
    let sources = Sources {
        file: Some(file.0.clone()),
        environment: pairs(&[
            ("RUNHERD__POOL__ACQUIRE_TIMEOUT", "2s"),
            ("RUNHERD__POOL__CONNECT_TIMEOUT", "2s"),
            ("RUNHERD__CYCLE__INTERVAL", "20ms"),
            ("RUNHERD__CYCLE__JITTER_PERCENT", ""),
            ("OTHER__POOL__SIZE", "99"),
            ("RUNHERD_CONFIG", "/nonexistent"),
        ]),
        sets: vec!["pool.connect_timeout=3s".to_owned(), "cycle.interval = 30ms".to_owned()],
        overrides: pairs(&[("cycle.interval", "40ms")]),
        ..Sources::default()
    };
    let loaded = Config::load(&sources).unwrap();
    let Config { pool, cycle, .. } = &loaded.config;
    assert_eq!((pool.size, cycle.jitter_percent), (10, 1));
    assert_eq!(pool.acquire_timeout, Duration::from_secs(2));
    assert_eq!(pool.connect_timeout, Duration::from_secs(3));
    assert_eq!(cycle.interval, Duration::from_millis(40));
    assert_eq!(loaded.origin("pool.size"), &Origin::File { path: file.0.clone(), line: 2 });
    assert_eq!(loaded.origin("cycle.jitter_percent"), &Origin::File { path: file.0.clone(), line: 7 });
    assert_eq!(loaded.origin("pool.acquire_timeout"), &Origin::Variable("RUNHERD__POOL__ACQUIRE_TIMEOUT".to_owned()));
    assert_eq!(loaded.origin("pool.connect_timeout"), &Origin::Flag("pool.connect_timeout".to_owned()));
    assert_eq!(loaded.origin("cycle.interval"), &Origin::Command);
    assert_eq!(loaded.origin("log.level"), &Origin::Default);
}

#[test]
fn the_last_flag_wins_and_with_adds_an_override() {
    assert_eq!(from_flags(&["pool.size=1", "pool.size=2"]).unwrap().config.pool.size, 2);
    let sources = Sources { sets: vec!["pool.size=1".to_owned()], ..Sources::default() }.with("pool.size", "3");
    assert_eq!(Config::load(&sources).unwrap().config.pool.size, 3);
}

#[test]
fn every_kind_of_value_can_come_from_the_environment() {
    let loaded = from_environment(&[
        ("RUNHERD__CONTROL__URL", "postgresql://u@h1:5432,h2:5433/db?target_session_attrs=read-write"),
        ("RUNHERD__PLACEMENTS__EU_1__URL", "postgresql://u@h/eu1"),
        ("RUNHERD__BROKER__URL", "amqp://u@h/v"),
        ("RUNHERD__BROKER__PASSWORD_FILE", "/run/secrets/broker"),
        ("RUNHERD__BROKER__QUEUE_TYPE", "classic"),
        ("RUNHERD__POLICY__RETRY_DELAY", "1m 30s"),
        ("RUNHERD__SUBMISSION__PART_BYTES", "8388608"),
    ])
    .unwrap();
    let config = &loaded.config;
    assert_eq!(config.control_connection().unwrap().get_hosts().len(), 2);
    assert_eq!(config.placements["eu_1"].url.as_ref().unwrap().expose(), "postgresql://u@h/eu1");
    assert_eq!(config.broker.password_file.as_deref(), Some(Path::new("/run/secrets/broker")));
    assert_eq!(config.broker.queue_type, QueueType::Classic);
    assert_eq!(config.policy.retry_delay, Duration::from_secs(90));
    assert_eq!(config.submission.part_bytes, 8_388_608);
}

#[test]
fn the_file_is_looked_for_in_order() {
    let (asked, named, found) = (
        TempFile::with("[pool]\nsize = 1\n"),
        TempFile::with("[pool]\nsize = 2\n"),
        TempFile::with("[pool]\nsize = 3\n"),
    );
    let search = vec![PathBuf::from("/nonexistent/runherd.toml"), found.0.clone()];
    let environment = vec![("RUNHERD_CONFIG".to_owned(), named.0.display().to_string())];
    let mut sources = Sources { file: Some(asked.0.clone()), search, environment, ..Sources::default() };
    let size = |sources: &Sources| Config::load(sources).unwrap().config.pool.size;
    assert_eq!(size(&sources), 1);
    sources.file = None;
    assert_eq!(size(&sources), 2);
    sources.environment.clear();
    assert_eq!(size(&sources), 3);
    sources.search.pop();
    assert_eq!(size(&sources), Config::default().pool.size);
}

#[test]
fn a_file_that_was_named_must_exist() {
    let sources = Sources { file: Some(PathBuf::from("/nonexistent/x.toml")), ..Sources::default() };
    assert!(message(Config::load(&sources)).starts_with("cannot read /nonexistent/x.toml: No such file"));
    assert!(
        message(from_environment(&[("RUNHERD_CONFIG", "/nonexistent/y")])).starts_with("cannot read /nonexistent/y")
    );
}

#[test]
fn unknown_keys_are_named_with_their_line_and_a_suggestion() {
    let text = "[pool]\nsise = 4\n\n[polcy]\nwindow = 5\n[nothing_like_it]\n[cycle]\nbatch_of_cheese = 1\n\
                [placements.eu1]\nurl = \"postgresql://h/eu1\"\nulr = 1\n[log]\nsweep_batch = 1\n";
    assert_eq!(
        complaints(text),
        [
            "F:2: pool.sise: unknown key; did you mean pool.size?",
            "F:5: polcy.window: unknown key; did you mean policy.window?",
            "F:6: nothing_like_it: unknown key",
            "F:8: cycle.batch_of_cheese: unknown key",
            "F:11: placements.eu1.ulr: unknown key; did you mean placements.eu1.url?",
            "F:13: log.sweep_batch: unknown key; did you mean finalizer.sweep_batch?",
        ]
    );
    assert_eq!(
        message(from_environment(&[("RUNHERD__POOL__SISE", "1")])),
        "variable RUNHERD__POOL__SISE: pool.sise: unknown key; did you mean pool.size?"
    );
    assert_eq!(message(from_flags(&["pol.size=1"])), "--set pol.size: pol.size: unknown key; did you mean pool.size?");
}

#[test]
fn inline_tables_and_dotted_keys_have_lines_too() {
    let text = "pool = { size = 3 }\nlog.level = \"debug\"\n\n[cycle]\n\ninterval = \"2s\"\n";
    let (file, loaded) = from_file(text);
    let loaded = loaded.unwrap();
    for (key, line) in [("pool.size", 1), ("log.level", 2), ("cycle.interval", 6)] {
        assert_eq!(loaded.origin(key), &Origin::File { path: file.0.clone(), line }, "{key}");
    }
    assert_eq!((loaded.config.pool.size, loaded.config.log.level), (3, LogLevel::Debug));
}

#[test]
fn wrong_types_say_what_was_expected_and_found() {
    let text = "[pool]\nsize = \"8\"\nacquire_timeout = 5\nconnect_timeout = \"5\"\n[broker]\nqueue_type = \"quorom\"\n\
                password_file = 1\n[cycle]\njitter_percent = 1.5\nstage_budget = [1]\n[cycle.deadline]\nx = 1\n";
    assert_eq!(
        complaints(text),
        [
            "F:2: pool.size: expected a whole number, found the text \"8\"",
            "F:3: pool.acquire_timeout: expected a duration such as \"30s\" or \"1m 30s\", found the number 5",
            "F:4: pool.connect_timeout: expected a duration such as \"30s\" or \"1m 30s\", found the text \"5\"",
            "F:6: broker.queue_type: expected one of \"quorum\", \"classic\", found the text \"quorom\"",
            "F:7: broker.password_file: expected a text (the path of a file), found the number 1",
            "F:9: cycle.jitter_percent: expected a whole number, found a number with a fraction",
            "F:10: cycle.stage_budget: expected a duration such as \"30s\" or \"1m 30s\", found a list",
            "F:11: cycle.deadline: expected a duration such as \"30s\" or \"1m 30s\", found a section",
        ]
    );
    assert_eq!(
        message(from_environment(&[("RUNHERD__POOL__SIZE", "many")])),
        "variable RUNHERD__POOL__SIZE: pool.size: expected a whole number, found \"many\""
    );
    assert_eq!(
        message(from_flags(&["runtime.probe_listen=localhost"])),
        "--set runtime.probe_listen: runtime.probe_listen: expected an IP address with a port (127.0.0.1:8642), \
         found \"localhost\""
    );
}

#[test]
fn values_out_of_range_say_what_is_allowed() {
    let text = "[pool]\nsize = 201\n[cycle]\njitter_percent = -1\ninterval = \"9ms\"\n[policy]\nwindow = 0\n";
    assert_eq!(
        complaints(text),
        [
            "F:2: pool.size = 201: out of range; allowed: 1 to 200",
            "F:4: cycle.jitter_percent = -1: out of range; allowed: 0 to 50",
            "F:5: cycle.interval = 9ms: out of range; allowed: 10ms to 1h",
            "F:7: policy.window = 0: out of range; allowed: 1 to 1000000",
        ]
    );
    let long = format!("/{}", "x".repeat(107));
    assert_eq!(
        message(from_flags(&[&format!("runtime.control_socket={long}")])),
        format!(
            "--set runtime.control_socket: runtime.control_socket = {long}: out of range; \
             allowed: a path of at most 107 bytes, or none"
        )
    );
    assert_eq!(
        message(from_flags(&["pool.size=99999999999999999999999"])),
        "--set pool.size: pool.size = 99999999999999999999999: out of range; allowed: 1 to 200"
    );
}

#[test]
fn urls_are_checked_and_never_show_their_password() {
    let text = "[control]\nurl = \"postgresql://u:hunter2@h:5432\"\n[placements.a]\nurl = \"mysql://u:hunter2@h/db\"\n\
                [placements.b]\nurl = \"postgresql:///db\"\n[placements.c]\nurl = \"postgresql://u:hunter2@h:port/db\"\n\
                [broker]\nurl = \"amqps://u:hunter2@h\"\n";
    let all = complaints(text);
    assert!(!all.join("\n").contains("hunter2"), "{all:?}");
    let names_no = |what| format!("it names no {what}; write postgresql://user@host:5432/database");
    assert_eq!(all[0], format!("F:2: control.url = postgresql://u:***@h:5432: {}", names_no("database")));
    assert_eq!(all[1], "F:4: placements.a.url = mysql://u:***@h/db: its scheme must be postgresql://");
    assert_eq!(all[2], format!("F:6: placements.b.url = postgresql:///db: {}", names_no("host")));
    assert!(
        all[3].starts_with("F:8: placements.c.url = postgresql://u:***@h:port/db: not a PostgreSQL URL ("),
        "{}",
        all[3]
    );
    assert_eq!(
        all[4],
        "F:10: broker.url = amqps://u:***@h: its scheme must be amqp://; this build speaks no TLS to the broker"
    );
    assert_eq!(
        message(from_flags(&["broker.url=http://h"])),
        "--set broker.url: broker.url = http://h: its scheme must be amqp://"
    );
    let number = complaints("[control]\nurl = 1\n");
    assert!(number[0].contains("expected a text (postgresql://user@host:5432/database)"), "{number:?}");
}

#[test]
fn a_syntax_error_has_its_line_and_does_not_quote_it() {
    let all = complaints("[control]\n\nurl = \"postgresql://u:hunter2@h/db\nx = 1\n");
    assert_eq!(all.len(), 1);
    assert!(all[0].starts_with("F:3: not valid TOML: "), "{all:?}");
    assert!(!all[0].contains("hunter2"), "{all:?}");
    let twice = complaints("[pool]\nsize = 1\nsize = 2\n");
    assert!(twice[0].starts_with("F:3: not valid TOML: ") && twice[0].contains("duplicate"), "{twice:?}");
}

#[test]
fn flags_must_have_their_form() {
    for (flag, said) in [
        ("pool.size", "\"pool.size\" is not of the form section.key=value"),
        ("postgresql://u:hunter2@h/db?x=1", "\"postgresql://u:***@h/db?x=1\" is not of the form section.key=value"),
        ("pool=1", "--set pool: pool: a section, not a key: it takes no value of its own"),
        ("pool.size.x=1", "--set pool.size.x: pool.size.x: pool.size is a key, not a section"),
        ("=1", "--set : : unknown key"),
    ] {
        assert_eq!(message(from_flags(&[flag])), said, "{flag}");
    }
}

#[test]
fn placements_have_simple_names_and_a_url_and_are_not_called_control() {
    let taken = "the name control is reserved for the control database; its settings are in [control]";
    assert_eq!(
        complaints("[placements.control]\nurl = \"postgresql://h/db\"\n"),
        [format!("F:1: placements.control: {taken}")]
    );
    assert_eq!(
        message(from_flags(&["placements.control.url=postgresql://h/db"])),
        format!("--set placements.control.url: placements.control.url: {taken}")
    );
    assert_eq!(
        complaints("[placements.Eu1]\nurl = \"postgresql://h/db\"\n"),
        ["F:1: placements.Eu1: a placement's name has 1 to 63 lower-case letters, digits, - and _"]
    );
    assert!(complaints("[placements.eu1]\n")[0].starts_with("placements.eu1.url is not set: "));
    let (_file, loaded) = from_file("[placements.eu-1]\nurl = \"postgresql://h/db\"\n");
    assert_eq!(loaded.unwrap().config.placements.len(), 1);
    assert!(from_flags(&["placements.eu-1.url=postgresql://h/db"]).is_ok());
}

#[test]
fn two_names_for_one_database_are_refused() {
    let text = "[control]\nurl = \"postgresql://u@h/db\"\n[placements.a]\nurl = \"postgresql://v:x@h/db\"\n";
    assert_eq!(complaints(text), ["F:4: placements.a.url: the same database as the placement control"]);
}

#[test]
fn settings_must_go_together() {
    let text = "[session]\nidle_in_transaction_session_timeout = \"10s\"\nstatement_timeout = \"1m\"\n\
                [finalizer]\nlease = \"5s\"\n[outbox_publisher]\nlease = \"30s\"\n[broker]\nheartbeat = \"1500ms\"\n\
                [policy]\nretry_delay = \"1h\"\n[submission]\npart_bytes = 1000\n[runtime]\nrestarts_total = 1\n";
    let all = complaints(text).join("\n");
    for said in [
        "F:3: session.statement_timeout: 1m is not below cycle.deadline (1m): ",
        "F:2: session.idle_in_transaction_session_timeout: 10s is not below finalizer.lease (5s): ",
        "F:7: broker.confirm_deadline: 30s is not below outbox_publisher.lease (30s): ",
        "F:9: broker.heartbeat: AMQP takes whole seconds",
        "F:11: policy.retry_delay: 1h is above retry_delay_max (10m)",
        "F:13: submission.part_bytes: 1000 is below submission.payload_limit_bytes (262144)",
        "F:15: runtime.restarts_total: 1 is below runtime.restarts (10)",
    ] {
        assert!(all.contains(said), "{said}\n{all}");
    }
    assert!(
        message(from_flags(&["finalizer.look_delay_min=3s"])).contains("3s is above finalizer.look_delay_max (2s)")
    );
}

#[test]
fn what_is_not_set_says_how_to_set_it() {
    let config = Config::default();
    assert_eq!(
        config.control_url().unwrap_err().to_string(),
        "control.url is not set: write it into the configuration file (section [control], key url), \
         set the variable RUNHERD__CONTROL__URL, or pass --set control.url=…"
    );
    assert!(config.broker_url().unwrap_err().to_string().contains("RUNHERD__BROKER__URL"));
    assert!(config.placement_connection("eu1").unwrap_err().to_string().contains("RUNHERD__PLACEMENTS__EU1__URL"));
}

#[test]
fn passwords_come_from_their_files() {
    let password = TempFile::with("p@ss/w:rd\n");
    let path = password.0.display().to_string();
    let loaded = from_flags(&[
        "control.url=postgresql://u:old@h/db",
        "placements.eu1.url=postgresql://u@h/eu1",
        &format!("placements.eu1.password_file={path}"),
        "broker.url=amqp://u@h/v",
        &format!("broker.password_file={path}"),
    ])
    .unwrap();
    let databases = loaded.config.databases().unwrap();
    assert_eq!(databases.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["control", "eu1"]);
    assert_eq!(databases[0].1.get_password(), Some(b"old".as_slice()));
    assert_eq!(databases[1].1.get_password(), Some(b"p@ss/w:rd".as_slice()));
    assert_eq!(loaded.config.broker_url().unwrap().expose(), "amqp://u:p%40ss%2Fw%3Ard@h/v");
    drop(password);
    assert!(loaded.config.broker_url().unwrap_err().to_string().starts_with("cannot read "));
}

#[test]
fn debug_output_hides_passwords() {
    let loaded = from_flags(&["control.url=postgresql://u:hunter2@h/db"]).unwrap();
    assert!(!format!("{loaded:?} {:?}", loaded.settings()).contains("hunter2"));
}

fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/config").join(name)
}

/// With `RUNHERD_UPDATE=1` the file is written instead.
#[test]
fn full_toml_is_the_reference() {
    let path = sample("full.toml");
    if std::env::var_os("RUNHERD_UPDATE").is_some() {
        std::fs::write(&path, reference()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap();
    assert!(written == reference(), "deploy/config/full.toml is not up to date: run this test with RUNHERD_UPDATE=1");
}

#[test]
fn full_toml_sets_every_key_to_its_default() {
    let path = sample("full.toml");
    let loaded = Config::load(&Sources { file: Some(path), ..Sources::default() }).unwrap();
    assert_eq!(loaded.config, Config::default());
    for setting in loaded.settings() {
        let written = matches!(setting.origin, Origin::File { .. });
        assert_eq!(written, !setting.value.is_null(), "{}", setting.key);
    }
}

/// The examples in comments are valid too, and with them the file names each key of the table exactly once.
#[test]
fn full_toml_names_every_key_once() {
    let unset = ["# [", "# url =", "# password_file =", "# control_socket =", "# probe_listen ="];
    let example = |line: &str| unset.iter().any(|start| line.starts_with(start));
    let text: String = reference()
        .lines()
        .map(|line| if example(line) { line.trim_start_matches("# ") } else { line })
        .fold(String::new(), |text, line| text + line + "\n");
    let (file, loaded) = from_file(&text);
    let loaded = loaded.unwrap();
    let keys = SECTIONS.iter().map(|section| section.keys.len()).sum::<usize>();
    let settings = loaded.settings();
    assert_eq!(settings.len(), keys);
    for setting in settings {
        assert!(matches!(&setting.origin, Origin::File { path, .. } if *path == file.0), "{}", setting.key);
    }
}

/// The table of keys and the structs agree.
#[test]
fn the_table_lists_what_the_structs_hold() {
    let values = serde_json::to_value(Config::default()).unwrap();
    let mut held: Vec<&str> = values.as_object().unwrap().keys().map(String::as_str).collect();
    held.retain(|name| *name != "placements");
    let mut listed: Vec<&str> =
        SECTIONS.iter().map(|section| section.name).filter(|name| !name.contains('*')).collect();
    listed.sort_unstable();
    assert_eq!(held, listed);
    for section in SECTIONS.iter().filter(|section| !section.name.contains('*')) {
        assert_eq!(values[section.name].as_object().unwrap().len(), section.keys.len(), "{}", section.name);
        for key in &section.keys {
            assert!(key.help.trim().ends_with('.'), "{}.{}", section.name, key.name);
        }
    }
}

#[test]
fn minimal_toml_is_all_that_is_needed() {
    let loaded = Config::load(&Sources { file: Some(sample("minimal.toml")), ..Sources::default() }).unwrap();
    assert!(loaded.config.control_connection().is_ok());
    assert!(loaded.config.broker_url().is_ok());
    assert_eq!(loaded.config.pool, PoolConfig::default());
}
