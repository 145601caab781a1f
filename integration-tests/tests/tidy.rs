//! The rooms of the house keep to themselves.

use std::fs;
use std::path::{Path, PathBuf};

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

fn sources() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let files: Vec<PathBuf> =
        ["src", "actors/src", "integration-tests"].iter().flat_map(|folder| rust_files(&root.join(folder))).collect();
    assert!(files.len() > 100, "the sources have moved: {}", files.len());
    files
}

#[test]
fn amqp_stays_behind_one_door() {
    for file in sources() {
        let text = fs::read_to_string(&file).expect("text");
        let inside = file.components().any(|part| part.as_os_str() == "broker");
        let uses = text.contains("use amiquip") || text.contains("amiquip::");
        assert!(inside || !uses || file.ends_with("tests/tidy.rs"), "{} uses amiquip", file.display());
    }
}

#[test]
fn files_can_be_read_in_one_sitting() {
    let long: Vec<String> = sources()
        .into_iter()
        .filter_map(|file| {
            let lines = fs::read_to_string(&file).expect("text").lines().count();
            (lines > 560).then(|| format!("{}: {lines} lines", file.display()))
        })
        .collect();
    assert!(long.is_empty(), "{}", long.join("\n"));
}
