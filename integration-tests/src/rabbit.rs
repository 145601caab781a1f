//! RabbitMQ's management API, for one virtual host: what tests look at and what they break from outside.
//!
//! Queue figures are as old as the server's statistics interval: 200 ms on the servers of `deploy/dev`, 5 s on one with
//! default settings. So a test waits for a figure with [`crate::until`].

use std::collections::HashSet;
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::{Value, json};
use url::Url;

use crate::wait::{POLL_INTERVAL, until};

/// Longer than any answer of a healthy server on a busy machine; deleting a virtual host with many queues is the slowest.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// What may pass until something that is to happen is seen.
const LIMIT: Duration = Duration::from_secs(60);

/// A client of the management API, bound to one virtual host. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Rabbit {
    agent: ureq::Agent,
    base: String,
    vhost: String,
}

/// The figures of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    /// Messages that wait for a consumer.
    pub ready: u64,
    /// Messages that consumers hold.
    pub unacked: u64,
    /// Consumers that are subscribed.
    pub consumers: u64,
}

/// A message taken from a queue.
#[derive(Clone, Debug, Deserialize)]
pub struct Message {
    /// The exchange it was published to.
    pub exchange: String,
    /// The routing key it was published with.
    pub routing_key: String,
    /// Whether it was delivered before.
    pub redelivered: bool,
    /// AMQP's basic properties, by their names (`message_id`, `delivery_mode`, `headers` …).
    pub properties: Value,
    /// The body: text as it is, anything else in base64.
    pub payload: String,
    /// `string` or `base64`.
    pub payload_encoding: String,
}

/// A client's connection, as the server lists it.
#[derive(Clone, Debug, Deserialize)]
pub struct Connection {
    /// The server's name for it, which closes it.
    pub name: String,
}

/// What becomes of messages that [`Rabbit::get`] reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// They are gone from the queue.
    Remove,
    /// They go back, marked as redelivered.
    Requeue,
}

/// The API's answer: any status, and its body.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body, `null` if there was none.
    pub body: Value,
}

/// A name as one segment of an API path.
fn segment(name: &str) -> String {
    utf8_percent_encode(name, NON_ALPHANUMERIC).to_string()
}

