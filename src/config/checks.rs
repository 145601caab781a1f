//! Settings that are each in range and do not go together.

use std::time::Duration;

use super::keys::{human, postgres_url};
use super::problem::Fault;
use super::{CONTROL, Config};

/// All conflicts in `config`.
pub(super) fn conflicts(config: &Config) -> Vec<Fault> {
    let mut found = timeouts(config);
    found.extend(delays(config));
    found.extend(sizes(config));
    found.extend(
        config
            .policy
            .conflicts()
            .into_iter()
            .map(|(key, other, why)| conflict(&format!("policy.{key}"), Some(&format!("policy.{other}")), why)),
    );
    found.extend(placements(config));
    found
}

fn conflict(key: &str, other: Option<&str>, why: String) -> Fault {
    Fault::Conflict { key: key.to_owned(), other: other.map(str::to_owned), why }
}

/// A duration and the key that sets it.
type Named = (&'static str, Duration);

fn below(lesser: Named, greater: Named, reason: &str) -> Option<Fault> {
    let why = || format!("{} is not below {} ({}): {reason}", human(lesser.1), greater.0, human(greater.1));
    (lesser.1 >= greater.1).then(|| conflict(lesser.0, Some(greater.0), why()))
}

fn at_most(lesser: Named, greater: Named, reason: &str) -> Option<Fault> {
    let why = || format!("{} is above {} ({}): {reason}", human(lesser.1), greater.0, human(greater.1));
    (lesser.1 > greater.1).then(|| conflict(lesser.0, Some(greater.0), why()))
}

fn timeouts(config: &Config) -> Vec<Fault> {
    let (session, cycle) = (&config.session, &config.cycle);
    let statement = ("session.statement_timeout", session.statement_timeout);
    let idle = ("session.idle_in_transaction_session_timeout", session.idle_in_transaction_session_timeout);
    let deadline = ("cycle.deadline", cycle.deadline);
    let shortest_lease = [
        ("creation_recovery.lease", config.creation_recovery.lease),
        ("shard_dispatcher.lease", config.shard_dispatcher.lease),
        ("finalizer.lease", config.finalizer.lease),
        ("outbox_publisher.lease", config.outbox_publisher.lease),
        ("submission.lease", config.submission.lease),
    ]
    .into_iter()
    .min_by_key(|(_, lease)| *lease);
    [
        below(statement, deadline, "the server must end a statement before its cycle is aborted"),
        at_most(("session.lock_timeout", session.lock_timeout), statement, "it would never be reached"),
        shortest_lease
            .and_then(|lease| below(idle, lease, "a process that hangs must lose its locks before another takes over")),
        at_most(("cycle.stage_budget", cycle.stage_budget), deadline, "a stage would hold back others after its end"),
        below(
            ("broker.confirm_deadline", config.broker.confirm_deadline),
            ("outbox_publisher.lease", config.outbox_publisher.lease),
            "another publisher would send the batch while its confirms are awaited",
        ),
        (config.broker.heartbeat.subsec_nanos() != 0)
            .then(|| conflict("broker.heartbeat", None, "AMQP takes whole seconds".to_owned())),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn delays(config: &Config) -> Vec<Fault> {
    let reason = "the shortest delay cannot be longer than the longest";
    let (broker, finalizer) = (&config.broker, &config.finalizer);
    let (outbox, runtime) = (&config.outbox_publisher, &config.runtime);
    [
        (
            ("broker.reconnect_delay_min", broker.reconnect_delay_min),
            ("broker.reconnect_delay_max", broker.reconnect_delay_max),
        ),
        (
            ("finalizer.look_delay_min", finalizer.look_delay_min),
            ("finalizer.look_delay_max", finalizer.look_delay_max),
        ),
        (
            ("outbox_publisher.retry_delay_min", outbox.retry_delay_min),
            ("outbox_publisher.retry_delay_max", outbox.retry_delay_max),
        ),
        (
            ("runtime.restart_delay_min", runtime.restart_delay_min),
            ("runtime.restart_delay_max", runtime.restart_delay_max),
        ),
    ]
    .into_iter()
    .filter_map(|(min, max)| at_most(min, max, reason))
    .collect()
}

fn sizes(config: &Config) -> Vec<Fault> {
    let (submission, runtime) = (&config.submission, &config.runtime);
    let mut found = Vec::new();
    if submission.part_bytes < submission.payload_limit_bytes {
        let (part, payload) = (submission.part_bytes, submission.payload_limit_bytes);
        let why = format!(
            "{part} is below submission.payload_limit_bytes ({payload}): the largest payload would fit in no part"
        );
        found.push(conflict("submission.part_bytes", Some("submission.payload_limit_bytes"), why));
    }
    if runtime.restarts_total < runtime.restarts {
        let why = format!(
            "{} is below runtime.restarts ({}): one stage could never use its own restarts",
            runtime.restarts_total, runtime.restarts
        );
        found.push(conflict("runtime.restarts_total", Some("runtime.restarts"), why));
    }
    found
}

/// Names, URLs, and two names for one database: a placement's tables have room for one identity.
fn placements(config: &Config) -> Vec<Fault> {
    let mut found = Vec::new();
    let mut seen: Vec<(&str, String)> = Vec::new();
    let control = std::iter::once((CONTROL, "control.url".to_owned(), config.control.url.as_ref()));
    let others = config
        .placements
        .iter()
        .map(|(name, database)| (name.as_str(), format!("placements.{name}.url"), database.url.as_ref()));
    for (name, key, url) in control.chain(others) {
        let Some(url) = url else {
            if name != CONTROL {
                found.push(Fault::NotSet { key });
            }
            continue;
        };
        let Ok(connection) = postgres_url(url.expose()) else { continue };
        let target = format!("{:?} {:?} {:?}", connection.get_hosts(), connection.get_ports(), connection.get_dbname());
        match seen.iter().find(|(_, other)| *other == target) {
            Some((other, _)) => found.push(conflict(&key, None, format!("the same database as the placement {other}"))),
            None => seen.push((name, target)),
        }
    }
    found
}
