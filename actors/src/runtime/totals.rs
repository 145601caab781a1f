//! What the runtime counts from its start on. A report tells the difference between two readings.

use serde::{Deserialize, Serialize};

/// Counts since the runtime was made.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Totals {
    /// Cycles completed, each through all waves.
    pub cycles: u64,
    /// Cycles of single stages that ended.
    pub stage_cycles: u64,
    /// Those whose report said that there is more to do.
    pub full: u64,
    /// Those that ended without a report.
    pub failed: u64,
    /// Ticks that were not sent, because one that waited already does for both.
    pub coalesced_ticks: u64,
    /// Stages and schedulers that died.
    pub deaths: u64,
    /// Stages and schedulers that were started again.
    pub restarts: u64,
}

impl Totals {
    /// What was counted after an earlier reading.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            cycles: self.cycles - earlier.cycles,
            stage_cycles: self.stage_cycles - earlier.stage_cycles,
            full: self.full - earlier.full,
            failed: self.failed - earlier.failed,
            coalesced_ticks: self.coalesced_ticks - earlier.coalesced_ticks,
            deaths: self.deaths - earlier.deaths,
            restarts: self.restarts - earlier.restarts,
        }
    }

    /// Which part of the cycles of single stages left more to do; 0 where there were none.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio in a log line")]
    pub fn full_ratio(&self) -> f64 {
        if self.stage_cycles == 0 { 0.0 } else { self.full as f64 / self.stage_cycles as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_of_what_was_counted_since() {
        let earlier = Totals { stage_cycles: 10, full: 10, ..Totals::default() };
        let now = Totals { stage_cycles: 14, full: 11, deaths: 2, ..Totals::default() };
        let since = now.since(earlier);
        assert_eq!(since, Totals { stage_cycles: 4, full: 1, deaths: 2, ..Totals::default() });
        assert_eq!((since.full_ratio(), Totals::default().full_ratio()), (0.25, 0.0));
    }
}
