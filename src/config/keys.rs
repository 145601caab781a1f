//! The table of all keys: what each takes, in which range, and what it is for.
//!
//! A section is declared once, with [`section!`]; the struct, its defaults, its entries in this table and its part of
//! the reference file come from that one declaration, so that none of them can disagree with another. This module does
//! not know where values come from.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::LazyLock;
use std::time::Duration;

use url::Url;

use super::problem::Fault;
use super::secret::redact;
use super::sections::sections;
use crate::control::SOCKET_PATH_BYTES;

/// Declares a section: a struct with serde, `Default` and `section()`. Each field is `name: type = default, rule;`.
macro_rules! section {
    (
        $(#[doc = $about:literal])+
        pub struct $struct:ident {
            $(
                $(#[doc = $help:literal])+
                $(#[serde($($serde:tt)+)])?
                $key:ident: $type:ty = $default:expr, $rule:expr;
            )+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $struct {
            $(
                $(#[doc = $help])+
                $(#[serde($($serde)+)])?
                pub $key: $type,
            )+
        }

        impl Default for $struct {
            fn default() -> Self {
                Self { $($key: $default,)+ }
            }
        }

        impl $struct {
            /// The section's entry in the table of keys, under the name `name`.
            pub(crate) fn section(name: &'static str) -> $crate::config::keys::Section {
                use $crate::config::keys::*;
                let keys = vec![
                    $(Key { section: name, name: stringify!($key), help: concat!($($help),+), rule: $rule },)+
                ];
                Section { name, about: concat!($($about),+), keys }
            }
        }
    };
}
pub(crate) use section;

/// One key.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    /// Its section; `placements.*` stands for any placement.
    pub(crate) section: &'static str,
    /// Its name in the section.
    pub(crate) name: &'static str,
    /// What it is for.
    pub(crate) help: &'static str,
    /// What it takes.
    pub(crate) rule: Rule,
}

/// One section of the table.
pub(crate) struct Section {
    /// Its name; `placements.*` stands for any placement.
    pub(crate) name: &'static str,
    /// What it is for.
    pub(crate) about: &'static str,
    /// Its keys.
    pub(crate) keys: Vec<Key>,
}

/// What a key takes.
#[derive(Clone, Debug)]
pub(crate) enum Rule {
    /// A whole number.
    Count(RangeInclusive<u64>),
    /// A duration, as a text such as `"1m 30s"`.
    Span(RangeInclusive<Duration>),
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// The path of a file.
    Path,
    /// The path of a Unix socket, or a word that stands for no socket.
    Socket,
    /// An IP address and a port.
    Address,
    /// A PostgreSQL URL that names a host and a database.
    PostgresUrl,
    /// An AMQP URL.
    AmqpUrl,
}

/// A value as a source holds it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Raw {
    /// A text whose type is not known: from a variable or a flag.
    Untyped(String),
    /// A TOML text.
    Text(String),
    /// A TOML integer.
    Integer(i64),
    /// Another TOML value, named by its type.
    Other(&'static str),
}

pub(crate) fn count(range: RangeInclusive<u64>) -> Rule {
    Rule::Count(range)
}

pub(crate) fn span(range: RangeInclusive<Duration>) -> Rule {
    Rule::Span(range)
}

pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub(crate) const fn mins(n: u64) -> Duration {
    Duration::from_secs(n * 60)
}

pub(crate) const fn hours(n: u64) -> Duration {
    Duration::from_secs(n * 3600)
}

pub(crate) const fn days(n: u64) -> Duration {
    hours(n * 24)
}

impl Rule {
    /// What is allowed, for people.
    pub(crate) fn allowed(&self) -> String {
        match self {
            Self::Count(range) => format!("{} to {}", range.start(), range.end()),
            Self::Span(range) => format!("{} to {}", human(*range.start()), human(*range.end())),
            Self::OneOf(words) => quoted(words),
            Self::Path => "the path of a file".to_owned(),
            Self::Socket => format!("a path of at most {SOCKET_PATH_BYTES} bytes, or none"),
            Self::Address => "127.0.0.1:8642".to_owned(),
            Self::PostgresUrl => "postgresql://user@host:5432/database".to_owned(),
            Self::AmqpUrl => "amqp://user@host:5672/vhost".to_owned(),
        }
    }

    fn expected(&self) -> String {
        match self {
            Self::Count(_) => "a whole number".to_owned(),
            Self::Span(_) => "a duration such as \"30s\" or \"1m 30s\"".to_owned(),
            Self::OneOf(words) => format!("one of {}", quoted(words)),
            Self::Address => format!("an IP address with a port ({})", self.allowed()),
            Self::Path | Self::Socket | Self::PostgresUrl | Self::AmqpUrl => format!("a text ({})", self.allowed()),
        }
    }

    fn is_secret(&self) -> bool {
        matches!(self, Self::PostgresUrl | Self::AmqpUrl)
    }

    /// Whether `raw` may be the value of `key`.
    pub(crate) fn check(&self, key: &str, raw: &Raw) -> Result<(), Fault> {
        let wrong_type = || Fault::WrongType { key: key.to_owned(), expected: self.expected(), found: self.show(raw) };
        match (self, raw) {
            (_, Raw::Other(_)) => Err(wrong_type()),
            (Self::Count(range), Raw::Integer(n)) => self.in_range(key, raw, u64::try_from(*n).ok(), range),
            (Self::Count(range), Raw::Untyped(text)) => match text.parse::<i128>() {
                Ok(n) => self.in_range(key, raw, u64::try_from(n).ok(), range),
                Err(_) => Err(wrong_type()),
            },
            (Self::Count(_), Raw::Text(_)) | (_, Raw::Integer(_)) => Err(wrong_type()),
            (rule, Raw::Text(text) | Raw::Untyped(text)) => match rule {
                Self::Span(range) => match humantime::parse_duration(text) {
                    Ok(duration) => self.in_range(key, raw, Some(duration), range),
                    Err(_) => Err(wrong_type()),
                },
                Self::OneOf(words) if !words.contains(&text.as_str()) => Err(wrong_type()),
                Self::Path | Self::Socket if text.is_empty() => Err(wrong_type()),
                Self::Socket if text.len() > SOCKET_PATH_BYTES => Err(self.out_of_range(key, raw)),
                Self::Address if text.parse::<SocketAddr>().is_err() => Err(wrong_type()),
                Self::PostgresUrl => postgres_url(text).map(drop).map_err(|why| bad_url(key, text, why)),
                Self::AmqpUrl => amqp_url(text).map(drop).map_err(|why| bad_url(key, text, why)),
                _ => Ok(()),
            },
        }
    }

    fn in_range<T: PartialOrd>(
        &self,
        key: &str,
        raw: &Raw,
        value: Option<T>,
        range: &RangeInclusive<T>,
    ) -> Result<(), Fault> {
        match value {
            Some(value) if range.contains(&value) => Ok(()),
            _ => Err(self.out_of_range(key, raw)),
        }
    }

    fn out_of_range(&self, key: &str, raw: &Raw) -> Fault {
        Fault::OutOfRange { key: key.to_owned(), value: plain(raw), allowed: self.allowed() }
    }

    fn show(&self, raw: &Raw) -> String {
        match raw {
            Raw::Untyped(text) | Raw::Text(text) if self.is_secret() => format!("{:?}", redact(text)),
            Raw::Untyped(text) => format!("{text:?}"),
            Raw::Text(text) => format!("the text {text:?}"),
            Raw::Integer(n) => format!("the number {n}"),
            Raw::Other(kind) => (*kind).to_owned(),
        }
    }
}

/// A value that has the right type.
fn plain(raw: &Raw) -> String {
    match raw {
        Raw::Untyped(text) | Raw::Text(text) => text.clone(),
        Raw::Integer(n) => n.to_string(),
        Raw::Other(kind) => (*kind).to_owned(),
    }
}

fn quoted(words: &[&str]) -> String {
    words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(", ")
}

fn bad_url(key: &str, url: &str, why: String) -> Fault {
    Fault::BadUrl { key: key.to_owned(), url: redact(url), why }
}

/// A duration as it is written in a file.
pub(crate) fn human(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}

/// Parses a PostgreSQL URL with the parser that will connect with it: lists of hosts and parameters are its to
/// understand.
pub(crate) fn postgres_url(text: &str) -> Result<tokio_postgres::Config, String> {
    if !["postgresql://", "postgres://"].iter().any(|scheme| text.starts_with(scheme)) {
        return Err("its scheme must be postgresql://".to_owned());
    }
    // The parser's message may quote what it could not parse; its source says what kind of error it was.
    let parsed: tokio_postgres::Config = text
        .parse()
        .map_err(|error| format!("not a PostgreSQL URL ({})", redact(&crate::telemetry::error_chain(&error))))?;
    if parsed.get_hosts().is_empty() {
        return Err("it names no host; write postgresql://user@host:5432/database".to_owned());
    }
    match parsed.get_dbname() {
        None | Some("") => Err("it names no database; write postgresql://user@host:5432/database".to_owned()),
        Some(_) => Ok(parsed),
    }
}

/// Parses an AMQP URL.
pub(crate) fn amqp_url(text: &str) -> Result<Url, String> {
    if text.starts_with("amqps://") {
        return Err("its scheme must be amqp://; this build speaks no TLS to the broker".to_owned());
    }
    if !text.starts_with("amqp://") {
        return Err("its scheme must be amqp://".to_owned());
    }
    let url = Url::parse(text).map_err(|error| format!("not a URL ({error})"))?;
    match url.host_str() {
        None | Some("") => Err("it names no host; write amqp://user@host:5672/vhost".to_owned()),
        Some(_) => Ok(url),
    }
}

/// All sections, in the order in which they are shown.
pub(crate) static SECTIONS: LazyLock<Vec<Section>> = LazyLock::new(sections);

/// What a path of names stands for.
pub(crate) enum Meaning {
    /// A key.
    Key(&'static Key),
    /// A section, or a table of sections.
    Section,
    /// Something inside a key.
    InsideKey(String),
    /// Nothing.
    Unknown,
}

/// Looks a path up in the table.
pub(crate) fn meaning(path: &[String]) -> Meaning {
    let key = |path: &[String]| {
        let (name, section) = path.split_last()?;
        let section = section_named(section)?;
        section.keys.iter().find(|key| key.name == name)
    };
    if let Some(key) = key(path) {
        return Meaning::Key(key);
    }
    if section_named(path).is_some() || path == ["placements"] {
        return Meaning::Section;
    }
    match (1..path.len()).find(|length| key(&path[..*length]).is_some()) {
        Some(length) => Meaning::InsideKey(path[..length].join(".")),
        None => Meaning::Unknown,
    }
}

fn section_named(path: &[String]) -> Option<&'static Section> {
    let name = match path {
        [table, _] if table == "placements" => "placements.*",
        [name] => name.as_str(),
        _ => return None,
    };
    SECTIONS.iter().find(|section| section.name == name)
}

/// The known key that `path` was probably meant to be.
pub(crate) fn nearest(path: &[String]) -> Option<String> {
    let written = path.join(".");
    let placement = path.get(1).filter(|_| path[0] == "placements" && path.len() == 3).map_or("<name>", String::as_str);
    let known: Vec<String> = SECTIONS
        .iter()
        .flat_map(|section| &section.keys)
        .map(|key| format!("{}.{}", key.section.replace('*', placement), key.name))
        .collect();
    if let Some(closest) = closest(&written, known.iter().map(String::as_str)) {
        return Some(closest.to_owned());
    }
    // The right name in the wrong section, or in none, when only one section has it.
    let mut namesakes = known.iter().filter(|key| key.rsplit('.').next() == path.last().map(String::as_str));
    namesakes.next().filter(|_| namesakes.next().is_none()).cloned()
}

/// The one of these names that was probably meant.
pub(crate) fn closest<'a>(written: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let (distance, name) = names.map(|name| (distance(written, name), name)).min()?;
    (distance <= 1 + written.len() / 6).then_some(name)
}

/// How many letters must be put in, left out or changed to come from one text to the other.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let changed = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

/// The variable that sets `key`.
pub(crate) fn variable_of(key: &str) -> String {
    format!("RUNHERD__{}", key.replace('.', "__").to_uppercase())
}
