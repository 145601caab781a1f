//! `runherd verify`: whether what the databases hold obeys the protocol's invariants.
//!
//! Promises that a violation is reported only if two samples, a pause apart, both show it, so that a transition between two
//! databases is never one; and that nothing counts as obeyed that could not be looked at: it is named as unchecked. Works page by
//! page: databases of any size need little memory here, and no statement there sends more than counts. Changes nothing.
//!
//! `judge` knows what the facts mean, `sample` goes through the databases, [`crate::store::verify`] reads.

mod judge;
mod sample;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;
use uuid::Uuid;

use crate::config::CONTROL;
use crate::store::StoreError;
use crate::store::verify::Installation;
use sample::{Outboxes, Plan, Sample};

/// What must hold; the numbers are the protocol's (docs/protocol.md §7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Invariant {
    /// Conservation.
    I1,
    /// Nothing is opened before everything is seeded.
    I2,
    /// Finished chunks are not active.
    I3,
    /// A final status goes with its fields.
    I4,
    /// The window.
    I5,
    /// Terminal runs.
    I6,
    /// The delivery queue.
    I7,
    /// Proof of publishing.
    I8,
}

impl Invariant {
    /// All that are checked.
    pub const ALL: [Self; 8] = [Self::I1, Self::I2, Self::I3, Self::I4, Self::I5, Self::I6, Self::I7, Self::I8];

    /// What it demands, in a few words.
    #[must_use]
    pub fn what(self) -> &'static str {
        match self {
            Self::I1 => "no chunk is lost, counted twice or forgotten",
            Self::I2 => "opened only after sealing and complete seeding",
            Self::I3 => "no finished chunk is handed out",
            Self::I4 => "a chunk's fields go with its status",
            Self::I5 => "in flight within the window",
            Self::I6 => "ended runs are clean, counted and announced once",
            Self::I7 => "queued for delivery exactly if not published",
            Self::I8 => "published events have their proof",
        }
    }

    /// What is counted as checked for it.
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            Self::I1 | Self::I5 => "shards",
            Self::I2 | Self::I6 => "runs",
            Self::I3 => "active rows",
            Self::I4 => "chunks",
            Self::I7 | Self::I8 => "events",
        }
    }
}

/// What a violation is about; with the check's name, this is what two samples must agree on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Subject {
    /// A run.
    Run(Uuid),
    /// A shard of a run.
    Shard(Uuid, i32),
    /// A group of events.
    Events(i64),
}

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// What it violates.
    pub invariant: Invariant,
    /// The check that found it.
    pub check: &'static str,
    /// The database that shows it; for what two databases disagree on, the placement.
    pub database: String,
    /// The run, `run/shard`, `run/shard/chunk` or dedupe key; where it stands for several, the first.
    pub key: String,
    /// How many chunks, events or facts it stands for.
    pub count: i64,
    /// What is wrong.
    pub detail: String,
    #[serde(skip)]
    subject: Subject,
}

/// What is to be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every run, and every event of every database.
    All,
    /// One run.
    Run(Uuid),
}

/// How to check.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The pause before the second sample, for what is in flight to arrive.
    pub pause: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { pause: Duration::from_secs(1) }
    }
}

/// How much was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// Runs.
    pub runs: i64,
    /// Runs that are over.
    pub ended_runs: i64,
    /// Shards that have chunks.
    pub shards: i64,
    /// Chunks.
    pub chunks: i64,
    /// Chunks that are handed out and not finished.
    pub active_rows: i64,
    /// Ledger events, and queue rows without one.
    pub events: i64,
    /// Published events.
    pub published: i64,
}

impl Checked {
    /// How much was checked for one invariant, in its [`Invariant::unit`].
    #[must_use]
    pub fn of(&self, invariant: Invariant) -> i64 {
        match invariant {
            Invariant::I1 | Invariant::I5 => self.shards,
            Invariant::I2 => self.runs,
            Invariant::I3 => self.active_rows,
            Invariant::I4 => self.chunks,
            Invariant::I6 => self.ended_runs,
            Invariant::I7 => self.events,
            Invariant::I8 => self.published,
        }
    }
}

