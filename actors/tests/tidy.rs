//! The package keeps to its place: the runtime knows nothing about runs, and nothing here knows a database or a broker.

use std::fs;
use std::path::{Path, PathBuf};

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder of the package") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

/// The code without comments and white space, so that no way of writing a path escapes.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).expect("a source file");
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.flat_map(|line| line.chars().filter(|c| !c.is_whitespace())).collect()
}

#[test]
fn the_runtime_knows_nothing_about_runs() {
    let files = rust_files(&package().join("src/runtime"));
    assert!(files.len() > 10, "the runtime has moved: {files:?}");
    for file in files {
        let code = code(&file);
        for room in ["stages", "model"] {
            for import in [format!("crate::{room}"), format!("usecrate::{{{room}"), format!("runherd_actors::{room}")] {
                assert!(!code.contains(&import), "{} imports {room}", file.display());
            }
        }
        assert!(!code.contains("usecrate::{"), "{}: import from crate one path at a time", file.display());
    }
}

#[test]
fn no_database_and_no_broker() {
    const FORBIDDEN: [&str; 16] = [
        "amiquip", "amqprs", "bb8", "deadpool", "diesel", "lapin", "libpq", "mysql", "postgres", "r2d2", "rdkafka",
        "redis", "refinery", "rusqlite", "sea-orm", "sqlx",
    ];
    let manifest = fs::read_to_string(package().join("Cargo.toml")).unwrap();
    for line in manifest.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        let dependency = line.split(['=', '.', ' ']).next().unwrap_or_default();
        let forbidden =
            FORBIDDEN.iter().find(|name| dependency.contains(**name) || line.contains(&format!("\"{name}")));
        if !line.starts_with("description") {
            assert_eq!(forbidden, None, "actors/Cargo.toml: {line}");
        }
    }
}

#[test]
fn files_stay_readable_in_one_sitting() {
    for folder in ["src", "tests", "examples"] {
        for file in rust_files(&package().join(folder)) {
            let lines = fs::read_to_string(&file).unwrap().lines().count();
            assert!(lines <= 550, "{} has {lines} lines", file.display());
        }
    }
}
