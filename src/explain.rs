//! `runherd explain`: why a run is not moving, as findings that say what is so and what to do.
//!
//! Promises that the findings come in the order of likelihood, that each names the facts it rests on, and that a run that moves
//! or has ended is never called stuck. Pure functions over [`Facts`]: what is read, and from where, is in
//! [`crate::store::explain`].

use std::time::Duration;

use serde::Serialize;

use crate::broker::topology::chunk_queue;
use crate::store::explain::{COORDINATOR_ALIVE_MS, Events, Facts, Here, PlacementRow, RunRow, Unreadable};

mod flight;
#[cfg(test)]
mod tests;

/// What takes longer than this in a healthy installation does not happen by itself.
const SLOW_MS: i64 = 10_000;
/// Intents and finalizations that wait for longer are nobody's.
const LATE_MS: i64 = 30_000;

/// How a finding bears on the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bearing {
    /// The run does not move, or not all of it, until somebody does something.
    Blocks,
    /// The run waits for something that comes by itself.
    Waits,
    /// Nothing is wrong.
    Fine,
}

/// One reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its name, for programs.
    pub code: &'static str,
    /// How it bears on the run.
    pub bearing: Bearing,
    /// What is so.
    pub summary: String,
    /// What it rests on.
    pub facts: Vec<String>,
    /// What to do; empty where there is nothing to do.
    pub advice: String,
}

impl Finding {
    fn new(code: &'static str, bearing: Bearing, summary: String, advice: impl Into<String>) -> Self {
        Self { code, bearing, summary, facts: Vec::new(), advice: advice.into() }
    }

    fn blocks(code: &'static str, summary: String, advice: impl Into<String>) -> Self {
        Self::new(code, Bearing::Blocks, summary, advice)
    }

    fn waits(code: &'static str, summary: String, advice: impl Into<String>) -> Self {
        Self::new(code, Bearing::Waits, summary, advice)
    }

    fn fact(mut self, fact: impl Into<String>) -> Self {
        self.facts.push(fact.into());
        self
    }

    fn facts(mut self, facts: impl IntoIterator<Item = String>) -> Self {
        self.facts.extend(facts);
        self
    }
}

/// The broker, as it looks from here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BrokerView {
    /// Nobody asked: no event of the run waits for it.
    NotAsked,
    /// The configuration does not say where it is.
    NotConfigured,
    /// It can be reached.
    Connected,
    /// It takes no messages, or cannot be reached; why.
    Obstacle(String),
}

/// Whether the run's findings depend on the broker, so that it is worth asking.
#[must_use]
pub fn needs_broker(facts: &Facts) -> bool {
    let waits = |events: &Events| events.pending + events.parked > 0;
    let here = facts.placements.iter().filter_map(|placement| placement.here.as_ref().ok());
    waits(&facts.run_events) || here.into_iter().any(|here| here.unleased > 0 || waits(&here.events))
}

/// The findings on a run, the likeliest reason first. `moved`: it was seen to move, between two samples.
#[must_use]
pub fn findings(facts: &Facts, moved: bool, broker: &BrokerView) -> Vec<Finding> {
    let run = &facts.run;
    if run.finished_ms_ago.is_some() {
        return vec![ended(run)];
    }
    let mut found = Vec::new();
    found.extend(no_coordinator(facts));
    found.extend(facts.intents.iter().map(|intent| {
        let summary = format!("a {} was asked for and is not applied yet", intent.intent);
        let fact =
            format!("asked for by {} {} ago{}", intent.requested_by, span(intent.ms_ago), because(&intent.reason));
        let finding = match intent.ms_ago > LATE_MS {
            true => {
                Finding::blocks("intent_waiting", summary, "the finalizer applies it: see that a coordinator runs one")
            }
            false => Finding::waits("intent_waiting", summary, ""),
        };
        finding.fact(fact)
    }));
    if run.paused {
        found.push(Finding::blocks(
            "paused",
            "the run is paused: nothing is handed out".to_owned(),
            "`runherd resume` it",
        ));
    }
    found.extend(creation(facts));
    found.extend(placements(facts));
    found.extend(stopping(facts));
    found.extend(deadline(run));
    found.extend(flight::findings(facts, broker));
    found.extend(finalization(facts));
    conclude(found, facts, moved)
}

/// What moves is not kept by what merely waits.
fn conclude(mut found: Vec<Finding>, facts: &Facts, moved: bool) -> Vec<Finding> {
    if moved {
        found.retain(|finding| finding.bearing == Bearing::Blocks);
        let summary = match found.is_empty() {
            true => format!("nothing is wrong: the {} run is moving", facts.run.status),
            false => "some of the run is moving all the same".to_owned(),
        };
        found.push(Finding::new("moving", Bearing::Fine, summary, "").facts(whereabouts(facts)));
    } else if found.is_empty() {
        let summary = "nothing was seen to move just now, and nothing that would hold the run up".to_owned();
        let advice = "run this again in a few seconds; if it stays so, run `runherd verify` on this run";
        found.push(Finding::waits("quiet", summary, advice).facts(whereabouts(facts)));
    }
    found
}

