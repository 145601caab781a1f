//! The runtime's own records for metrics pipelines, one of each kind (or for each mailbox) at intervals.

use slog::info;
use tokio::time::Instant;

use super::Core;
use super::status::millis;
use super::totals::Totals;

/// Remembers what the last record told, so that the next one tells what came after it.
#[derive(Debug)]
pub(super) struct Reporter {
    told: Totals,
    at: Instant,
}

impl Reporter {
    pub(super) fn new() -> Self {
        Self { told: Totals::default(), at: Instant::now() }
    }

    /// What was counted since the last such record.
    pub(super) fn tell_runtime(&mut self, core: &Core) {
        let (totals, now) = (core.board.totals(), Instant::now());
        let since = totals.since(self.told);
        info!(core.log, "runtime"; "interval_ms" => millis(now - self.at), "uptime_ms" => millis(core.board.age()),
            "cycles" => since.cycles, "stage_cycles" => since.stage_cycles, "stage_cycles_full" => since.full,
            "full_cycle_ratio" => since.full_ratio(), "stage_cycles_failed" => since.failed,
            "coalesced_ticks" => since.coalesced_ticks, "deaths" => since.deaths, "restarts" => since.restarts);
        *self = Self { told: totals, at: now };
    }
}

/// Each mailbox, as it is now and with all that it counted.
pub(super) fn tell_mailboxes(core: &Core) {
    for mailbox in core.board.mailboxes() {
        info!(core.log, "mailbox";
            "actor" => mailbox.actor, "mailbox_depth" => mailbox.depth, "mailbox_max_depth" => mailbox.max_depth,
            "mailbox_capacity" => mailbox.capacity, "mailbox_handled" => mailbox.handled,
            "mailbox_rejected" => mailbox.rejected, "mailbox_dead_letters" => mailbox.dead_letters,
            "mailbox_wait_p50_us" => mailbox.wait.p50_us, "mailbox_wait_p99_us" => mailbox.wait.p99_us,
            "mailbox_wait_max_us" => mailbox.wait.max_us,
            "mailbox_handling_p50_us" => mailbox.handling.p50_us,
            "mailbox_handling_p99_us" => mailbox.handling.p99_us,
            "mailbox_handling_max_us" => mailbox.handling.max_us);
    }
}
