//! Puts the sources together, and remembers where each value came from.
//!
//! Every value is looked up in the table of keys first, at its own place, so that all mistakes are found at once and
//! each is named with its file and line, variable or flag; the `config` crate, which merges the layers, knows no
//! places. It reads nothing that was not checked.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use config::{Environment, File, FileFormat, ValueKind};
use toml_edit::{Document, Item, TableLike};

use super::checks::conflicts;
use super::keys::{Key, Meaning, Raw, SECTIONS, meaning, nearest};
use super::problem::{ConfigError, Fault, Origin, Problem};
use super::secret::redact;
use super::stages::{self, StageSections};
use super::{CONTROL, Config};

/// The variable that names the configuration file.
const FILE_VARIABLE: &str = "RUNHERD_CONFIG";
/// What the variables that set keys begin with.
const PREFIX: &str = "RUNHERD__";

/// Where values are taken from, the weakest first. (No `Debug`: the environment may hold passwords.)
#[derive(Clone, Default)]
pub struct Sources {
    /// The file that was asked for on the command line (`--config`). It must exist.
    pub file: Option<PathBuf>,
    /// Files that are looked for, in this order, when neither the command line nor `RUNHERD_CONFIG` names one.
    pub search: Vec<PathBuf>,
    /// The environment. An empty variable counts as unset.
    pub environment: Vec<(String, String)>,
    /// `--set section.key=value`, the last one wins.
    pub sets: Vec<String>,
    /// What the command itself sets, as (key, value): its own options, or what it needs. They win over all others.
    pub overrides: Vec<(String, String)>,
}

impl Sources {
    /// The sources of an ordinary process: its environment, `./runherd.toml`, `/etc/runherd/runherd.toml`.
    #[must_use]
    pub fn of_process(file: Option<PathBuf>, sets: Vec<String>) -> Self {
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
            .collect();
        let search = ["runherd.toml", "/etc/runherd/runherd.toml"].map(PathBuf::from).to_vec();
        Self { file, search, environment, sets, overrides: Vec::new() }
    }

    /// The same sources, and one setting that wins over all others.
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.overrides.push((key.into(), value.into()));
        self
    }

    fn file(&self) -> Option<PathBuf> {
        let named = || self.environment.iter().find(|(name, value)| name == FILE_VARIABLE && !value.is_empty());
        self.file
            .clone()
            .or_else(|| named().map(|(_, path)| PathBuf::from(path)))
            .or_else(|| self.search.iter().find(|path| path.exists()).cloned())
    }
}

/// A valid configuration that remembers where its values came from.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// The file that was read.
    pub file: Option<PathBuf>,
    origins: BTreeMap<String, Origin>,
}

/// One setting that is in force.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// `section.key`.
    pub key: String,
    /// Its value, without passwords; null when it is not set.
    pub value: serde_json::Value,
    /// Where the value came from.
    pub origin: Origin,
}

impl Loaded {
    /// Where the value of `key` came from.
    #[must_use]
    pub fn origin(&self, key: &str) -> &Origin {
        self.origins.get(key).unwrap_or(&Origin::Default)
    }

    /// Every setting, in the order of the reference file; then what is set for stages that are not built in.
    #[must_use]
    pub fn settings(&self) -> Vec<Setting> {
        // Passwords are left out when a configuration is serialised.
        let values = serde_json::to_value(&self.config).unwrap_or_default();
        let setting = |section: &str, key: &Key| {
            let path = format!("{section}.{}", key.name);
            let value = values.pointer(&format!("/{}", path.replace('.', "/"))).cloned().unwrap_or_default();
            Setting { origin: self.origin(&path).clone(), key: path, value }
        };
        let mut settings = Vec::new();
        for section in SECTIONS.iter() {
            let names = match section.name.strip_suffix('*') {
                Some(table) => self.config.placements.keys().map(|name| format!("{table}{name}")).collect(),
                None => vec![section.name.to_owned()],
            };
            settings.extend(names.iter().flat_map(|name| section.keys.iter().map(|key| setting(name, key))));
        }
        settings.extend(self.config.stages.settings());
        settings
    }
}

impl Config {
    /// Reads all sources, checks every value and how they go together.
    ///
    /// # Errors Everything that is wrong, each with its place. Conflicts between settings are looked for when each
    /// setting is right in itself.
    pub fn load(sources: &Sources) -> Result<Loaded, ConfigError> {
        let mut gathered = Gathered::default();
        let file = sources.file();
        let text = file.as_deref().map(|path| gathered.read(path)).unwrap_or_default();
        gathered.variables(&sources.environment);
        gathered.flags(&sources.sets);
        for (key, value) in &sources.overrides {
            gathered.text(key, value, Origin::Command);
        }
        gathered.into_loaded(file, &text)
    }
}

