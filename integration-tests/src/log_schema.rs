//! The table of `docs/logs.md`, as a check of log lines: it promises that a line which passes is one that the page describes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

/// The heading of the fields that every line has.
const ON_EVERY_LINE: &str = "## On every line";

/// What the page says of one field.
#[derive(Clone, Debug)]
struct Field {
    kind: String,
    optional: bool,
}

impl Field {
    fn admits(&self, value: &Value) -> bool {
        match self.kind.as_str() {
            "string" => value.is_string(),
            "integer" => value.is_u64(),
            "number" => value.is_number(),
            "boolean" => value.is_boolean(),
            other => panic!("{other} is no type"),
        }
    }
}

type Fields = BTreeMap<String, Field>;

/// All records of the page.
#[derive(Debug)]
pub struct LogSchema {
    records: BTreeMap<String, Fields>,
    commands: Vec<String>,
}

impl LogSchema {
    /// Reads the page.
    ///
    /// # Panics
    /// If the page is not written as it promises.
    #[must_use]
    pub fn parse(page: &str) -> Self {
        let mut common = Fields::new();
        let mut records: BTreeMap<String, Fields> = BTreeMap::new();
        let mut record: Option<String> = None;
        for line in page.lines() {
            if let Some(name) = line.strip_prefix("### `").and_then(|rest| rest.strip_suffix('`')) {
                let known = records.insert(name.to_owned(), common.clone());
                assert!(known.is_none(), "{name} has two headings");
                record = Some(name.to_owned());
            } else if line.starts_with("## ") {
                record = (line == ON_EVERY_LINE).then(String::new);
            } else if line.starts_with("| `") {
                let (name, field) = row(line);
                let fields = match record.as_deref() {
                    Some("") => &mut common,
                    Some(name) => records.get_mut(name).expect("it has a heading"),
                    None => panic!("no record has this field: {line}"),
                };
                assert!(fields.insert(name, field).is_none(), "twice: {line}");
            }
        }
        assert!(!common.is_empty() && !records.is_empty(), "the page has no tables");
        let blocks = page.split("```sh\n").skip(1);
        let commands = blocks.map(|block| block.split("```").next().unwrap_or_default().to_owned()).collect();
        Self { records, commands }
    }

    /// The names of all records.
    #[must_use]
    pub fn records(&self) -> BTreeSet<&str> {
        self.records.keys().map(String::as_str).collect()
    }

    /// The names of a record's fields.
    ///
    /// # Panics
    /// If there is no such record.
    #[must_use]
    pub fn fields(&self, record: &str) -> BTreeSet<&str> {
        self.records[record].keys().map(String::as_str).collect()
    }

    /// The shell commands of the page.
    #[must_use]
    pub fn commands(&self) -> &[String] {
        &self.commands
    }

    /// Reads one line of a log, or says what about it the page does not describe.
    ///
    /// # Errors
    /// It is no JSON object, a key stands in it twice, or its record, one of its fields or a type is not the page's.
    pub fn check(&self, line: &str) -> Result<Value, String> {
        let Line(pairs) = serde_json::from_str(line).map_err(|error| format!("{error}: {line}"))?;
        let count = pairs.len();
        let object: serde_json::Map<String, Value> = pairs.into_iter().collect();
        if object.len() < count {
            return Err(format!("a key stands twice in {line}"));
        }
        let msg = object.get("msg").and_then(Value::as_str).unwrap_or_default();
        let fields = self.records.get(msg).ok_or_else(|| format!("no record is called {msg:?}: {line}"))?;
        for (name, value) in &object {
            match fields.get(name) {
                None => return Err(format!("{msg:?} has no field {name:?}: {line}")),
                Some(field) if !field.admits(value) => {
                    return Err(format!("{name:?} of {msg:?} is no {}: {line}", field.kind));
                }
                Some(_) => {}
            }
        }
        let missing = fields.iter().find(|(name, field)| !field.optional && !object.contains_key(*name));
        match missing {
            Some((name, _)) => Err(format!("{msg:?} lacks {name:?}: {line}")),
            None => Ok(Value::Object(object)),
        }
    }
}

/// `| field | type | unit | over | meaning |`.
fn row(line: &str) -> (String, Field) {
    let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
    let [name, kind, unit, over, meaning] = cells[..] else { panic!("not five cells: {line}") };
    let optional = kind.ends_with('?');
    let kind = kind.trim_end_matches('?').to_owned();
    assert!(["string", "integer", "number", "boolean"].contains(&kind.as_str()), "an unknown type: {line}");
    assert!(["now", "interval", "total", "event"].contains(&over), "over what? {line}");
    assert!(!meaning.is_empty(), "without a meaning: {line}");
    assert!(!unit.is_empty() || over == "event" || !name.contains("_ms"), "without a unit: {line}");
    (name.trim_matches('`').to_owned(), Field { kind, optional })
}

/// An object's keys as they stand, repeated ones too.
struct Line(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Line {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Line;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Line, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Line(pairs))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}
