//! What is wrong with a configuration, where it was written, and what to do about it.
//!
//! A message names the place first (`runherd.toml:12`, a variable, a flag), as compilers do, and never shows a
//! password.

use std::fmt;
use std::path::PathBuf;

use super::keys::variable_of;

/// The exit code of a process that ends because of its configuration (`EX_CONFIG` of sysexits).
pub const EXIT_CONFIG: u8 = 78;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Built in.
    Default,
    /// The configuration file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// An environment variable.
    Variable(String),
    /// `--set` on the command line.
    Flag(String),
    /// The command itself: an option of its own, or what it needs.
    Command,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Variable(name) => write!(f, "variable {name}"),
            Self::Flag(key) => write!(f, "--set {key}"),
            Self::Command => f.write_str("command line"),
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// No such key.
    #[error("{key}: unknown key{}", did_you_mean(nearest.as_deref()))]
    UnknownKey {
        /// As it was written.
        key: String,
        /// A known key that looks like it.
        nearest: Option<String>,
    },
    /// A section for a stage that does not exist.
    #[error(
        "stages.{stage}: no stage of this name is registered{}",
        nearest.as_ref().map(|name| format!("; did you mean stages.{name}?")).unwrap_or_default()
    )]
    UnknownStage {
        /// As it was written.
        stage: String,
        /// A registered stage that looks like it.
        nearest: Option<String>,
    },
    /// A value was given to a section, or keys to a value.
    #[error("{key}: {why}")]
    Shape {
        /// As it was written.
        key: String,
        /// What it is.
        why: String,
    },
    /// The value is of another type.
    #[error("{key}: expected {expected}, found {found}")]
    WrongType {
        /// The key.
        key: String,
        /// What it takes.
        expected: String,
        /// What stands there.
        found: String,
    },
    /// The value is of the right type and not allowed.
    #[error("{key} = {value}: out of range; allowed: {allowed}")]
    OutOfRange {
        /// The key.
        key: String,
        /// What stands there.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// A URL that cannot be used.
    #[error("{key} = {url}: {why}")]
    BadUrl {
        /// The key.
        key: String,
        /// The URL, redacted.
        url: String,
        /// What is wrong with it.
        why: String,
    },
    /// Two settings do not go together.
    #[error("{key}: {why}")]
    Conflict {
        /// One of them.
        key: String,
        /// The other.
        other: Option<String>,
        /// Why, with the other's value.
        why: String,
    },
    /// The value is right in itself, and this machine does not let it be used.
    #[error("{key} = {value}: {why}")]
    Unusable {
        /// The key.
        key: String,
        /// What stands there.
        value: String,
        /// Why, and what to do about it.
        why: String,
    },
    /// A command needs a setting that has no default.
    #[error(
        "{key} is not set: write it into the configuration file (section [{}], key {}), set the variable {}, or pass --set {key}=…",
        section_of(key),
        name_of(key),
        variable_of(key)
    )]
    NotSet {
        /// The key.
        key: String,
    },
    /// A file cannot be read.
    #[error("cannot read {}: {why}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        why: String,
    },
    /// The file is not TOML.
    #[error("not valid TOML: {why}")]
    Syntax {
        /// What the parser said, without the text itself (it may hold a password).
        why: String,
    },
    /// A `--set` that is not `section.key=value`.
    #[error("{text:?} is not of the form section.key=value")]
    BadFlag {
        /// What was given, redacted.
        text: String,
    },
    /// What the checks did not foresee and the deserializer refused.
    #[error("{0}")]
    Refused(String),
}

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map(|key| format!("; did you mean {key}?")).unwrap_or_default()
}

fn section_of(key: &str) -> &str {
    key.rsplit_once('.').map_or("", |(section, _)| section)
}

fn name_of(key: &str) -> &str {
    key.rsplit_once('.').map_or(key, |(_, name)| name)
}

/// A fault and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where it was written; nowhere for what is missing.
    pub origin: Option<Origin>,
    /// What is wrong.
    pub fault: Fault,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Some(origin) => write!(f, "{origin}: {}", self.fault),
            None => self.fault.fmt(f),
        }
    }
}

/// Everything that is wrong with a configuration, at least one thing. A process that ends because of it exits with
/// [`EXIT_CONFIG`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// In the order of the sources.
    pub problems: Vec<Problem>,
}

impl ConfigError {
    /// One fault with no place.
    pub(crate) fn of(fault: Fault) -> Self {
        Self { problems: vec![Problem { origin: None, fault }] }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.problems.iter().map(ToString::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for ConfigError {}
