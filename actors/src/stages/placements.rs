//! Which placements a pass may work on. A placement that is down is skipped and named; it never holds up the others.

use async_trait::async_trait;

use crate::model::PlacementId;
use crate::runtime::report::{CycleReport, StageError};

/// A placement as a stage sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementRef {
    /// Its number in the control database.
    pub id: PlacementId,
    /// Its name in the configuration.
    pub name: String,
}

/// The placements of this installation, as of now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placements {
    /// Those that can be worked on.
    pub reachable: Vec<PlacementRef>,
    /// Those that cannot, each with the reason.
    pub skipped: Vec<(PlacementRef, String)>,
}

impl Placements {
    /// The numbers of the reachable placements.
    #[must_use]
    pub fn reachable_ids(&self) -> Vec<PlacementId> {
        self.reachable.iter().map(|placement| placement.id).collect()
    }

    /// Names the skipped placements in a report.
    pub fn report_skipped(&self, report: &mut CycleReport) {
        for (placement, reason) in &self.skipped {
            report.blocked_by.push(format!("placement {}: {reason}", placement.name));
        }
    }
}

/// Knows the placements and their health.
#[async_trait]
pub trait PlacementSource: Send + Sync {
    /// The placements, as the control database lists them and as this process can reach them.
    ///
    /// # Errors
    /// Transient, when the control database cannot be read.
    async fn placements(&self) -> Result<Placements, StageError>;
}

/// Runs on with the other placements after one of them failed, as long as its failure is a passing one.
///
/// # Errors
/// Whatever is not transient.
pub fn skip_if_transient<T>(
    result: Result<T, StageError>,
    placement: &PlacementRef,
    report: &mut CycleReport,
) -> Result<Option<T>, StageError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(StageError::Transient { doing, source }) => {
            report.blocked_by.push(format!("placement {}: {doing}: {source}", placement.name));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
