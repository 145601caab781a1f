//! What holds up the chunks of a live run: the window, the outbox, the broker, the workers, the leases.

use super::{BrokerView, Finding, SLOW_MS, queue, span};
use crate::store::explain::{Events, Facts, Here, PlacementRow, RunRow};

/// The findings, from the hand-out to the worker, for each placement that can be read.
pub(super) fn findings(facts: &Facts, broker: &BrokerView) -> Vec<Finding> {
    let run = &facts.run;
    let mut found = Vec::new();
    found.extend(broker_obstacle(facts, broker));
    if !matches!(run.status.as_str(), "pending" | "running") {
        return found;
    }
    found.extend(outbox("control", "run events", &facts.run_events));
    let readable = || facts.placements.iter().filter_map(|placement| Some((placement, placement.here.as_ref().ok()?)));
    for (placement, here) in readable() {
        let name = &placement.name;
        found.extend(outbox(name, "events that announce chunks", &here.events));
        found.extend(unleased(run, placement, here));
        found.extend(expired(placement, here));
        found.extend(full(placement, here));
        found.extend(undispatched(run, placement, here));
    }
    for (placement, here) in readable() {
        found.extend(leased(placement, here));
        found.extend(retries(placement, here));
    }
    found
}

fn broker_obstacle(facts: &Facts, broker: &BrokerView) -> Option<Finding> {
    let here = facts.placements.iter().filter_map(|placement| placement.here.as_ref().ok());
    let waiting = std::iter::once(&facts.run_events).chain(here.map(|here| &here.events));
    let waiting: i64 = waiting.map(|events| events.pending + events.parked).sum();
    let fact = format!("{waiting} events of this run wait to be published");
    match broker {
        BrokerView::NotAsked | BrokerView::Connected => None,
        BrokerView::NotConfigured => {
            let summary = "the broker is not configured here, so it was not asked".to_owned();
            Some(Finding::waits("broker_not_asked", summary, "set broker.url").fact(fact))
        }
        BrokerView::Obstacle(why) => {
            let summary = "the broker cannot be used from here".to_owned();
            let advice = "bring it back: the backlog drains by itself, and nothing is lost";
            Some(Finding::blocks("broker_down", summary, advice).fact(why.clone()).fact(fact))
        }
    }
}

/// Events that are not published.
fn outbox(database: &str, what: &str, events: &Events) -> Vec<Finding> {
    let mut found = Vec::new();
    let error = events.last_error.iter().map(|error| format!("last error: {error}"));
    let age = events.oldest_ms.unwrap_or(0);
    if events.parked > 0 {
        let summary =
            format!("{} {what} on {database} are parked: they failed too often, and are retried slowly", events.parked);
        let advice = "mend what the error says; they are published at the next attempt";
        found.push(Finding::blocks("events_parked", summary, advice).facts(error.clone()));
    }
    if events.pending > 0 {
        let summary = format!("{} {what} on {database} are not published yet", events.pending);
        let finding = match age > SLOW_MS {
            true => {
                Finding::blocks("events_pending", summary, "see the outbox_publisher's lines in the coordinators' logs")
            }
            false => Finding::waits("events_pending", summary, ""),
        };
        let fact = format!("the oldest waits for {}; {} are in the hands of a publisher", span(age), events.claimed);
        found.push(finding.fact(fact).facts(error));
    }
    found
}

/// Chunks that are ready, not in the outbox any more, and that no worker has leased.
fn unleased(run: &RunRow, placement: &PlacementRow, here: &Here) -> Option<Finding> {
    let events = &here.events;
    if here.unleased > 0 && events.pending + events.parked + events.published == 0 {
        return Some(unannounced(placement, here));
    }
    if events.published == 0 || here.unleased == 0 {
        return None;
    }
    let age = events.published_ms_ago.unwrap_or(0);
    let queue = queue(run);
    let name = &placement.name;
    let summary = format!("{} chunks on {name} are announced on {queue}, and no worker has leased them", here.unleased);
    let fact = format!("{} events are published, the first {} ago", events.published, span(age));
    let working = here.leased > 0;
    let advice = format!(
        "see whether workers consume the queue: `rabbitmqctl list_queues name messages consumers` shows {queue}; \
         an event that got lost is published again after the run's redelivery_after"
    );
    let finding = match age > SLOW_MS && !working {
        true => Finding::blocks("no_worker", summary, advice),
        false => Finding::waits("unleased", summary, ""),
    };
    Some(finding.fact(fact))
}

