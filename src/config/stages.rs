//! The sections `[stages.<name>]` of stages that are not built in: kept as they were written, until whoever wrote the stage
//! reads them into a type of its own.
//!
//! The core checks two keys, [`period`](StageSections::period) and [`deadline`](StageSections::deadline), which are the
//! runtime's for every such stage. It knows nothing about the others, but remembers where each came from: a mistake in them
//! is named with its place, like one in the core's own. Whether a stage of that name exists is known when a coordinator runs.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use config::{Value, ValueKind};
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, IgnoredAny, IntoDeserializer, MapAccess};
use serde::{Deserialize, de};

use super::keys::{Raw, Rule, SECTIONS, closest, hours, ms, span};
use super::load::Setting;
use super::problem::{ConfigError, Fault, Origin, Problem};
use super::secret::redact;

/// The table that holds the sections.
pub(super) const TABLE: &str = "stages";

/// The sections of stages that are not built in, by the stage's name (its family, where it has instances).
#[derive(Clone, Default, PartialEq)]
pub struct StageSections(BTreeMap<String, Section>);

#[derive(Clone, PartialEq)]
struct Section {
    /// Where it was first named.
    origin: Origin,
    /// The values by their path in the section. No path continues another.
    values: BTreeMap<Vec<String>, (ValueKind, Origin)>,
}

/// What the runtime takes from each section: how often the stage runs, and how long one cycle may take.
fn rule_of_runtime(key: &str) -> Option<Rule> {
    match key {
        "period" => Some(span(ms(10)..=hours(24))),
        "deadline" => Some(span(ms(100)..=hours(1))),
        _ => None,
    }
}

/// Whether `path` belongs to these sections.
pub(super) fn holds(path: &[String]) -> bool {
    path.first().is_some_and(|table| table == TABLE)
}

impl StageSections {
    /// Notes a table of the file: a section may be empty.
    pub(super) fn begin(&mut self, path: &[String], origin: Origin) -> Result<(), Fault> {
        let Some(name) = path.get(1) else { return Ok(()) };
        check_name(path)?;
        self.0.entry(name.clone()).or_insert(Section { origin, values: BTreeMap::new() });
        Ok(())
    }

    /// Takes a value in; a later source wins over an earlier one.
    pub(super) fn set(&mut self, path: &[String], raw: &Raw, kind: ValueKind, origin: Origin) -> Result<(), Fault> {
        let key = path.join(".");
        if path.len() < 3 {
            return Err(Fault::Shape { key, why: "a section, not a key: it takes no value of its own".to_owned() });
        }
        self.begin(path, origin.clone())?;
        let inner = &path[2..];
        if inner.iter().any(String::is_empty) {
            return Err(Fault::Shape { key, why: "a part of the key is empty".to_owned() });
        }
        if let Some(rule) = rule_of_runtime(&inner[0]) {
            if inner.len() > 1 {
                return Err(Fault::Shape { key, why: format!("{} is a key, not a section", path[..3].join(".")) });
            }
            rule.check(&key, raw)?;
        }
        if let Some(section) = self.0.get_mut(&path[1]) {
            section.values.retain(|other, _| !other.starts_with(inner) && !inner.starts_with(other));
            section.values.insert(inner.to_vec(), (kind, origin));
        }
        Ok(())
    }

    /// How often the stage is to run beside the cycle, if it was set.
    #[must_use]
    pub fn period(&self, stage: &str) -> Option<Duration> {
        self.duration(stage, "period")
    }

    /// How long one cycle of the stage may take, if it was set.
    #[must_use]
    pub fn deadline(&self, stage: &str) -> Option<Duration> {
        self.duration(stage, "deadline")
    }

    fn duration(&self, stage: &str, key: &str) -> Option<Duration> {
        match &self.0.get(stage)?.values.get([key.to_owned()].as_slice())?.0 {
            ValueKind::String(text) => humantime::parse_duration(text).ok(),
            _ => None,
        }
    }

