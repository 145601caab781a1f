//! Keeps passwords out of sight: a URL that prints without its password.
//!
//! Redaction rather hides too much than too little: a password that was not percent-encoded, with an `@` or a `/` in
//! it, is hidden whole.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

/// A connection URL. `Debug`, `Display` and `Serialize` show it with `***` in the place of its password.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct SecretUrl(String);

impl SecretUrl {
    /// Wraps a URL.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self(url.into())
    }

    /// The URL with its password: for whoever connects, and for nobody else.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&redact(&self.0))
    }
}

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&redact(&self.0), f)
    }
}

impl Serialize for SecretUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&redact(&self.0))
    }
}

/// The text with `***` in the place of every password that it may hold.
#[must_use]
pub fn redact(url: &str) -> String {
    redact_parameters(&redact_userinfo(url))
}

/// Hides what stands between the first `:` after the scheme and the last `@`.
fn redact_userinfo(url: &str) -> String {
    let start = url.find("://").map_or(0, |at| at + 3);
    let Some(end) = url.rfind('@').filter(|at| *at >= start) else {
        return url.to_owned();
    };
    match url[start..end].find(':') {
        Some(colon) => format!("{}:***{}", &url[..start + colon], &url[end..]),
        None => url.to_owned(),
    }
}

/// Hides the value of each `…password=` (libpq takes a password as a parameter too).
fn redact_parameters(url: &str) -> String {
    const NAME: &str = "password=";
    let mut shown = String::with_capacity(url.len());
    let mut rest = url;
    // ASCII lower case keeps every byte's place.
    while let Some(at) = rest.to_ascii_lowercase().find(NAME) {
        let value = at + NAME.len();
        shown.push_str(&rest[..value]);
        shown.push_str("***");
        let end = rest[value..].find(['&', ' ', '"', '\'']).map_or(rest.len(), |length| value + length);
        rest = &rest[end..];
    }
    shown + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_hidden() {
        for (url, shown) in [
            ("postgresql://u:pw@h:5432/db", "postgresql://u:***@h:5432/db"),
            ("postgresql://u@h/db", "postgresql://u@h/db"),
            ("postgresql://h:5432/db", "postgresql://h:5432/db"),
            ("amqp://u:p@ss/w:rd@h/vhost", "amqp://u:***@h/vhost"),
            ("postgresql://u:p?w@h/db?x=1", "postgresql://u:***@h/db?x=1"),
            ("postgresql://u:@h/db", "postgresql://u:***@h/db"),
            ("postgresql://h/db?user=u&password=pw&x=1", "postgresql://h/db?user=u&password=***&x=1"),
            ("postgresql://h/db?PASSWORD=pw", "postgresql://h/db?PASSWORD=***"),
            ("host=h password=pw dbname=d", "host=h password=*** dbname=d"),
            ("u:pw@h", "u:***@h"),
            ("", ""),
        ] {
            assert_eq!(redact(url), shown, "{url}");
        }
    }

    #[test]
    fn no_way_of_printing_shows_it() {
        let url = SecretUrl::new("amqp://u:hunter2@h");
        let json = serde_json::to_string(&url).unwrap();
        for text in [format!("{url}"), format!("{url:?}"), json] {
            assert!(!text.contains("hunter2"), "{text}");
        }
        assert_eq!(url.expose(), "amqp://u:hunter2@h");
    }
}
