//! One sample: goes through the databases page by page and collects what is wrong.
//!
//! Reads the control database before the placements: a run that it shows as opened or ended was seeded or swept before that. A
//! placement that cannot be read is named and left out for the rest of the sample.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use runherd_actors::model::Totals;
use uuid::Uuid;

use super::{Checked, Invariant, Violation, Violations, judge};
use crate::config::CONTROL;
use crate::store::verify::{Installation, Placement, RunFacts, ShardFacts, read_outbox, read_runs, read_shards};
use crate::store::{Database, StoreError};
use crate::telemetry::error_chain;

/// Runs read at once.
const RUNS_AT_A_TIME: i64 = 64;
/// Shards counted in one statement, and the chunks that these may have, unless one shard alone has more.
const SHARDS_AT_A_TIME: usize = 4096;
const CHUNKS_AT_A_TIME: i64 = 5_000_000;
/// Violations of one invariant that are kept.
const KEPT: usize = 10_000;

/// What to look at.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// These runs; `None` for all.
    pub(super) runs: Option<Vec<Uuid>>,
    /// These events.
    pub(super) outboxes: Outboxes,
}

/// Which events to look at.
#[derive(Clone, Debug)]
pub(super) enum Outboxes {
    /// All events of all databases; every database has to be there.
    All,
    /// All events of these databases.
    Of(BTreeSet<String>),
    /// The events of one run: in these databases, or wherever it has any.
    OfRun(Uuid, Option<BTreeSet<String>>),
}

/// What a sample found.
#[derive(Debug, Default)]
pub(super) struct Sample {
    pub(super) checked: Checked,
    pub(super) violations: Violations,
    pub(super) incomplete: BTreeSet<Invariant>,
    /// Databases that were left out, and why.
    pub(super) unchecked: BTreeMap<String, String>,
}

/// Takes a sample.
pub(super) async fn take(installation: &Installation, plan: &Plan) -> Result<Sample, StoreError> {
    let mut sampler =
        Sampler { installation, sample: Sample::default(), kept: HashMap::new(), of_run: BTreeSet::new() };
    if matches!(plan.outboxes, Outboxes::All) {
        sampler.demand_all();
    }
    let mut after = Uuid::nil();
    loop {
        let runs = read_runs(&installation.control, after, RUNS_AT_A_TIME, plan.runs.as_deref()).await?;
        let Some(last) = runs.last() else { break };
        after = last.run_id;
        sampler.runs(&runs).await;
    }
    sampler.outboxes(&plan.outboxes).await;
    Ok(sampler.sample)
}

struct Sampler<'a> {
    installation: &'a Installation,
    sample: Sample,
    kept: HashMap<Invariant, usize>,
    /// Databases that hold something of the runs that were looked at.
    of_run: BTreeSet<String>,
}