/// What the sources hold, and what is wrong with it.
#[derive(Default)]
struct Gathered {
    problems: Vec<Problem>,
    origins: BTreeMap<String, Origin>,
    /// The accepted variables, for the `config` crate.
    environment: config::Map<String, String>,
    /// The accepted flags and overrides, for the `config` crate; the last one wins.
    overrides: Vec<(String, String)>,
    /// The sections of stages that are not built in, merged already.
    stages: StageSections,
}

impl Gathered {
    fn problem(&mut self, origin: Option<Origin>, fault: Fault) {
        self.problems.push(Problem { origin, fault });
    }

    /// Where a conflict came from: of two settings, the one that somebody made.
    fn origin_of(&self, key: &str, other: Option<&str>) -> Option<Origin> {
        let other = || self.origins.get(other?);
        self.origins.get(key).or_else(other).cloned()
    }

    /// Looks one value up and checks it; says whether it is right.
    fn value(&mut self, path: &[String], raw: &Raw, origin: Origin) -> bool {
        let key = path.join(".");
        let checked = match meaning(path) {
            Meaning::Key(known) => placement_name(path).and_then(|()| known.rule.check(&key, raw)),
            Meaning::Section => {
                let why = "a section, not a key: it takes no value of its own".to_owned();
                Err(Fault::Shape { key: key.clone(), why })
            }
            Meaning::InsideKey(outer) => {
                Err(Fault::Shape { key: key.clone(), why: format!("{outer} is a key, not a section") })
            }
            Meaning::Unknown => Err(Fault::UnknownKey { key: key.clone(), nearest: nearest(path) }),
        };
        match checked {
            Ok(()) => {
                self.origins.insert(key, origin);
                true
            }
            Err(fault) => {
                self.problem(Some(origin), fault);
                false
            }
        }
    }

    /// A value for a stage that is not built in.
    fn stage_value(&mut self, path: &[String], raw: &Raw, kind: ValueKind, origin: Origin) {
        match self.stages.set(path, raw, kind, origin.clone()) {
            Ok(()) => drop(self.origins.insert(path.join("."), origin)),
            Err(fault) => self.problem(Some(origin), fault),
        }
    }

    /// The same, as a text of the environment or the command line.
    fn stage_text(&mut self, path: &[String], value: &str, origin: Origin) {
        self.stage_value(path, &Raw::Untyped(value.to_owned()), ValueKind::String(value.to_owned()), origin);
    }

    /// A text of the command line for `key`.
    fn text(&mut self, key: &str, value: &str, origin: Origin) {
        let path: Vec<String> = key.split('.').map(str::to_owned).collect();
        if stages::holds(&path) {
            self.stage_text(&path, value, origin);
        } else if self.value(&path, &Raw::Untyped(value.to_owned()), origin) {
            self.overrides.push((key.to_owned(), value.to_owned()));
        }
    }

    fn flags(&mut self, sets: &[String]) {
        for set in sets {
            match set.split_once('=') {
                Some((key, value)) if !key.contains("://") => {
                    self.text(key.trim(), value.trim(), Origin::Flag(redact(key.trim())));
                }
                _ => self.problem(None, Fault::BadFlag { text: redact(set) }),
            }
        }
    }

    fn variables(&mut self, environment: &[(String, String)]) {
        for (name, value) in environment {
            let Some(key) = name.strip_prefix(PREFIX).filter(|_| !value.is_empty()) else { continue };
            let path: Vec<String> = key.to_lowercase().split("__").map(str::to_owned).collect();
            if stages::holds(&path) {
                self.stage_text(&path, value, Origin::Variable(name.clone()));
            } else if self.value(&path, &Raw::Untyped(value.clone()), Origin::Variable(name.clone())) {
                self.environment.insert(name.clone(), value.clone());
            }
        }
    }

