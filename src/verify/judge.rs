//! What facts mean: which of them violate which invariant.
//!
//! Pure functions over what [`crate::store::verify`] read. Each check belongs to one invariant, and a fact is reported under one
//! invariant wherever the protocol's words allow that: an active row of a finished chunk is I3's, not I1's.

use std::collections::BTreeMap;

use runherd_actors::model::Totals;

use super::{Invariant, Subject, Violation};
use crate::config::CONTROL;
use crate::store::verify::{EventGroup, RunFacts, ShardFacts, Tally};

/// A violation of a run, as the control database shows it.
fn of_run(run: &RunFacts, invariant: Invariant, check: &'static str, detail: String) -> Violation {
    Violation {
        invariant,
        check,
        database: CONTROL.to_owned(),
        key: run.run_id.to_string(),
        count: 1,
        detail,
        subject: Subject::Run(run.run_id),
    }
}

/// Judges what the control database alone says of a run.
pub(super) fn run(run: &RunFacts) -> Vec<Violation> {
    let mut found = opening(run);
    found.extend(seeded(run));
    let wanted = i64::from(run.is_terminal());
    if run.finished_events != wanted {
        let detail = format!("{} finished events in the ledger of a run that is {}", run.finished_events, run.status);
        found.push(of_run(run, Invariant::I6, "finished_event", detail));
    }
    found
}

/// I2: cursors exist only once the run is sealed and every placement is recorded as seeded.
fn opening(run: &RunFacts) -> Vec<Violation> {
    if run.cursors.is_empty() {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut add = |check, detail| found.push(of_run(run, Invariant::I2, check, detail));
    if !run.sealed {
        add("unsealed", "it has cursors and is not sealed".to_owned());
    }
    if run.status == "creating" {
        add("creating", "it has cursors and is still being created".to_owned());
    }
    if run.unseeded > 0 {
        let recorded = run.expected.len() as i64 - run.unseeded;
        add("unseeded", format!("it has cursors, and {recorded} of {} placements are recorded", run.expected.len()));
    }
    let holding = holding(run);
    if !holding.keys().eq(run.expected.keys()) {
        let (sealed, opened) = (ids(run.expected.keys()), ids(holding.keys()));
        add("placements", format!("its cursors are on the placements {opened}, and it was sealed for {sealed}"));
    }
    found
}

/// I1 in the control database: the run's chunks are its cursors' chunks, and its placements' chunks.
fn seeded(run: &RunFacts) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut add = |check, detail| found.push(of_run(run, Invariant::I1, check, detail));
    if run.cursors.is_empty() {
        if matches!(run.status.as_str(), "pending" | "running" | "succeeded") {
            add("cursors", format!("it is {} and has no cursors", run.status));
        }
        return found;
    }
    if run.cursors.len() != run.shard_count as usize {
        add("cursors", format!("it has {} cursors for {} shards", run.cursors.len(), run.shard_count));
    }
    let holding = holding(run);
    let chunks: i64 = holding.values().sum();
    if run.chunk_count.is_some_and(|sealed| sealed != chunks) {
        add("chunks", format!("its cursors have {chunks} chunks; it was sealed with {}", run.chunk_count.unwrap_or(0)));
    }
    for (placement, expected) in &run.expected {
        if let Some(held) = holding.get(placement).filter(|held| *held != expected) {
            let detail =
                format!("its cursors on placement {placement} have {held} chunks, it was sealed for {expected}");
            add("expected", detail);
        }
    }
    found
}

/// Chunks of a run by placement, as its cursors say.
fn holding(run: &RunFacts) -> BTreeMap<i32, i64> {
    let mut holding = BTreeMap::new();
    for cursor in run.cursors.values().filter(|cursor| cursor.chunk_count > 0) {
        *holding.entry(cursor.placement_id).or_insert(0) += cursor.chunk_count;
    }
    holding
}

fn ids<'a>(placements: impl Iterator<Item = &'a i32>) -> String {
    let ids: Vec<String> = placements.map(ToString::to_string).collect();
    if ids.is_empty() { "none".to_owned() } else { ids.join(", ") }
}

/// Whether retention has begun to remove an ended run here: its guard is a tombstone, and no position is left. It removes the
/// positions first, so that what remains for a moment is not taken for damage.
pub(super) fn is_removed(run: &RunFacts, shard: &ShardFacts) -> bool {
    run.is_terminal() && !shard.run_has_positions && shard.guard.as_deref() == Some("closed")
}

/// Judges one shard as a placement shows it, against what the control database says of its run.
pub(super) fn shard(run: &RunFacts, placement: &str, shard: &ShardFacts) -> Vec<Violation> {
    let mut found = Found { placement, shard, violations: Vec::new() };
    found.conservation(run);
    found.chunk_fields();
    if let Some(window) = shard.window.filter(|window| shard.active.count > i64::from(*window)) {
        let detail = format!("{} chunks in flight, the window is {window}", shard.active.count);
        found.one(Invariant::I5, "window", detail);
    }
    if run.is_terminal() {
        let status = &run.status;
        found.chunks(Invariant::I6, "open", shard.open, &format!("open, in a run that is {status}"));
        found.chunks(Invariant::I6, "active", shard.active, &format!("handed out, in a run that is {status}"));
    }
    found.violations
}