    /// Refuses the sections of stages that are not among the `registered` ones.
    ///
    /// # Errors
    /// All of them, each with its place and the registered name that looks like it.
    pub fn check_names(&self, registered: &[&str]) -> Result<(), ConfigError> {
        let unknown = self.0.iter().filter(|(name, _)| !registered.contains(&name.as_str()));
        let problem = |(name, section): (&String, &Section)| {
            let nearest = closest(name, registered.iter().copied());
            let fault = if SECTIONS.iter().any(|section| section.name == name) {
                let why = format!("it is built in: its section is [{name}]");
                Fault::Shape { key: format!("{TABLE}.{name}"), why }
            } else {
                Fault::UnknownStage { stage: name.clone(), nearest: nearest.map(str::to_owned) }
            };
            Problem { origin: Some(section.origin.clone()), fault }
        };
        let problems: Vec<Problem> = unknown.map(problem).collect();
        if problems.is_empty() { Ok(()) } else { Err(ConfigError { problems }) }
    }

    /// Reads the section of `stage` into a type of the stage's own; see [`Config::stage_settings`](super::Config::stage_settings).
    pub(super) fn read<T: DeserializeOwned>(&self, stage: &str) -> Result<T, ConfigError> {
        let section = self.0.get(stage);
        let reading = RefCell::new(Vec::new());
        let fields = section.map(Section::own_fields).unwrap_or_default();
        let fields = Fields { rest: fields.into_iter(), value: None, reading: &reading };
        T::deserialize(MapAccessDeserializer::new(fields)).map_err(|error| {
            let mut path = reading.take();
            let fault = fault(stage, &mut path, error);
            let written = section.filter(|_| !matches!(fault, Fault::NotSet { .. }));
            ConfigError { problems: vec![Problem { origin: written.map(|section| section.origin_of(&path)), fault }] }
        })
    }

    /// Every value, as it may be shown.
    pub(super) fn settings(&self) -> Vec<Setting> {
        let of_section = |(name, section): (&String, &Section)| -> Vec<Setting> {
            let setting = |(path, (kind, origin)): (&Vec<String>, &(ValueKind, Origin))| Setting {
                key: format!("{TABLE}.{name}.{}", path.join(".")),
                value: shown(path.last().map_or("", String::as_str), kind),
                origin: origin.clone(),
            };
            section.values.iter().map(setting).collect()
        };
        self.0.iter().flat_map(of_section).collect()
    }
}

impl Section {
    /// The outermost values without the runtime's own, inner tables put together again.
    fn own_fields(&self) -> Vec<(String, Value)> {
        let mut fields = config::Map::new();
        for (path, (kind, _)) in self.values.iter().filter(|(path, _)| rule_of_runtime(&path[0]).is_none()) {
            put(&mut fields, path, kind);
        }
        fields.into_iter().collect()
    }

    /// Where the value at `path` came from, or the nearest thing around it.
    fn origin_of(&self, path: &[String]) -> Origin {
        let inside = |other: &Vec<String>| !path.is_empty() && (other.starts_with(path) || path.starts_with(other));
        let found = self.values.iter().find(|(other, _)| inside(other));
        found.map_or(&self.origin, |(_, (_, origin))| origin).clone()
    }
}

fn put(table: &mut config::Map<String, Value>, path: &[String], kind: &ValueKind) {
    let Some((name, rest)) = path.split_first() else { return };
    let place = table.entry(name.clone()).or_insert_with(|| Value::new(None, ValueKind::Table(config::Map::new())));
    if rest.is_empty() {
        place.kind = kind.clone();
    } else if let ValueKind::Table(inner) = &mut place.kind {
        put(inner, rest, kind);
    }
}

/// Gives the fields to a type, and remembers which one it is at.
struct Fields<'a> {
    rest: std::vec::IntoIter<(String, Value)>,
    value: Option<Value>,
    reading: &'a RefCell<Vec<String>>,
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = config::ConfigError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Self::Error> {
        let Some((key, value)) = self.rest.next() else {
            self.reading.take();
            return Ok(None);
        };
        self.value = Some(value);
        self.reading.replace(vec![key.clone()]);
        seed.deserialize(key.into_deserializer()).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Self::Error> {
        seed.deserialize(self.value.take().ok_or_else(|| de::Error::custom("a value was asked for twice"))?)
    }
}

