//! The log folder of a test: `target/test-logs/<test>-<random>/`. It stays if the test fails.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use uuid::Uuid;

thread_local! {
    /// A test has a thread of its own, and its main future is polled on it.
    static CURRENT: RefCell<Option<PathBuf>> = const { RefCell::new(None) };
}

/// The build folder (`target`, or what `CARGO_TARGET_DIR` says): three levels above a test's executable.
#[must_use]
pub fn target_folder() -> PathBuf {
    let executable = std::env::current_exe().expect("the path of the test's executable");
    executable.ancestors().nth(3).expect("a test's executable is in target/<profile>/deps").to_owned()
}

/// The folder of the test that runs on this thread, made at the first call.
///
/// # Panics
/// If the folder cannot be created.
#[must_use]
pub fn folder_of(test: &str) -> PathBuf {
    CURRENT.with_borrow_mut(|current| {
        let known = current.as_ref().filter(|folder| folder.is_dir());
        if let Some(folder) = known {
            return folder.clone();
        }
        let folder = target_folder().join("test-logs").join(format!("{test}-{}", random_suffix()));
        std::fs::create_dir_all(&folder).unwrap_or_else(|e| panic!("creating {}: {e}", folder.display()));
        *current = Some(folder.clone());
        folder
    })
}

/// Where to look when something failed on this thread.
#[must_use]
pub fn whereabouts() -> String {
    CURRENT.with_borrow(|current| {
        current.clone().unwrap_or_else(|| target_folder().join("test-logs")).display().to_string()
    })
}

/// The last lines of a log, for a failure's message; says so if there is none.
#[must_use]
pub fn tail(log: &Path, lines: usize) -> String {
    let Ok(bytes) = std::fs::read(log) else { return format!("(no {})", log.display()) };
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Eight hexadecimal digits, different each time.
pub(crate) fn random_suffix() -> String {
    Uuid::new_v4().simple().to_string()[..8].to_owned()
}

/// Whether `RUNHERD_TEST_KEEP` asks to keep what tests made, to look at it afterwards.
pub(crate) fn keep_everything() -> bool {
    std::env::var_os("RUNHERD_TEST_KEEP").is_some_and(|value| !value.is_empty() && value != "0")
}