/// No event can wake a worker up for them, and none will come.
fn unannounced(placement: &PlacementRow, here: &Here) -> Finding {
    let summary = format!("{} chunks on {} are handed out, and no event announces them", here.unleased, placement.name);
    Finding::blocks("unannounced", summary, "that must not be: run `runherd verify` on this run")
}

fn expired(placement: &PlacementRow, here: &Here) -> Option<Finding> {
    if here.expired == 0 {
        return None;
    }
    let name = &placement.name;
    let age = here.expired_for_ms.unwrap_or(0);
    let summary = format!("{} leases on {name} have expired and are not recovered", here.expired);
    let finding = match age > SLOW_MS {
        true => {
            let advice = "lease_recovery does it: see its lines in the coordinators' logs";
            Finding::blocks("leases_expired", summary, advice)
        }
        false => Finding::waits("leases_expired", summary, ""),
    };
    Some(finding.fact(format!("the first expired {} ago", span(age))))
}

fn full(placement: &PlacementRow, here: &Here) -> Option<Finding> {
    let full = here.full.as_ref()?;
    let name = &placement.name;
    let summary =
        format!("the window is full on {} shards on {name}: more is handed out as chunks finish", full.shards);
    let advice = "more workers, or a larger window for the next run, if workers are idle";
    let finding = Finding::waits("window_full", summary, advice);
    let shard = full.run_shard;
    let finding = finding.fact(format!("{} of {} in flight on shard {shard}", full.in_flight, full.window));
    Some(match &full.oldest {
        None => finding.fact(format!("nothing of shard {shard} is leased")),
        Some(lease) => finding.fact(format!(
            "chunk {shard}/{}, leased by {} for {}, {}",
            lease.chunk_no,
            lease.worker_id,
            span(lease.held_for_ms),
            until(lease.lease_ms)
        )),
    })
}

fn until(lease_ms: i64) -> String {
    let (verb, ending) = if lease_ms < 0 { ("expired", " ago") } else { ("expires in", "") };
    format!("{verb} {}{ending}", span(lease_ms))
}

/// Cursors that are due, and that no dispatcher takes.
fn undispatched(run: &RunRow, placement: &PlacementRow, here: &Here) -> Option<Finding> {
    let late = placement.due_for_ms.filter(|ms| *ms > SLOW_MS)?;
    let stopped = run.paused || here.guard.as_deref() != Some("open");
    if placement.due == 0 || stopped {
        return None;
    }
    let name = &placement.name;
    let summary = format!("{} shards on {name} have chunks to hand out, and no dispatcher takes them", placement.due);
    let advice = format!(
        "see the shard_dispatcher's lines in the coordinators' logs: runs of higher priority come first, and a coordinator \
         that cannot reach {name} skips it"
    );
    let fact = format!("due for {}; {} chunks to hand out", span(late), placement.to_hand_out);
    Some(Finding::blocks("not_dispatched", summary, advice).fact(fact))
}

fn leased(placement: &PlacementRow, here: &Here) -> Option<Finding> {
    if here.leased == 0 {
        return None;
    }
    let name = &placement.name;
    let summary = format!("workers are at {} chunks on {name}", here.leased);
    let fact = format!("the last of their leases ends in {}, unless it is renewed", span(here.lease_ms.unwrap_or(0)));
    Some(Finding::waits("leased", summary, "").fact(fact))
}

fn retries(placement: &PlacementRow, here: &Here) -> Option<Finding> {
    if here.waiting == 0 {
        return None;
    }
    let name = &placement.name;
    let summary = format!("{} chunks on {name} wait before they are tried again", here.waiting);
    let fact = format!("the first is due in {}", span(here.ready_in_ms.unwrap_or(0)));
    Some(Finding::waits("retries_waiting", summary, "").fact(fact))
}
