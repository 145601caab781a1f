//! The SQL files: each is prepared against the migrated schema, each is used, and the schema is the one that was reviewed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use runherd::config::{Config, Sources};
use runherd_integration_tests::World;
use tokio_postgres::SimpleQueryMessage;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

/// Every file under `folder` with this ending.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.extension().is_some_and(|extension| extension == ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// `stage/verb` → text, for each file under `sql/queries/`.
fn queries() -> BTreeMap<String, String> {
    let folder = root().join("sql/queries");
    let name = |path: &Path| {
        let relative = path.strip_prefix(&folder).expect("below the folder").with_extension("");
        relative.to_str().expect("a plain name").to_owned()
    };
    files(&folder, "sql").iter().map(|path| (name(path), fs::read_to_string(path).expect("text"))).collect()
}

async fn migrated(test: &str) -> World {
    let world = World::new(test).await;
    let sets = vec![format!("control.url={}", world.pg_url())];
    let config = Config::load(&Sources { sets, ..Sources::default() }).expect("a configuration").config;
    runherd::store::migrate::migrate(&config.databases().expect("databases"), false).await.expect("migrated");
    world
}

#[tokio::test]
async fn every_query_can_be_prepared_and_says_what_it_promises() {
    let world = migrated("every_query_can_be_prepared").await;
    let client = world.pg(world.database()).await;
    let queries = queries();
    assert!(queries.len() > 50, "only {} queries were found", queries.len());
    let mut wrong = Vec::new();
    for (name, text) in &queries {
        if !text.starts_with("-- ") {
            wrong.push(format!("{name}: has no header"));
        }
        // A DO block is a statement that cannot be prepared; the migrations run it.
        if text.contains("\nDO $$") {
            continue;
        }
        match client.prepare(text).await {
            Ok(statement) => {
                let highest = (1..=20).filter(|n| text.contains(&format!("${n}"))).max().unwrap_or(0);
                if statement.params().len() != highest {
                    wrong.push(format!(
                        "{name}: {} parameters are prepared, {highest} are named",
                        statement.params().len()
                    ));
                }
            }
            Err(error) => wrong.push(format!("{name}: {error:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// With the plans that a coordinator's sessions fix, over tables without statistics: the worst it can meet.
#[tokio::test]
async fn what_is_reported_is_read_by_index() {
    let world = migrated("what_is_reported_is_read_by_index").await;
    let client = world.pg(world.database()).await;
    for plan in ["seqscan", "hashjoin", "mergejoin", "bitmapscan"] {
        client.batch_execute(&format!("SET enable_{plan} = off")).await.expect("a setting");
    }
    client.batch_execute("SET plan_cache_mode = force_generic_plan").await.expect("a setting");
    for (name, text) in queries().iter().filter(|(name, _)| name.starts_with("reporting/")) {
        let prepare = format!("DEALLOCATE ALL; PREPARE report AS {text}");
        client.batch_execute(&prepare).await.expect("it can be prepared");
        let rows = client.simple_query("EXPLAIN (COSTS OFF) EXECUTE report(1000000)").await.expect("a plan");
        let plan: Vec<String> = rows
            .iter()
            .filter_map(|row| match row {
                SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
                _ => None,
            })
            .collect();
        let scans = plan.iter().filter(|line| line.contains("Seq Scan"));
        let unexpected: Vec<_> = scans.filter(|line| !line.contains("run_intents")).collect();
        assert!(unexpected.is_empty(), "{name}: {unexpected:?} in\n{}", plan.join("\n"));
    }
}

#[test]
fn every_query_is_used_and_every_use_has_a_query() {
    let mut code = String::new();
    for file in files(&root().join("src"), "rs") {
        code.push_str(&fs::read_to_string(file).expect("text"));
    }
    let queries = queries();
    let orphans: Vec<_> = queries.keys().filter(|name| !code.contains(&format!("query!(\"{name}\")"))).collect();
    assert!(orphans.is_empty(), "no code uses {orphans:?}");
}

/// The dump without what differs from server to server.
fn plain(dump: &str) -> String {
    let noise = |line: &&str| {
        !(line.starts_with("--") || line.starts_with("SET ") || line.starts_with('\\') || line.is_empty())
    };
    let mut text: String = dump.lines().filter(noise).flat_map(|line| [line, "\n"]).collect();
    text = text.replace("SELECT pg_catalog.set_config('search_path', '', false);\n", "");
    text
}

/// `RUNHERD_UPDATE=1` writes the file anew.
#[tokio::test]
async fn the_schema_is_the_reviewed_one() {
    let world = migrated("the_schema_is_the_reviewed_one").await;
    let major: i32 = {
        let row = world.pg(world.database()).await.query_one("SHOW server_version_num", &[]).await.expect("a version");
        row.get::<_, String>(0).parse::<i32>().expect("a number") / 10_000
    };
    let of_this_version = PathBuf::from(format!("/usr/lib/postgresql/{major}/bin/pg_dump"));
    let program = if of_this_version.exists() { of_this_version } else { PathBuf::from("pg_dump") };
    let dump = Command::new(&program)
        .args(["--schema-only", "--no-owner", "--schema=runherd", "--dbname", world.pg_url()])
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}; it comes with PostgreSQL's client programs", program.display()));
    assert!(dump.status.success(), "{}", String::from_utf8_lossy(&dump.stderr));
    let found = plain(&String::from_utf8(dump.stdout).expect("UTF-8"));
    let golden = root().join("sql/schema.golden.sql");
    let header = "-- The schema after all migrations, for reviews. Written by RUNHERD_UPDATE=1 cargo test --test sql; PostgreSQL 15.\n";
    if std::env::var_os("RUNHERD_UPDATE").is_some() {
        fs::write(&golden, format!("{header}{found}")).expect("the golden file can be written");
    }
    let expected = plain(&fs::read_to_string(&golden).expect("sql/schema.golden.sql"));
    // Another major version prints the same schema in other words.
    if major == 15 {
        let first = found.lines().zip(expected.lines()).find(|(found, expected)| found != expected);
        assert!(
            found == expected,
            "sql/schema.golden.sql differs from the migrated schema, first at {first:?}; if that is meant, write it anew \
             with RUNHERD_UPDATE=1"
        );
    }
}
