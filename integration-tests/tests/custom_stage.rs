//! Stages that are not built in: the coordinator of `examples/overdue_runs` as a process, and what is refused at the start.

use runherd::config::{Config, Sources};
use runherd::coordinator::{Coordinator, StartError};
use runherd_actors::runtime::report::CycleReport;
use runherd_actors::runtime::stage::StageSpec;
use runherd_actors::runtime::testkit::{Answer, Script};
use runherd_integration_tests::Process;
use runherd_integration_tests::herd::{Echo, Herd, LIMIT};
use runherd_integration_tests::process::{Launch, overdue_runs_binary};
use serde_json::Value;
use slog::{Discard, Logger, o};

/// The example's coordinator, with these settings over the herd's.
fn example(herd: &Herd, settings: &[&str]) -> Launch {
    let launch = Process::program(&herd.world, "overdue_runs", overdue_runs_binary());
    launch.args(herd.settings()).arg("log.level=debug").args(settings)
}

/// The lines of its log with this message, from this stage (or about this actor).
fn lines(process: &Process, msg: &str, about: &str) -> Vec<Value> {
    let lines = process.stderr();
    let parsed = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    parsed.filter(|line| line["msg"] == msg && (line["stage"] == about || line["actor"] == about)).collect()
}

#[tokio::test]
async fn an_old_run_is_warned_about_once_by_a_supervised_stage() {
    let herd = Herd::new("an_old_run_is_warned_about").await;
    // Nobody works on it: it stays open. The other one is young.
    let old = herd.submit(3, &[]).await;
    let aged = format!(
        "WITH aged AS (UPDATE runherd.runs SET created_at = now() - interval '2 hours' WHERE run_id = '{old}' RETURNING 1) SELECT count(*) FROM aged"
    );
    assert_eq!(herd.number(&aged).await, 1);
    let young = herd.submit(3, &[]).await;
    let settings =
        ["stages.overdue_runs.limit=1h", "stages.overdue_runs.period=100ms", "runtime.report_interval=500ms"];
    let mut coordinator = example(&herd, &settings).start();

    let warning = coordinator.wait_for_line("run is overdue", LIMIT).await;
    let warning: Value = serde_json::from_str(&warning).expect("JSON");
    assert_eq!(warning["run_id"], old.to_string());
    assert_eq!(
        (&warning["level"], &warning["stage"], &warning["queue"]),
        (&"warning".into(), &"overdue_runs".into(), &"q".into())
    );
    assert!(warning["age_s"].as_i64().is_some_and(|age| (7_200..7_500).contains(&age)), "{warning}");

    // It is listed like a built-in stage: its cycles with their counts, its mailbox.
    let mark = coordinator.mark();
    coordinator.wait_for_line_after(mark, "\"actor\":\"overdue_runs\"", LIMIT).await;
    let cycles = lines(&coordinator, "stage cycle", "overdue_runs");
    assert!(cycles.len() > 2, "more than two periods have passed: {cycles:?}");
    assert_eq!((&cycles[0]["overdue"], &cycles[0]["reason"]), (&1.into(), &"period".into()));
    assert!(lines(&coordinator, "mailbox", "overdue_runs")[0]["mailbox_handled"].as_i64() > Some(0));

    // The coordinator does its work beside it, and ends as it should.
    let worker = herd.worker(Echo::default());
    assert_eq!((herd.ended(old).await, herd.ended(young).await), ("succeeded".to_owned(), "succeeded".to_owned()));
    worker.drain().await;
    coordinator.term();
    assert_eq!(coordinator.wait(LIMIT).await.code(), Some(0), "{}", coordinator.stderr());
    assert_eq!(lines(&coordinator, "run is overdue", "overdue_runs").len(), 1, "told once, and of the old run only");
    herd.verify().await;
}

