//! What `watch`, `status` and the commands that wait show of a run: how far it has come, by everything that can be asked.
//!
//! The control database says what a run is; how many chunks are finished is known on its placements. A placement that is not
//! configured here, or does not answer, is named, and its part is what the control database knows.

use std::collections::HashMap;
use std::time::Duration;

use futures::future::join_all;
use runherd_actors::model::{RunId, RunStatus, Totals};
use serde::Serialize;
use tokio::time::timeout;

use super::{CliError, Context, EXIT_CANCELLED, EXIT_FAILED, EXIT_OK};
use crate::config::CONTROL;
use crate::store::client::{ClientStore, PlacementProgress, PlacementView, RunView, placement_progress};
use crate::store::{Database, StoreError};
use crate::telemetry::error_chain;

/// How long one placement may take to answer before it counts as not available.
const PLACEMENT_WITHIN: Duration = Duration::from_secs(5);

/// One look at a run.
#[derive(Clone, Debug, Serialize)]
pub struct Snapshot {
    /// What the control database knows.
    #[serde(flatten)]
    pub run: RunView,
    /// How far it has come.
    pub progress: RunProgress,
    /// What each placement knows.
    pub live: Vec<Live>,
}

/// What one placement knows of a run, or why that cannot be said.
#[derive(Clone, Debug, Serialize)]
pub struct Live {
    /// Its name in the configuration.
    pub placement: String,
    /// How far the run has come there.
    pub progress: Option<PlacementProgress>,
    /// Why it cannot be said.
    pub problem: Option<String>,
}

/// How far a run has come, over all placements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RunProgress {
    /// Chunks seeded; they grow while the run is `creating`.
    pub seeded: i64,
    /// Chunks handed out.
    pub handed_out: i64,
    /// Chunks handed out and not finished.
    pub in_flight: i64,
    /// Chunks that a worker holds.
    pub leased: i64,
    /// Finished chunks, by outcome.
    pub totals: Totals,
    /// Finished chunks.
    pub finished: i64,
    /// Whether some placement did not answer: the numbers are low then.
    pub incomplete: bool,
}

/// Looks at one run, again and again.
pub struct Looker {
    store: ClientStore,
    placements: HashMap<String, Result<Database, String>>,
    run_id: RunId,
}

impl Looker {
    /// For this run.
    #[must_use]
    pub fn new(store: ClientStore, run_id: RunId) -> Self {
        let control = (CONTROL.to_owned(), Ok(store.database().clone()));
        Self { store, placements: HashMap::from([control]), run_id }
    }

    /// Asks the control database, then every placement of the run at once.
    ///
    /// # Errors
    /// The control database cannot be asked, or knows no such run.
    pub async fn look(&mut self, context: &Context) -> Result<Snapshot, CliError> {
        let Some(run) = self.store.read_run(self.run_id).await? else {
            return Err(CliError::Data(format!(
                "there is no run {}; it may have been removed after its retention",
                self.run_id
            )));
        };
        for placement in &run.placements {
            self.placements
                .entry(placement.name.clone())
                .or_insert_with(|| context.database(&placement.name).map_err(|error| error_chain(&error)));
        }
        let live = join_all(run.placements.iter().map(|view| self.ask(view))).await;
        let progress = RunProgress::of(&run, &live);
        Ok(Snapshot { run, progress, live })
    }

    async fn ask(&self, view: &PlacementView) -> Live {
        let answer = match self.placements.get(&view.name) {
            Some(Ok(database)) => match timeout(PLACEMENT_WITHIN, placement_progress(database, self.run_id)).await {
                Ok(answer) => answer.map_err(|error| error_chain(&error)),
                Err(_) => Err("it does not answer".to_owned()),
            },
            Some(Err(problem)) => Err(problem.clone()),
            None => Err("it is not configured here".to_owned()),
        };
        let (progress, problem) = match answer {
            Ok(progress) => (Some(progress), None),
            Err(problem) => (None, Some(problem)),
        };
        Live { placement: view.name.clone(), progress, problem }
    }
}

impl RunProgress {
    /// Adds up what the placements know; where one is silent, what its cursors know.
    fn of(run: &RunView, live: &[Live]) -> Self {
        let mut sum = Self::default();
        for (view, live) in run.placements.iter().zip(live) {
            match live.progress {
                Some(progress) => sum.add(&progress),
                None => sum.add_mirror(view),
            }
        }
        if run.status.is_terminal() {
            // The run's own totals are final, whatever a placement says or does not say.
            sum.totals = run.totals;
            sum.finished = run.totals.finished();
            sum.incomplete = false;
        }
        sum
    }

    fn add(&mut self, progress: &PlacementProgress) {
        let PlacementProgress { finished, failed, cancelled, lost, .. } = *progress;
        self.seeded += progress.seeded;
        self.handed_out += progress.handed_out;
        self.in_flight += progress.in_flight;
        self.leased += progress.leased;
        self.finished += finished;
        self.totals.failed += failed;
        self.totals.cancelled += cancelled;
        self.totals.lost += lost;
        self.totals.succeeded += (finished - failed - cancelled - lost).max(0);
    }