fn ended(run: &RunRow) -> Finding {
    let totals = run.totals;
    let at = run.finished_at.as_deref().unwrap_or("an unknown time");
    let summary = format!("nothing is wrong: the run ended as {} at {at}{}", run.status, because(&run.reason));
    Finding::new("ended", Bearing::Fine, summary, "").fact(format!(
        "{} succeeded, {} failed, {} cancelled, {} lost",
        totals.succeeded, totals.failed, totals.cancelled, totals.lost
    ))
}

fn no_coordinator(facts: &Facts) -> Option<Finding> {
    let seen = &facts.coordinators;
    if seen.alive > 0 {
        return None;
    }
    let fact = match (seen.last_seen_ms_ago, &seen.last_host) {
        (Some(ms), Some(host)) => format!("the last one was seen {} ago, on {host}", span(ms)),
        _ => "none has ever registered".to_owned(),
    };
    let summary = format!("no coordinator was seen within {}", span(COORDINATOR_ALIVE_MS));
    Some(
        Finding::blocks("no_coordinator", summary, "start one: `runherd serve`, or look why it stopped in its log")
            .fact(fact),
    )
}

/// From the submission to the opening of the cursors, and seeding again after a failover.
fn creation(facts: &Facts) -> Vec<Finding> {
    let run = &facts.run;
    if run.status == "creating" && !run.sealed {
        return vec![unsealed(run)];
    }
    let lacking: Vec<&PlacementRow> = facts
        .placements
        .iter()
        .filter(|placement| placement.reseed_ms_ago.is_some() || run.status == "creating" && !placement.seeded)
        .collect();
    if lacking.is_empty() && run.status != "creating" {
        return Vec::new();
    }
    let names: Vec<&str> = lacking.iter().map(|placement| placement.name.as_str()).collect();
    let (code, summary) = match run.status == "creating" {
        true if names.is_empty() => ("opening", "every placement is seeded; the run waits to be opened".to_owned()),
        true => ("seeding", format!("it is being seeded; not recorded as seeded: {}", names.join(", "))),
        false => ("reseeding", format!("a placement lost chunks and is seeded again: {}", names.join(", "))),
    };
    let held = run.creation_lease_ms > 0;
    let finding = match held || run.creation_lease_ms > -SLOW_MS {
        true => Finding::waits(code, summary, ""),
        false => Finding::blocks(code, summary, "creation_recovery seeds it: see its lines in the coordinators' logs"),
    };
    let lease = match held {
        true => format!("a coordinator holds its creation for another {}", span(run.creation_lease_ms)),
        false => format!("nobody has held its creation for {}", span(run.creation_lease_ms)),
    };
    let parts = lacking.iter().filter_map(|placement| {
        let here = placement.here.as_ref().ok()?;
        Some(format!("{}: {} of {} chunks are there", placement.name, here.seeded_chunks, placement.expected_chunks))
    });
    vec![finding.fact(lease).facts(parts)]
}

fn unsealed(run: &RunRow) -> Finding {
    let fact =
        format!("begun {} ago; {} parts with {} chunks so far", span(run.created_ms_ago), run.parts, run.part_chunks);
    if run.creation_lease_ms > 0 {
        let summary = "it is not sealed: its client is still submitting it".to_owned();
        let lease = format!("the client's lease lasts another {}", span(run.creation_lease_ms));
        return Finding::waits("unsealed", summary, "").fact(fact).fact(lease);
    }
    let summary = format!("it is not sealed, and its client was not heard of for {}", span(run.creation_lease_ms));
    let advice = "submit it again under the same idempotency key, which goes on where the client stopped; if nobody does, \
        creation_recovery fails the run after creation_recovery.abandon_after";
    Finding::blocks("unsealed", summary, advice).fact(fact)
}

/// Placements that hold the run up, or that stopped it.
fn placements(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    for placement in &facts.placements {
        let name = &placement.name;
        let shards = placement.open + placement.exhausted;
        let waiting = match placement.expected_chunks {
            chunks if facts.run.status == "creating" => format!("{chunks} chunks are to be seeded there"),
            _ => format!("{shards} of its shards there are not done, {} chunks to hand out", placement.to_hand_out),
        };
        let done = placement.seeded && shards == 0 && facts.run.status != "creating";
        if placement.state == "offline" && !done {
            let summary = format!("placement {name} is offline: coordinators skip it");
            found.push(Finding::blocks("placement_offline", summary, "set it active again").fact(&*waiting));
        }
        match &placement.here {
            Err(why) if !done => found.push(unreadable(name, why).fact(waiting)),
            Ok(here) => found.extend(guard(facts, placement, here)),
            Err(_) => {}
        }
    }
    found
}

fn unreadable(name: &str, why: &Unreadable) -> Finding {
    match why {
        Unreadable::NotConfigured => {
            let summary = format!("placement {name} is not configured here");
            let advice = format!("set placements.{name}.url here, and see that the coordinators have it");
            Finding::blocks("placement_not_configured", summary, advice)
        }
        Unreadable::Unreachable(why) => {
            let summary = format!("placement {name} cannot be used from here");
            Finding::blocks("placement_down", summary, "bring it back: its shards go on by themselves")
                .fact(why.clone())
        }
    }
}