#[tokio::test]
async fn its_section_is_refused_with_its_place() {
    let herd = Herd::new("its_section_is_refused").await;
    let file = herd.file("bad.toml", "[stages.overdue_runs]\nlimit = \"1h\"\nlimitt = \"2h\"\n");
    for (setting, said) in [
        ("", "bad.toml:3: stages.overdue_runs.limitt: unknown field `limitt`, expected `limit` or `batch`"),
        ("stages.overdue_runs.period=1ms", "stages.overdue_runs.period = 1ms: out of range; allowed: 10ms to 1day"),
    ] {
        let launch = example(&herd, &[setting].iter().copied().filter(|set| !set.is_empty()).collect::<Vec<_>>());
        let mut refused = launch.env("RUNHERD_CONFIG", &file).start();
        assert_eq!(refused.wait(LIMIT).await.code(), Some(78), "{}", refused.stderr());
        assert!(refused.stderr().contains(said), "{}", refused.stderr());
    }
    let near = (
        "stages.overdu_runs.limit=1h",
        "stages.overdu_runs: no stage of this name is registered; did you mean stages.overdue_runs?",
    );
    let mut refused = example(&herd, &[near.0]).start();
    assert_eq!(refused.wait(LIMIT).await.code(), Some(78), "{}", refused.stderr());
    assert!(refused.stderr().contains(near.1), "{}", refused.stderr());
}

#[tokio::test]
async fn the_plain_coordinator_knows_no_such_sections() {
    let herd = Herd::new("the_plain_coordinator").await;
    let flag = ["--set", "stages.overdue_runs.limit=1h"];
    // Known before it connects to anything.
    let nowhere = ["--set", "control.url=postgresql://nobody@127.0.0.1:1/none"];
    let refused = herd.run(&[&["serve"], &flag[..], &nowhere[..]].concat()).await;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(78), "{said}");
    assert!(
        said.contains("--set stages.overdue_runs.limit: stages.overdue_runs: no stage of this name is registered"),
        "{said}"
    );
    // A file may be shared with other commands: they leave these sections alone.
    let checked = herd.run(&[&["config", "check"], &flag[..]].concat()).await;
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    let printed = herd.succeed(&[&["config", "print"], &flag[..]].concat()).await;
    assert!(printed.contains("stages.overdue_runs.limit = \"1h\"  # --set stages.overdue_runs.limit"), "{printed}");
}

/// Starts a coordinator that must refuse its stages.
async fn refused(config: Config, specs: Vec<StageSpec>) -> StartError {
    let log = Logger::root(Discard, o!());
    let builder = specs.into_iter().fold(Coordinator::builder(config, log), Coordinator::stage);
    // It owns its runtime, which nobody may do inside another one.
    let run = tokio::task::spawn_blocking(|| std::thread::spawn(|| builder.run()).join());
    run.await.expect("it ends").expect("it does not panic").expect_err("it is refused")
}

#[tokio::test]
async fn stages_that_do_not_fit_are_refused_at_the_start() {
    let herd = Herd::new("stages_that_do_not_fit").await;
    let spec = |name: &str| Script::new([Answer::Report(CycleReport::default())]).spec(name);
    for (specs, said) in [
        (vec![spec("finalizer")], "stage \"finalizer\": a built-in stage has this name"),
        (vec![spec("shard_dispatcher/9")], "stage \"shard_dispatcher/9\": a built-in stage has this name"),
        (vec![spec("presence")], "stage \"presence\": a built-in stage has this name"),
        (vec![spec("scheduler")], "is reserved"),
        (vec![spec("mine"), spec("mine")], "is registered twice"),
        (vec![spec("mine").after(["finaliser"])], "to run after \"finaliser\", but no stage of that family"),
        (vec![spec("a").after(["b"]), spec("b").after(["a", "finalizer"])], "in a loop: a after b after a"),
        (vec![spec("mine").every(std::time::Duration::from_millis(1))], "has a period of 1ms: the shortest is 10ms"),
    ] {
        let error = refused(herd.config(), specs).await;
        assert_eq!(error.exit_code(), 78, "{error}");
        assert!(error.to_string().contains(said), "{error}");
    }
}

#[tokio::test]
async fn a_built_in_name_has_no_section_below_stages() {
    let herd = Herd::new("a_built_in_name").await;
    let sets = [herd.settings(), vec!["stages.finalizer.period=1s".to_owned()]].concat();
    let config = Config::load(&Sources { sets, ..Sources::default() }).expect("the settings").config;
    let error = refused(config, vec![Script::default().spec("mine")]).await;
    assert_eq!(error.exit_code(), 78);
    assert!(error.to_string().contains("stages.finalizer: it is built in: its section is [finalizer]"), "{error}");
}
