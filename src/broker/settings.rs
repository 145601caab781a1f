//! Where the broker is and how patient we are with it.
//!
//! Promises that a password never appears in `Debug`, `Display` or an error. Does not know whether anybody answers at
//! the address.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::error::BrokerError;
use super::topology::Topology;
use crate::config::{Config, ConfigError, Fault};

/// The address of a broker: `amqp://user:password@host:port/vhost`.
///
/// Percent signs escape what a URL cannot hold: the vhost `/` is written `%2f`. What is left out is what RabbitMQ itself
/// assumes: user and password `guest`, port 5672, vhost `/`. `Debug` and `Display` show everything but the password.
#[derive(Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct BrokerUrl {
    host: String,
    port: u16,
    user: String,
    password: String,
    vhost: String,
}

impl BrokerUrl {
    /// The host's name or address, without brackets around IPv6.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The TCP port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Who logs in.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The virtual host.
    pub fn vhost(&self) -> &str {
        &self.vhost
    }

    pub(super) fn password(&self) -> &str {
        &self.password
    }
}

impl fmt::Display for BrokerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let vhost = self.vhost.replace('%', "%25").replace('/', "%2f");
        match self.host.contains(':') {
            true => write!(f, "amqp://{}:***@[{}]:{}/{vhost}", self.user, self.host, self.port),
            false => write!(f, "amqp://{}:***@{}:{}/{vhost}", self.user, self.host, self.port),
        }
    }
}

impl fmt::Debug for BrokerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BrokerUrl({self})")
    }
}

impl TryFrom<String> for BrokerUrl {
    type Error = BrokerError;

    fn try_from(text: String) -> Result<Self, BrokerError> {
        text.parse()
    }
}

impl FromStr for BrokerUrl {
    type Err = BrokerError;

    /// Reads a URL.
    ///
    /// # Errors
    ///
    /// [`BrokerError::BadUrl`] says what is wrong, and never repeats the URL: it may hold a password.
    fn from_str(text: &str) -> Result<Self, BrokerError> {
        let bad = |why: &str| BrokerError::BadUrl(why.to_owned());
        let url = url::Url::parse(text).map_err(|e| BrokerError::BadUrl(e.to_string()))?;
        match url.scheme() {
            "amqp" => {}
            "amqps" => return Err(bad("amqps (TLS) is not supported yet: use amqp, through a tunnel if need be")),
            _ => return Err(bad("the scheme must be amqp")),
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(bad("it has parameters: heartbeat and timeouts are settings of their own"));
        }
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        if host.is_empty() {
            return Err(bad("it names no host"));
        }
        let path = url.path().strip_prefix('/').unwrap_or_default();
        if path.contains('/') {
            return Err(bad("the vhost must be one path segment: write a slash inside it as %2f"));
        }
        let user = if url.username().is_empty() { "guest" } else { url.username() };
        let decode = |part: &str| percent_decode(part).ok_or_else(|| bad("a percent escape in it is broken"));
        Ok(Self {
            host: decode(host)?,
            port: url.port().unwrap_or(5672),
            user: decode(user)?,
            password: decode(url.password().unwrap_or("guest"))?,
            vhost: if path.is_empty() { "/".to_owned() } else { decode(path)? },
        })
    }
}

/// Undoes percent escapes; `None` if one is broken or the result is not UTF-8.
fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        if first == b'%' {
            let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
            // from_str_radix would take a sign.
            if !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
                return None;
            }
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(first);
            rest = tail;
        }
    }
    String::from_utf8(bytes).ok()
}

/// How to reach the broker, and how long to wait for it.
#[derive(Clone, Debug)]
pub struct BrokerSettings {
    /// Where the broker is.
    pub url: BrokerUrl,
    /// The AMQP heartbeat, in whole seconds (1 to 600). A silent peer is noticed after twice this. Default 8 s.
    pub heartbeat: Duration,
    /// The longest wait for a TCP connection, and again for the AMQP handshake. Default 5 s.
    pub connect_timeout: Duration,
    /// The longest wait for one batch to be confirmed, and for one declaration to be answered. After it the connection
    /// is cut. Default 10 s.
    pub confirm_deadline: Duration,
    /// The first pause before a new connection, before jitter. Default 200 ms.
    pub reconnect_min: Duration,
    /// The longest pause before a new connection, before jitter. Default 10 s.
    pub reconnect_max: Duration,
    /// The most messages that are sent and not yet confirmed (1 to 10,000). Default 500.
    pub publish_parallelism: usize,
    /// The names and kinds of what is declared.
    pub topology: Topology,
}