/// What the type said, in the words of the core. `path` is completed with what the error knows about inner tables.
fn fault(stage: &str, path: &mut Vec<String>, error: config::ConfigError) -> Fault {
    let mut inside = |inner: Option<String>| {
        // An element of a list has its list's place.
        let parts = inner.iter().flat_map(|inner| inner.split('.')).map(|part| part.split('[').next().unwrap_or(part));
        path.extend(parts.filter(|part| !part.is_empty()).map(str::to_owned));
        let parts = [TABLE, stage].into_iter().chain(path.iter().map(String::as_str));
        parts.collect::<Vec<_>>().join(".")
    };
    match error {
        config::ConfigError::Type { unexpected, expected, key, .. } => {
            Fault::WrongType { key: inside(key), expected: expected.to_owned(), found: redact(&unexpected.to_string()) }
        }
        config::ConfigError::NotFound(key) => Fault::NotSet { key: inside(Some(key)) },
        config::ConfigError::At { error, key, .. } => {
            Fault::Shape { key: inside(key), why: redact(&error.to_string()) }
        }
        other => Fault::Shape { key: inside(None), why: redact(&other.to_string()) },
    }
}

/// A value as it may be printed. The core cannot know which ones are secret: it hides passwords in URLs, and what its name
/// gives away.
fn shown(name: &str, kind: &ValueKind) -> serde_json::Value {
    let name = name.to_lowercase();
    let is_path = name.ends_with("_file");
    if !is_path && ["password", "secret", "token"].iter().any(|word| name.contains(word)) {
        return "***".into();
    }
    match kind {
        ValueKind::Nil => serde_json::Value::Null,
        ValueKind::Boolean(value) => (*value).into(),
        ValueKind::I64(value) => (*value).into(),
        ValueKind::Float(value) => (*value).into(),
        ValueKind::Array(values) => values.iter().map(|value| shown("", &value.kind)).collect(),
        ValueKind::Table(table) => table
            .iter()
            .map(|(name, value)| (name.clone(), shown(name, &value.kind)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        other => redact(&other.to_string()).into(),
    }
}

/// A value of the file, as the deserializer takes it.
pub(super) fn kind(item: &toml_edit::Item) -> ValueKind {
    use toml_edit::{Item, Value as Toml};
    let of_table = |table: &dyn toml_edit::TableLike| {
        let entry = |(name, item): (&str, &Item)| (name.to_owned(), Value::new(None, kind(item)));
        ValueKind::Table(table.iter().map(entry).collect())
    };
    match item {
        Item::None => ValueKind::Nil,
        Item::Table(table) => of_table(table),
        Item::ArrayOfTables(tables) => {
            ValueKind::Array(tables.iter().map(|table| Value::new(None, of_table(table))).collect())
        }
        Item::Value(value) => match value {
            Toml::String(text) => ValueKind::String(text.value().clone()),
            Toml::Integer(number) => ValueKind::I64(*number.value()),
            Toml::Float(number) => ValueKind::Float(*number.value()),
            Toml::Boolean(value) => ValueKind::Boolean(*value.value()),
            Toml::Datetime(time) => ValueKind::String(time.value().to_string()),
            Toml::InlineTable(table) => of_table(table),
            Toml::Array(values) => {
                let element = |value: &Toml| Value::new(None, kind(&Item::Value(value.clone())));
                ValueKind::Array(values.iter().map(element).collect())
            }
        },
    }
}

/// The name becomes part of variables and flags: it is kept simple.
fn check_name(path: &[String]) -> Result<(), Fault> {
    let simple = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-';
    let name = path.get(1).map_or("", String::as_str);
    if name.is_empty() || name.len() > 63 || !name.chars().all(simple) {
        let why = "the name of a stage that has a section has 1 to 63 lower-case letters, digits, - and _";
        return Err(Fault::Shape { key: path.join("."), why: why.to_owned() });
    }
    Ok(())
}

/// The layers are merged by a crate that knows no places; these sections do not go through it.
pub(super) fn elsewhere<'de, D: Deserializer<'de>>(deserializer: D) -> Result<StageSections, D::Error> {
    IgnoredAny::deserialize(deserializer).map(|_| StageSections::default())
}

/// Without values: the core does not know which of them are secret.
impl fmt::Debug for StageSections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