    /// Reads the file and checks what it holds. What cannot be read or parsed counts as empty, so that the other
    /// sources are checked too.
    fn read(&mut self, path: &Path) -> String {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) => {
                self.problem(None, Fault::Unreadable { path: path.to_owned(), why: error.to_string() });
                return String::new();
            }
        };
        match Document::parse(text.as_str()) {
            Ok(document) => {
                let place = Place { path, text: &text };
                self.table(&place, &mut Vec::new(), document.as_table());
            }
            Err(error) => {
                // The error's own text quotes the line, and the line may hold a password.
                let origin = Place { path, text: &text }.origin(error.span());
                let why = error.message().trim().replace('\n', "; ");
                self.problem(Some(origin), Fault::Syntax { why });
            }
        }
        text
    }

    fn table(&mut self, place: &Place<'_>, path: &mut Vec<String>, table: &dyn TableLike) {
        for (name, item) in table.iter() {
            path.push(name.to_owned());
            let origin = place.origin(table.key(name).and_then(toml_edit::Key::span).or_else(|| item.span()));
            match item.as_table_like() {
                // An inner table that is empty is a value.
                Some(inner) if stages::holds(path) && (path.len() < 3 || !inner.is_empty()) => {
                    match self.stages.begin(path, origin.clone()) {
                        Ok(()) => self.table(place, path, inner),
                        Err(fault) => self.problem(Some(origin), fault),
                    }
                }
                _ if stages::holds(path) => self.stage_value(path, &raw(item), stages::kind(item), origin),
                // A table where a value belongs is reported as a whole, not key by key; an unknown one key by key, if
                // it has any.
                Some(inner) if !matches!(meaning(path), Meaning::Key(_)) => {
                    if inner.is_empty() && matches!(meaning(path), Meaning::Unknown) {
                        self.problem(Some(origin), Fault::UnknownKey { key: path.join("."), nearest: None });
                    } else if let Err(fault) = placement_name(path) {
                        self.problem(Some(origin), fault);
                    } else {
                        self.table(place, path, inner);
                    }
                }
                _ => {
                    self.value(path, &raw(item), origin);
                }
            }
            path.pop();
        }
    }

    fn into_loaded(mut self, file: Option<PathBuf>, text: &str) -> Result<Loaded, ConfigError> {
        if !self.problems.is_empty() {
            return Err(ConfigError { problems: self.problems });
        }
        let overrides = std::mem::take(&mut self.overrides);
        let mut config = merge(text, std::mem::take(&mut self.environment), overrides)
            .map_err(|error| ConfigError::of(Fault::Refused(redact(&error.to_string()))))?;
        config.stages = std::mem::take(&mut self.stages);
        for fault in conflicts(&config) {
            let origin = match &fault {
                Fault::Conflict { key, other, .. } => self.origin_of(key, other.as_deref()),
                _ => None,
            };
            self.problem(origin, fault);
        }
        if self.problems.is_empty() {
            Ok(Loaded { config, file, origins: self.origins })
        } else {
            Err(ConfigError { problems: self.problems })
        }
    }
}

/// Lays the checked layers over one another. Defaults come from the sections themselves.
fn merge(
    text: &str,
    environment: config::Map<String, String>,
    overrides: Vec<(String, String)>,
) -> Result<Config, config::ConfigError> {
    let variables = Environment::with_prefix("RUNHERD")
        .prefix_separator("__")
        .separator("__")
        .ignore_empty(true)
        .source(Some(environment));
    let mut builder =
        config::Config::builder().add_source(File::from_str(text, FileFormat::Toml)).add_source(variables);
    for (key, value) in overrides {
        builder = builder.set_override(key, value)?;
    }
    builder.build()?.try_deserialize()
}

/// A placement's name becomes part of variables, log values and metrics: it is kept simple, and `control` is taken.
fn placement_name(path: &[String]) -> Result<(), Fault> {
    let Some(name) = path.get(1).filter(|_| path[0] == "placements") else { return Ok(()) };
    let simple = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-';
    let why = if name == CONTROL {
        "the name control is reserved for the control database; its settings are in [control]"
    } else if name.is_empty() || name.len() > 63 || !name.chars().all(simple) {
        "a placement's name has 1 to 63 lower-case letters, digits, - and _"
    } else {
        return Ok(());
    };
    Err(Fault::Shape { key: path.join("."), why: why.to_owned() })
}

fn raw(item: &Item) -> Raw {
    if let Some(text) = item.as_str() {
        Raw::Text(text.to_owned())
    } else if let Some(number) = item.as_integer() {
        Raw::Integer(number)
    } else {
        Raw::Other(match item.type_name() {
            "boolean" => "true or false",
            "float" => "a number with a fraction",
            "datetime" => "a date",
            "array" | "array of tables" => "a list",
            _ => "a section",
        })
    }
}

/// Turns byte positions into lines.
struct Place<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Place<'_> {
    fn origin(&self, span: Option<std::ops::Range<usize>>) -> Origin {
        let end = span.map_or(0, |span| span.start).min(self.text.len());
        let line = 1 + self.text.as_bytes()[..end].iter().filter(|byte| **byte == b'\n').count();
        Origin::File { path: self.path.to_owned(), line }
    }
}