impl BrokerSettings {
    /// The defaults, for the broker at `url`.
    pub fn new(url: BrokerUrl) -> Self {
        Self {
            url,
            heartbeat: Duration::from_secs(8),
            connect_timeout: Duration::from_secs(5),
            confirm_deadline: Duration::from_secs(10),
            reconnect_min: Duration::from_millis(200),
            reconnect_max: Duration::from_secs(10),
            publish_parallelism: 500,
            topology: Topology::default(),
        }
    }

    /// The settings of one connection, as the configuration gives them.
    ///
    /// # Errors
    /// The broker is not configured, or its URL cannot be used.
    pub fn from_config(config: &Config) -> Result<Self, ConfigError> {
        let url = config.broker_url()?;
        let parsed = url.expose().parse().map_err(|error: BrokerError| {
            ConfigError::of(Fault::BadUrl {
                key: "broker.url".to_owned(),
                url: url.to_string(),
                why: error.to_string(),
            })
        })?;
        let broker = &config.broker;
        Ok(Self {
            url: parsed,
            heartbeat: broker.heartbeat,
            connect_timeout: broker.connect_timeout,
            confirm_deadline: broker.confirm_deadline,
            reconnect_min: broker.reconnect_delay_min,
            reconnect_max: broker.reconnect_delay_max,
            publish_parallelism: config.outbox_publisher.publish_parallelism as usize,
            topology: Topology {
                queue_type: broker.queue_type,
                events_max_length: broker.events_max_length,
                ..Topology::default()
            },
        })
    }

    /// The heartbeat as AMQP wants it: whole seconds, never 0, which would turn it off.
    pub(super) fn heartbeat_seconds(&self) -> u16 {
        self.heartbeat.as_secs().clamp(1, 600) as u16
    }

    /// The window, never 0, which would publish nothing.
    pub(super) fn window(&self) -> usize {
        self.publish_parallelism.clamp(1, 10_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_part_and_hides_the_password() {
        let url: BrokerUrl = "amqp://us%65r:s%40cret@broker.example:5673/v%2fh".parse().unwrap();
        assert_eq!((url.host(), url.port(), url.user(), url.vhost()), ("broker.example", 5673, "user", "v/h"));
        assert_eq!(url.password(), "s@cret");
        let shown = format!("{url} {url:?} {:?}", BrokerSettings::new(url.clone()));
        assert!(!shown.contains("cret"), "{shown}");
        assert!(shown.contains("amqp://user:***@broker.example:5673/v%2fh"), "{shown}");
    }

    #[test]
    fn assumes_what_rabbitmq_assumes() {
        for text in ["amqp://localhost", "amqp://localhost/", "amqp://localhost/%2f"] {
            let url: BrokerUrl = text.parse().unwrap();
            assert_eq!((url.port(), url.user(), url.password(), url.vhost()), (5672, "guest", "guest", "/"), "{text}");
        }
        assert_eq!("amqp://[::1]:1/x".parse::<BrokerUrl>().unwrap().host(), "::1");
    }

    #[test]
    fn says_what_is_wrong_without_the_password() {
        for (text, why) in [
            ("amqps://u:hush@h/v", "TLS"),
            ("http://u:hush@h/v", "scheme"),
            ("amqp://u:hush@h/a/b", "%2f"),
            ("amqp://u:hush@h/v?heartbeat=5", "settings of their own"),
            ("amqp://u:hush%zz@h/v", "percent"),
            ("amqp:///v", "no host"),
            ("hush", "relative"),
        ] {
            let error = text.parse::<BrokerUrl>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
            assert!(text == "hush" || !error.contains("hush"), "{text}: {error}");
        }
    }
}