impl Sampler<'_> {
    /// Names what cannot be looked at for lack of configuration.
    fn demand_all(&mut self) {
        for placement in &self.installation.placements {
            if placement.database.is_none() {
                self.leave_out(&placement.name, not_configured(placement));
            }
        }
        for name in &self.installation.unregistered {
            self.leave_out(name, "it is configured and not registered; run `runherd migrate`".to_owned());
        }
    }

    fn leave_out(&mut self, database: &str, reason: String) {
        self.sample.unchecked.entry(database.to_owned()).or_insert(reason);
    }

    fn is_left_out(&self, database: &str) -> bool {
        self.sample.unchecked.contains_key(database)
    }

    fn add(&mut self, violations: impl IntoIterator<Item = Violation>) {
        for violation in violations {
            let kept = self.kept.entry(violation.invariant).or_default();
            if *kept >= KEPT {
                self.sample.incomplete.insert(violation.invariant);
                continue;
            }
            *kept += 1;
            self.sample.violations.insert(violation.id(), violation);
        }
    }

    /// Looks at a page of runs: at what the control database says, and at their shards on every placement that has some.
    async fn runs(&mut self, runs: &[RunFacts]) {
        let installation = self.installation;
        let mut rows: HashMap<Uuid, Totals> = HashMap::new();
        let mut uncounted: HashSet<Uuid> = HashSet::new();
        for run in runs {
            self.sample.checked.runs += 1;
            self.sample.checked.ended_runs += i64::from(run.is_terminal());
            self.add(judge::run(run));
            let given_up = run.cursors.values().filter(|cursor| cursor.given_up).map(|cursor| cursor.chunk_count).sum();
            rows.insert(run.run_id, Totals { lost: given_up, ..Totals::default() });
        }
        for placement in &installation.placements {
            let keys = keys_on(runs, placement.placement_id);
            if keys.is_empty() {
                continue;
            }
            self.of_run.insert(placement.name.clone());
            for page in pages(&keys) {
                let Some(shards) = self.shards(placement, page).await else {
                    uncounted.extend(page.iter().map(|key| key.run.run_id));
                    continue;
                };
                for shard in shards {
                    self.shard(runs, placement, &shard, &mut rows, &mut uncounted);
                }
            }
        }
        for run in runs.iter().filter(|run| run.is_terminal() && !uncounted.contains(&run.run_id)) {
            self.add(judge::ended(run, rows.get(&run.run_id).copied().unwrap_or_default()));
        }
    }

    async fn shards(&mut self, placement: &Placement, page: &[Key<'_>]) -> Option<Vec<ShardFacts>> {
        if self.is_left_out(&placement.name) {
            return None;
        }
        let Some(database) = &placement.database else {
            self.leave_out(&placement.name, not_configured(placement));
            return None;
        };
        let keys: Vec<(Uuid, i32)> = page.iter().map(|key| (key.run.run_id, key.run_shard)).collect();
        match read_shards(database, &keys).await {
            Ok(shards) => Some(shards),
            Err(error) => {
                self.leave_out(&placement.name, error_chain(&error));
                None
            }
        }
    }

    fn shard(
        &mut self,
        runs: &[RunFacts],
        placement: &Placement,
        shard: &ShardFacts,
        rows: &mut HashMap<Uuid, Totals>,
        uncounted: &mut HashSet<Uuid>,
    ) {
        // The runs of a page are in the order of their identifiers.
        let Ok(at) = runs.binary_search_by_key(&shard.run_id, |run| run.run_id) else { return };
        if judge::is_removed(&runs[at], shard) {
            uncounted.insert(shard.run_id);
            return;
        }
        self.sample.checked.shards += i64::from(shard.chunk_count.is_some() || shard.chunks > 0);
        self.sample.checked.chunks += shard.chunks;
        self.sample.checked.active_rows += shard.active.count;
        let sum = rows.entry(shard.run_id).or_default();
        sum.succeeded += shard.totals.succeeded;
        sum.failed += shard.totals.failed;
        sum.cancelled += shard.totals.cancelled;
        sum.lost += shard.totals.lost;
        self.add(judge::shard(&runs[at], &placement.name, shard));
    }

    async fn outboxes(&mut self, outboxes: &Outboxes) {
        let installation = self.installation;
        let run = if let Outboxes::OfRun(run, _) = outboxes { Some(*run) } else { None };
        for placement in &installation.placements {
            let wanted = match outboxes {
                Outboxes::All => true,
                Outboxes::Of(names) | Outboxes::OfRun(_, Some(names)) => names.contains(&placement.name),
                Outboxes::OfRun(_, None) => placement.name == CONTROL || self.of_run.contains(&placement.name),
            };
            if !wanted || self.is_left_out(&placement.name) {
                continue;
            }
            if let Some(database) = &placement.database {
                self.outbox(database, run).await;
            }
        }
    }

    async fn outbox(&mut self, database: &Database, run: Option<Uuid>) {
        match read_outbox(database, run).await {
            Ok(groups) => {
                self.sample.checked.events += groups.iter().map(|group| group.events).sum::<i64>();
                self.sample.checked.published += groups.iter().map(|group| group.published).sum::<i64>();
                self.add(groups.iter().filter_map(|group| judge::events(database.name(), group)));
            }
            Err(error) => self.leave_out(database.name(), error_chain(&error)),
        }
    }
}

fn not_configured(placement: &Placement) -> String {
    format!(
        "it is {} and the configuration does not say where it is; set placements.{}.url",
        placement.state, placement.name
    )
}

/// A shard that has, or may have, something on a placement.
struct Key<'a> {
    run: &'a RunFacts,
    run_shard: i32,
    chunks: i64,
}

/// The shards of these runs on one placement: by their cursors, and before a run has any, by where it was sealed for.
fn keys_on(runs: &[RunFacts], placement: i32) -> Vec<Key<'_>> {
    let mut keys = Vec::new();
    for run in runs {
        if run.cursors.is_empty() {
            if let Some(chunks) = run.expected.get(&placement) {
                let each = chunks / i64::from(run.shard_count.max(1));
                keys.extend((0..run.shard_count).map(|run_shard| Key { run, run_shard, chunks: each }));
            }
            continue;
        }
        let here = run
            .cursors
            .iter()
            .filter(|(_, cursor)| cursor.placement_id == placement && cursor.chunk_count > 0 && !cursor.given_up);
        keys.extend(here.map(|(run_shard, cursor)| Key { run, run_shard: *run_shard, chunks: cursor.chunk_count }));
    }
    keys
}

/// Splits keys so that one statement reads neither too many shards nor too many chunks.
fn pages<'k, 'r>(keys: &'k [Key<'r>]) -> Vec<&'k [Key<'r>]> {
    let (mut pages, mut begin, mut chunks) = (Vec::new(), 0, 0);
    for (at, key) in keys.iter().enumerate() {
        if at > begin && (at - begin >= SHARDS_AT_A_TIME || chunks + key.chunks > CHUNKS_AT_A_TIME) {
            pages.push(&keys[begin..at]);
            (begin, chunks) = (at, 0);
        }
        chunks += key.chunks;
    }
    if begin < keys.len() {
        pages.push(&keys[begin..]);
    }
    pages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_bounded_in_shards_and_in_chunks_and_lose_nothing() {
        let run = RunFacts::default();
        let key = |chunks| Key { run: &run, run_shard: 0, chunks };
        let lengths = |keys: &[Key<'_>]| pages(keys).iter().map(|page| page.len()).collect::<Vec<_>>();
        assert_eq!(lengths(&[]), Vec::<usize>::new());
        assert_eq!(lengths(&[key(4_000_000), key(1_000_000), key(1), key(9_000_000), key(1)]), [2, 1, 1, 1]);
        let many: Vec<Key<'_>> = (0..SHARDS_AT_A_TIME + 1).map(|_| key(1)).collect();
        assert_eq!(lengths(&many), [SHARDS_AT_A_TIME, 1]);
    }
}