fn guard(facts: &Facts, placement: &PlacementRow, here: &Here) -> Option<Finding> {
    let live = matches!(facts.run.status.as_str(), "creating" | "pending" | "running");
    let name = &placement.name;
    match here.guard.as_deref() {
        Some("open") => None,
        Some(status) if live => {
            let summary = format!("the run's guard on {name} is {status}, and the run is {}", facts.run.status);
            let advice = "the control database lost a stop that the placement remembers: a coordinator asks for it again, and the \
                run ends; nothing more is handed out there";
            let meant = here.guard_outcome.as_deref().unwrap_or("not recorded");
            Some(Finding::blocks("guard_closed", summary, advice).fact(format!("the outcome that was meant: {meant}")))
        }
        None if live && placement.seeded => {
            let summary = format!("{name} has no guard of this run, although it is recorded as seeded");
            let advice = "the placement lost it, and is seeded again once a coordinator notices";
            Some(Finding::blocks("guard_missing", summary, advice))
        }
        _ => None,
    }
}

fn stopping(facts: &Facts) -> Option<Finding> {
    let run = &facts.run;
    if !matches!(run.status.as_str(), "cancelling" | "failing") {
        return None;
    }
    let summary = format!("it is {}: what is open is being swept{}", run.status, because(&run.reason));
    let rest = facts.placements.iter().filter_map(|placement| {
        let here = placement.here.as_ref().ok()?;
        let guard = here.guard.as_deref().unwrap_or("missing");
        let name = &placement.name;
        Some(format!("{name}: guard {guard}, {} of {} chunks are done with", here.finished, here.chunks))
    });
    let finding = match is_late(run) {
        true => Finding::blocks("stopping", summary, FINALIZER_ADVICE),
        false => Finding::waits("stopping", summary, ""),
    };
    Some(finding.fact(look(run)).facts(rest))
}

fn deadline(run: &RunRow) -> Option<Finding> {
    let passed = run.deadline_in_ms.filter(|ms| *ms < -LATE_MS)?;
    let live = matches!(run.status.as_str(), "creating" | "pending" | "running");
    let summary = format!("its deadline passed {} ago, and nobody stopped it", span(passed));
    live.then(|| Finding::blocks("deadline_passed", summary, FINALIZER_ADVICE).fact(look(run)))
}

const FINALIZER_ADVICE: &str = "the finalizer does it: see its lines in the coordinators' logs";

/// Every chunk is handed out, and nothing is in flight.
fn finalization(facts: &Facts) -> Option<Finding> {
    let run = &facts.run;
    let known = facts.placements.iter().all(|placement| {
        placement.open == 0 && placement.here.as_ref().map_or(placement.exhausted == 0, |here| here.in_flight == 0)
    });
    if !known || !matches!(run.status.as_str(), "pending" | "running") {
        return None;
    }
    let summary = "every chunk is finished; the run waits for the finalizer".to_owned();
    let finding = match is_late(run) {
        true => Finding::blocks("finalizing", summary, FINALIZER_ADVICE),
        false => Finding::waits("finalizing", summary, ""),
    };
    let undrained: i64 = facts.placements.iter().map(|placement| placement.exhausted).sum();
    Some(finding.fact(look(run)).fact(format!("{undrained} shards are not marked drained yet")))
}

/// Whether the finalizer should have looked at the run long ago.
fn is_late(run: &RunRow) -> bool {
    run.finalizer_lease_ms.is_none() && run.look_in_ms.is_some_and(|ms| ms < -LATE_MS)
}

fn look(run: &RunRow) -> String {
    match (run.finalizer_lease_ms, run.look_in_ms) {
        (Some(ms), _) => format!("a finalizer holds it for another {}", span(ms)),
        (None, Some(ms)) if ms < 0 => format!("the finalizer has been due for {}", span(ms)),
        (None, Some(ms)) => format!("the finalizer looks again in {}", span(ms)),
        (None, None) => "the finalizer waits for a signal".to_owned(),
    }
}

/// Where the run's chunks are.
fn whereabouts(facts: &Facts) -> impl Iterator<Item = String> {
    facts.placements.iter().filter_map(|placement| {
        let here = placement.here.as_ref().ok()?;
        let Here { chunks, handed_out, in_flight, leased, .. } = here;
        let name = &placement.name;
        Some(format!("{name}: {handed_out} of {chunks} chunks handed out, {in_flight} in flight, {leased} leased"))
    })
}

fn because(reason: &Option<String>) -> String {
    reason.as_ref().map_or_else(String::new, |reason| format!(" ({reason})"))
}

/// A time for people: whole seconds, or milliseconds where there is no whole second. A sign says nothing here.
fn span(ms: i64) -> String {
    let ms = ms.unsigned_abs();
    let shown = if ms < 1000 { Duration::from_millis(ms) } else { Duration::from_secs(ms / 1000) };
    humantime::format_duration(shown).to_string()
}

/// The queue that workers of this run consume, by its full name.
fn queue(run: &RunRow) -> String {
    chunk_queue(&run.queue)
}