/// A database that could not be looked at, or not completely.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unchecked {
    /// Its name.
    pub database: String,
    /// Why, and what to do.
    pub reason: String,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// How much was looked at.
    pub checked: Checked,
    /// What both samples showed, by invariant.
    pub violations: Vec<Violation>,
    /// What only the first sample showed: transitions in flight.
    pub passing: u64,
    /// Invariants with more violations than are kept; theirs are incomplete.
    pub incomplete: BTreeSet<Invariant>,
    /// What could not be looked at.
    pub unchecked: Vec<Unchecked>,
}

impl Report {
    /// Whether everything was looked at and nothing is wrong.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.violations.is_empty() && self.unchecked.is_empty()
    }

    /// The violations of one invariant.
    pub fn of(&self, invariant: Invariant) -> impl Iterator<Item = &Violation> {
        self.violations.iter().filter(move |violation| violation.invariant == invariant)
    }

    /// How many chunks, events and facts violate one invariant.
    #[must_use]
    pub fn count(&self, invariant: Invariant) -> i64 {
        self.of(invariant).map(|violation| violation.count).sum()
    }
}

/// Checks the invariants.
///
/// # Errors
/// The control database cannot be read. A placement that cannot be read is named in [`Report::unchecked`].
pub async fn verify(installation: &Installation, scope: Scope, options: Options) -> Result<Report, StoreError> {
    let plan = match scope {
        Scope::All => Plan { runs: None, outboxes: Outboxes::All },
        Scope::Run(run) => Plan { runs: Some(vec![run]), outboxes: Outboxes::OfRun(run, None) },
    };
    let mut first = sample::take(installation, &plan).await?;
    if scope != Scope::All && first.checked.runs == 0 {
        // Nothing is wrong with it, and nothing was looked at: that must not read as OK.
        first.unchecked.insert(CONTROL.to_owned(), "the run is not there, or not any more".to_owned());
    }
    if first.violations.is_empty() {
        return Ok(report(first, None));
    }
    tokio::time::sleep(options.pause).await;
    let second = sample::take(installation, &again(&plan, &first)).await?;
    Ok(report(first, Some(second)))
}

/// The second sample looks only where the first one found something.
fn again(plan: &Plan, first: &Sample) -> Plan {
    let (mut runs, mut databases) = (BTreeSet::new(), BTreeSet::new());
    for violation in first.violations.values() {
        match violation.subject {
            Subject::Run(run) | Subject::Shard(run, _) => drop(runs.insert(run)),
            Subject::Events(_) => drop(databases.insert(violation.database.clone())),
        }
    }
    let outboxes = match plan.outboxes {
        Outboxes::OfRun(run, _) => Outboxes::OfRun(run, Some(databases)),
        Outboxes::All | Outboxes::Of(_) => Outboxes::Of(databases),
    };
    Plan { runs: Some(runs.into_iter().collect()), outboxes }
}

fn report(first: Sample, second: Option<Sample>) -> Report {
    let mut incomplete = first.incomplete;
    let mut unchecked = first.unchecked;
    let found = first.violations.len() as u64;
    let mut violations = Vec::new();
    if let Some(second) = second {
        let agreed = second.violations.into_iter().filter(|(id, _)| first.violations.contains_key(id));
        violations = agreed.map(|(_, violation)| violation).collect();
        incomplete.extend(second.incomplete);
        for (database, reason) in second.unchecked {
            unchecked.entry(database).or_insert(reason);
        }
    }
    incomplete.retain(|invariant| violations.iter().any(|violation| violation.invariant == *invariant));
    let passing = found.saturating_sub(violations.len() as u64);
    let unchecked = unchecked.into_iter().map(|(database, reason)| Unchecked { database, reason }).collect();
    Report { checked: first.checked, violations, passing, incomplete, unchecked }
}

/// What two samples must agree on: the invariant, the check, the database and the subject.
type ViolationId = (Invariant, Subject, &'static str, String);

impl Violation {
    fn id(&self) -> ViolationId {
        (self.invariant, self.subject.clone(), self.check, self.database.clone())
    }
}

/// Violations by what identifies them.
type Violations = BTreeMap<ViolationId, Violation>;

#[cfg(test)]
mod tests;