    fn add_mirror(&mut self, view: &PlacementView) {
        self.incomplete = true;
        self.seeded += if view.seeded { view.chunks } else { 0 };
        self.handed_out += view.handed_out;
        self.finished += view.totals.finished();
        self.totals.succeeded += view.totals.succeeded;
        self.totals.failed += view.totals.failed;
        self.totals.cancelled += view.totals.cancelled;
        self.totals.lost += view.totals.lost;
    }
}

impl Snapshot {
    /// The placements that did not answer, each with its reason.
    pub fn silent(&self) -> impl Iterator<Item = (&str, &str)> {
        self.live.iter().filter_map(|live| Some((live.placement.as_str(), live.problem.as_deref()?)))
    }

    /// The status in words: with what is asked and not applied yet.
    #[must_use]
    pub fn status_words(&self) -> String {
        status_words(self.run.status, self.run.paused, self.run.intents.iter().map(|intent| intent.intent.as_str()))
    }

    /// How the run ended, or stands, in one line.
    #[must_use]
    pub fn summary(&self) -> String {
        let RunView { run_id, reason, .. } = &self.run;
        let mut line = format!("run {run_id} {}", self.status_words());
        if self.run.status.is_terminal() || self.progress.finished > 0 {
            line.push_str(&format!(": {}", totals_words(&self.progress.totals)));
        }
        if let Some(reason) = reason {
            line.push_str(&format!(" ({reason})"));
        }
        line
    }
}

/// The exit status of a command that waited for a run.
#[must_use]
pub fn exit_code(status: RunStatus) -> u8 {
    match status {
        RunStatus::Succeeded => EXIT_OK,
        RunStatus::Cancelled => EXIT_CANCELLED,
        _ => EXIT_FAILED,
    }
}

/// `running, paused, cancel requested`.
pub(super) fn status_words<'a>(status: RunStatus, paused: bool, intents: impl IntoIterator<Item = &'a str>) -> String {
    let mut words = status.to_string();
    if paused && !status.is_terminal() {
        words.push_str(", paused");
    }
    for intent in intents {
        words.push_str(&format!(", {intent} requested"));
    }
    words
}

/// `998 succeeded, 2 failed`: what there is none of is left out, but for the first.
pub(super) fn totals_words(totals: &Totals) -> String {
    let mut words = format!("{} succeeded", totals.succeeded);
    for (count, word) in [(totals.failed, "failed"), (totals.cancelled, "cancelled"), (totals.lost, "lost")] {
        if count > 0 {
            words.push_str(&format!(", {count} {word}"));
        }
    }
    words
}

/// A duration in whole seconds, in words.
pub(super) fn whole_seconds(duration: Duration) -> String {
    humantime::format_duration(Duration::from_secs(duration.as_secs())).to_string()
}

/// Whether a command that waits should go on after this error.
pub(super) fn passes(error: &CliError) -> bool {
    matches!(error, CliError::Store(StoreError::Unavailable { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(finished: i64, failed: i64) -> PlacementProgress {
        PlacementProgress {
            guard_open: true,
            seeded: 100,
            handed_out: 50,
            in_flight: 50 - finished,
            finished,
            failed,
            ..PlacementProgress::default()
        }
    }

    #[test]
    fn placements_add_up_and_silent_ones_count_as_their_cursors_know() {
        let mut sum = RunProgress::default();
        sum.add(&progress(40, 3));
        let mirror = PlacementView {
            name: "p".to_owned(),
            chunks: 70,
            seeded: true,
            reseeding: false,
            shards: 2,
            open: 1,
            exhausted: 0,
            drained: 1,
            handed_out: 60,
            totals: Totals { succeeded: 20, ..Totals::default() },
        };
        sum.add_mirror(&mirror);
        let totals = Totals { succeeded: 57, failed: 3, ..Totals::default() };
        let expected = RunProgress {
            seeded: 170,
            handed_out: 110,
            in_flight: 10,
            leased: 0,
            totals,
            finished: 60,
            incomplete: true,
        };
        assert_eq!(sum, expected);
    }

    #[test]
    fn words() {
        assert_eq!(status_words(RunStatus::Running, true, ["cancel"]), "running, paused, cancel requested");
        assert_eq!(status_words(RunStatus::Failed, true, []), "failed");
        assert_eq!(totals_words(&Totals::default()), "0 succeeded");
        let totals = Totals { succeeded: 1, failed: 2, cancelled: 3, lost: 4 };
        assert_eq!(totals_words(&totals), "1 succeeded, 2 failed, 3 cancelled, 4 lost");
        assert_eq!(whole_seconds(Duration::from_millis(61_900)), "1m 1s");
        assert_eq!(exit_code(RunStatus::Cancelled), 3);
        assert_eq!(exit_code(RunStatus::Failed), 1);
        assert_eq!(exit_code(RunStatus::Succeeded), 0);
    }
}