impl Rabbit {
    /// A client for the API at this URL (user and password in it) and this virtual host.
    #[must_use]
    pub fn new(api_url: &str, vhost: &str) -> Self {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(REQUEST_TIMEOUT))
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .build();
        Self { agent: config.into(), base: api_url.trim_end_matches('/').to_owned(), vhost: vhost.to_owned() }
    }

    /// The virtual host.
    #[must_use]
    pub fn vhost(&self) -> &str {
        &self.vhost
    }

    /// One request, for what has no method of its own. The path begins after `/api/`, its names percent-encoded.
    ///
    /// # Errors
    /// When no answer came. An answer with an error status is an answer.
    pub async fn request(
        &self,
        method: &'static str,
        path: String,
        body: Option<Value>,
    ) -> Result<Answer, ureq::Error> {
        let this = self.clone();
        tokio::task::spawn_blocking(move || this.request_blocking(method, &path, body.as_ref()))
            .await
            .expect("a request that does not panic")
    }

    /// As [`Rabbit::request`], for callers without a runtime.
    pub(crate) fn request_blocking(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Answer, ureq::Error> {
        let request = ureq::http::Request::builder().method(method).uri(format!("{}/api/{path}", self.base));
        let mut response = match body {
            Some(body) => {
                let request = request.header("content-type", "application/json").body(body.to_string())?;
                self.agent.run(request)?
            }
            None => self.agent.run(request.body(())?)?,
        };
        let text = response.body_mut().read_to_string()?;
        let body = serde_json::from_str(&text).unwrap_or(Value::Null);
        Ok(Answer { status: response.status().as_u16(), body })
    }

    /// A request that has to succeed.
    async fn expect(&self, method: &'static str, path: String, body: Option<Value>) -> Value {
        let what = format!("{method} /api/{path}");
        match self.request(method, path, body).await {
            Ok(answer) if answer.status < 300 => answer.body,
            Ok(answer) => panic!("RabbitMQ's API: {what}: status {}: {}", answer.status, answer.body),
            Err(e) => panic!("RabbitMQ's API: {what}: {e}"),
        }
    }

    /// `kind/<vhost>`, with more names after it.
    fn path(&self, kind: &str, names: &[&str]) -> String {
        let mut path = format!("{kind}/{}", segment(&self.vhost));
        for name in names {
            path.push('/');
            path.push_str(&segment(name));
        }
        path
    }

    /// Makes the virtual host and gives the API's user all rights in it.
    pub async fn create_vhost(&self) {
        self.expect("PUT", self.path("vhosts", &[]), Some(json!({}))).await;
        let user = Url::parse(&self.base).map_or_else(|_| "guest".to_owned(), |url| url.username().to_owned());
        let rights = json!({"configure": ".*", "write": ".*", "read": ".*"});
        self.expect("PUT", self.path("permissions", &[&user]), Some(rights)).await;
    }

    /// Whether the virtual host exists.
    pub async fn vhost_exists(&self) -> bool {
        let answer = self.request("GET", self.path("vhosts", &[]), None).await;
        answer.is_ok_and(|answer| answer.status == 200)
    }

    /// The figures of a queue, `None` if there is no such queue or none is known yet.
    pub async fn depth(&self, queue: &str) -> Option<Depth> {
        // The totals come from the queues' own counters; the page of a single queue lags behind them by seconds.
        let path = format!("{}?disable_stats=true&enable_queue_totals=true", self.path("queues", &[]));
        let queues = self.expect("GET", path, None).await;
        let found = queues.as_array()?.iter().find(|entry| entry["name"] == queue)?.clone();
        let consumers = self.expect("GET", self.path("consumers", &[]), None).await;
        let subscribed = consumers.as_array()?.iter().filter(|entry| entry["queue"]["name"] == queue).count();
        Some(Depth {
            ready: found["messages_ready"].as_u64()?,
            unacked: found["messages_unacknowledged"].as_u64()?,
            consumers: subscribed.try_into().ok()?,
        })
    }

    /// The names of all queues.
    pub async fn queues(&self) -> Vec<String> {
        let queues = self.expect("GET", format!("{}?disable_stats=true", self.path("queues", &[])), None).await;
        let names = queues.as_array().map(Vec::as_slice).unwrap_or_default().iter();
        names.filter_map(|queue| queue["name"].as_str().map(str::to_owned)).collect()
    }

    /// Declares a durable queue, with arguments such as `{"x-queue-type": "quorum"}`.
    pub async fn declare_queue(&self, queue: &str, arguments: Value) {
        let body = json!({"durable": true, "auto_delete": false, "arguments": arguments});
        self.expect("PUT", self.path("queues", &[queue]), Some(body)).await;
    }

    /// Declares a durable exchange (`direct`, `topic`, `fanout`, `headers`).
    pub async fn declare_exchange(&self, exchange: &str, kind: &str) {
        let body = json!({"type": kind, "durable": true});
        self.expect("PUT", self.path("exchanges", &[exchange]), Some(body)).await;
    }

    /// Binds a queue to an exchange.
    pub async fn bind(&self, exchange: &str, queue: &str, routing_key: &str) {
        let path = format!("{}/e/{}/q/{}", self.path("bindings", &[]), segment(exchange), segment(queue));
        self.expect("POST", path, Some(json!({"routing_key": routing_key}))).await;
    }

    /// Deletes the binding that [`Rabbit::bind`] makes, whoever made it.
    pub async fn delete_binding(&self, exchange: &str, queue: &str, routing_key: &str) {
        let pair = format!("{}/e/{}/q/{}", self.path("bindings", &[]), segment(exchange), segment(queue));
        let bindings = self.expect("GET", pair.clone(), None).await;
        let mut all = bindings.as_array().map(Vec::as_slice).unwrap_or_default().iter();
        let key = all.find(|binding| binding["routing_key"] == routing_key).and_then(|b| b["properties_key"].as_str());
        let key = key.unwrap_or_else(|| panic!("no binding of {queue} to {exchange} with key {routing_key}"));
        // The server has percent-encoded this name already.
        self.expect("DELETE", format!("{pair}/{key}"), None).await;
    }

    /// Deletes a queue with all that is in it.
    pub async fn delete_queue(&self, queue: &str) {
        self.expect("DELETE", self.path("queues", &[queue]), None).await;
    }

    /// Deletes an exchange and its bindings.
    pub async fn delete_exchange(&self, exchange: &str) {
        self.expect("DELETE", self.path("exchanges", &[exchange]), None).await;
    }

    /// Removes all messages that are ready.
    pub async fn purge(&self, queue: &str) {
        self.expect("DELETE", format!("{}/contents", self.path("queues", &[queue])), None).await;
    }

    /// Publishes a text; `""` is the default exchange. Returns whether any queue got it.
    pub async fn publish(&self, exchange: &str, routing_key: &str, properties: Value, payload: &str) -> bool {
        let exchange = if exchange.is_empty() { "amq.default" } else { exchange };
        let body = json!({
            "properties": properties, "routing_key": routing_key, "payload": payload, "payload_encoding": "string",
        });
        let path = format!("{}/publish", self.path("exchanges", &[exchange]));
        self.expect("POST", path, Some(body)).await["routed"] == true
    }

    /// Reads up to `count` messages that are ready, oldest first.
    pub async fn get(&self, queue: &str, count: u32, take: Take) -> Vec<Message> {
        let mode = match take {
            Take::Remove => "ack_requeue_false",
            Take::Requeue => "ack_requeue_true",
        };
        let body = json!({"count": count, "ackmode": mode, "encoding": "auto"});
        let messages = self.expect("POST", format!("{}/get", self.path("queues", &[queue])), Some(body)).await;
        serde_json::from_value(messages).expect("messages as the management API describes them")
    }

    /// The connections to the virtual host. One that was just opened may be missing for a moment.
    pub async fn connections(&self) -> Vec<Connection> {
        // With statistics, the list is seconds old.
        let mut connections = self.expect("GET", "connections?disable_stats=true".to_owned(), None).await;
        // One that is just closing is listed without a name.
        if let Some(all) = connections.as_array_mut() {
            all.retain(|connection| connection["name"].is_string() && connection["vhost"] == self.vhost);
        }
        serde_json::from_value(connections).expect("connections as the management API describes them")
    }

    /// Closes a connection as an operator would; returns false if it was gone already.
    pub async fn close_connection(&self, name: &str) -> bool {
        let path = format!("connections/{}", segment(name));
        match self.request("DELETE", path, None).await {
            Ok(answer) if answer.status == 404 => false,
            Ok(answer) if answer.status < 300 => true,
            other => panic!("RabbitMQ's API: closing connection {name}: {other:?}"),
        }
    }

    /// Waits for a connection that is not among the `known` and can be closed (the API refuses what is younger than its
    /// statistics, which takes seconds), adds it to them and answers its name.
    pub async fn fresh_connection(&self, known: &mut HashSet<String>) -> String {
        until("a connection that can be closed", LIMIT, async || {
            let fresh = self.connections().await.into_iter().find(|connection| !known.contains(&connection.name))?;
            let path = format!("connections/{}", segment(&fresh.name));
            let closable = self.request("GET", path, None).await.is_ok_and(|answer| answer.status == 200);
            closable.then(|| {
                known.insert(fresh.name.clone());
                fresh.name
            })
        })
        .await
    }

    /// The names of the connections, as soon as there are any.
    pub async fn until_connected(&self) -> HashSet<String> {
        until("a connection", LIMIT, async || {
            let names: HashSet<String> =
                self.connections().await.into_iter().map(|connection| connection.name).collect();
            (!names.is_empty()).then_some(names)
        })
        .await
    }

    /// Waits until a queue has these figures.
    ///
    /// # Panics
    /// When the limit is over, with the figures that it had at last.
    pub async fn until_depth(&self, queue: &str, ready: u64, unacked: u64) {
        let mut last = None;
        let reached = async {
            loop {
                last = self.depth(queue).await;
                if last.is_some_and(|depth| (depth.ready, depth.unacked) == (ready, unacked)) {
                    break;
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        let reached = tokio::time::timeout(LIMIT, reached).await.is_ok();
        assert!(reached, "{queue}: {last:?}, not {ready} ready and {unacked} unacknowledged, after {LIMIT:?}");
    }

    /// Sets a policy, such as `{"max-length": 1, "overflow": "reject-publish"}` for the queues of a pattern.
    pub async fn set_policy(&self, name: &str, pattern: &str, definition: Value) {
        let body = json!({"pattern": pattern, "definition": definition, "apply-to": "queues"});
        self.expect("PUT", self.path("policies", &[name]), Some(body)).await;
    }

    /// Removes a policy.
    pub async fn delete_policy(&self, name: &str) {
        self.expect("DELETE", self.path("policies", &[name]), None).await;
    }

    /// Whether a memory or disk alarm blocks publishers.
    pub async fn alarmed(&self) -> bool {
        match self.request("GET", "health/checks/alarms".to_owned(), None).await {
            Ok(answer) if answer.status == 200 => false,
            Ok(answer) if answer.status == 503 => true,
            other => panic!("RabbitMQ's API: checking for alarms: {other:?}"),
        }
    }
}