struct Found<'a> {
    placement: &'a str,
    shard: &'a ShardFacts,
    violations: Vec<Violation>,
}

impl Found<'_> {
    fn add(&mut self, invariant: Invariant, check: &'static str, chunk: Option<i64>, count: i64, detail: String) {
        let (run, shard) = (self.shard.run_id, self.shard.run_shard);
        let key = chunk.map_or_else(|| format!("{run}/{shard}"), |chunk| format!("{run}/{shard}/{chunk}"));
        let database = self.placement.to_owned();
        let subject = Subject::Shard(run, shard);
        self.violations.push(Violation { invariant, check, database, key, count, detail, subject });
    }

    fn one(&mut self, invariant: Invariant, check: &'static str, detail: String) {
        self.add(invariant, check, None, 1, detail);
    }

    /// Chunks that are what they must not be.
    fn chunks(&mut self, invariant: Invariant, check: &'static str, chunks: Tally, are: &str) {
        if chunks.count > 0 {
            let noun = if chunks.count == 1 { "chunk is" } else { "chunks are" };
            self.add(invariant, check, chunks.first, chunks.count, format!("{} {noun} {are}", chunks.count));
        }
    }

    /// I1.
    fn conservation(&mut self, run: &RunFacts) {
        let shard = self.shard;
        let seeded = shard.chunk_count.unwrap_or(0);
        if shard.chunks != seeded {
            let detail = format!("{} chunk rows, the position says {seeded}", shard.chunks);
            self.one(Invariant::I1, "rows", detail);
        }
        let open_guard = shard.guard.as_deref() == Some("open");
        if shard.part_chunks != seeded && (open_guard || shard.part_chunks > 0) {
            let detail = format!("its parts have {} chunks, the position says {seeded}", shard.part_chunks);
            self.one(Invariant::I1, "parts", detail);
        }
        if !shard.numbered {
            let detail = format!("{} chunks are not numbered from 0 without a gap", shard.chunks);
            self.one(Invariant::I1, "gap", detail);
        }
        let cursor = run.cursors.get(&shard.run_shard);
        if let Some(cursor) = cursor.filter(|cursor| cursor.chunk_count != seeded) {
            let detail = format!("the cursor has {} chunks, the position {seeded}", cursor.chunk_count);
            self.one(Invariant::I1, "cursor", detail);
        }
        if shard.low_totals != shard.counted {
            let (says, are) = (totals(shard.low_totals), totals(shard.counted));
            let detail = format!("below chunk {} the position counts {says}; there are {are}", shard.low_chunk_no);
            self.one(Invariant::I1, "low", detail);
        }
        if shard.guard.is_none() && seeded > 0 {
            self.one(Invariant::I1, "guard", "the run has chunks here and no guard".to_owned());
        }
        if open_guard {
            self.chunks(Invariant::I1, "forgotten", shard.forgotten, "handed out, open, and not active");
            self.chunks(Invariant::I1, "early", shard.early, "active, and not handed out");
            self.chunks(Invariant::I1, "stray", shard.stray, "active, and not there");
        }
    }

    /// I3 and I4.
    fn chunk_fields(&mut self) {
        self.chunks(Invariant::I3, "undead", self.shard.undead, "finished and active");
        let wrong = self.shard.wrong_fields;
        self.chunks(Invariant::I4, "fields", wrong, "in a status that their outcome, error, token or times do not fit");
    }
}

/// Judges the totals of an ended run against its chunk rows, all placements together.
pub(super) fn ended(run: &RunFacts, rows: Totals) -> Option<Violation> {
    if run.totals == rows {
        return None;
    }
    let detail = format!("it ended with {}; its chunk rows are {}", totals(run.totals), totals(rows));
    Some(of_run(run, Invariant::I6, "totals", detail))
}

fn totals(totals: Totals) -> String {
    let Totals { succeeded, failed, cancelled, lost } = totals;
    format!("{succeeded} succeeded, {failed} failed, {cancelled} cancelled, {lost} lost")
}

/// Judges a group of events.
pub(super) fn events(database: &str, group: &EventGroup) -> Option<Violation> {
    let fault = group.fault.as_deref()?;
    let (invariant, check, what) = match fault {
        "queued_without_event" => {
            (Invariant::I7, "queued_without_event", "in the delivery queue and not in the ledger")
        }
        "queued_although_published" => {
            (Invariant::I7, "queued_although_published", "published and still in the delivery queue")
        }
        "not_queued" => (Invariant::I7, "not_queued", "not published and not in the delivery queue"),
        _ => (Invariant::I8, "unproven", "published without a time or a proof, or the other way round"),
    };
    let noun = if group.events == 1 { "event is" } else { "events are" };
    Some(Violation {
        invariant,
        check,
        database: database.to_owned(),
        key: group.first_name.clone(),
        count: group.events,
        detail: format!("{} {noun} {what}", group.events),
        subject: Subject::Events(group.bucket),
    })
}
