//! Who is ticked when: the scheduler's decisions as a state machine without clock, actors or randomness of its own.
//!
//! - At most one tick of a stage is in flight; what comes meanwhile becomes one tick after it.
//! - A wave of the cycle begins when every stage of the wave before has reported, or its budget has passed.
//! - A stage that is down, paused or backing off is not waited for.
//! - Calls say what happened at which time and change state; [`Timetable::advance`] says what follows.

use std::time::Duration;

use tokio::time::Instant;

use super::backoff::FOREVER;
use super::status::TickReason;

/// How soon a tick that did not fit into a stage's mailbox is sent again.
const DELIVER_AGAIN: Duration = Duration::from_millis(100);

/// When things are due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rhythm {
    pub(crate) interval: Duration,
    pub(crate) jitter: f64,
    pub(crate) budget: Duration,
}

impl Rhythm {
    fn jittered(&self, period: Duration) -> Duration {
        let jitter = self.jitter.clamp(0.0, 1.0);
        let factor = 1.0 + jitter * (rand::random::<f64>() * 2.0 - 1.0);
        period.min(FOREVER).mul_f64(factor).max(Duration::from_millis(1))
    }
}

/// What an ended cycle asks for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wish {
    pub(crate) more: bool,
    pub(crate) due_in: Option<Duration>,
    /// The stage backs off for this long.
    pub(crate) hold: Option<Duration>,
}

/// What the scheduler does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Tick {
        stage: usize,
        tick: u64,
        reason: TickReason,
    },
    /// These stages have not reported within the budget of their wave.
    WaveOverBudget {
        stages: Vec<usize>,
    },
    CycleCompleted {
        took: Duration,
    },
}

#[derive(Debug, Default)]
struct Slot {
    period: Option<Duration>,
    up: bool,
    paused: bool,
    held_until: Option<Instant>,
    in_flight: Option<Flight>,
    /// The tick that follows the one in flight, or is to be sent now.
    pending: Option<Pending>,
    /// Requests that one before them does for as well.
    coalesced: u64,
    /// The next tick of the stage's own period.
    period_at: Option<Instant>,
    /// The next tick by the stage's own wish.
    due_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Flight {
    tick: u64,
    /// A wave waits for it.
    in_cycle: bool,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    reason: TickReason,
    in_cycle: bool,
}

impl Slot {
    /// Whether the wave should wait for it.
    fn available(&self) -> bool {
        self.up && !self.paused && self.held_until.is_none()
    }

    fn request(&mut self, reason: TickReason) {
        let in_cycle = reason == TickReason::Cycle;
        match &mut self.pending {
            None => self.pending = Some(Pending { reason, in_cycle }),
            Some(pending) => {
                self.coalesced += 1;
                pending.in_cycle |= in_cycle;
                // An operator's tick passes a pause and a backoff, so it must not hide behind another reason.
                if reason == TickReason::Operator {
                    pending.reason = reason;
                }
            }
        }
    }

    fn ready(&self) -> Option<Pending> {
        let pending = self.pending?;
        let admitted = self.available() || (self.up && pending.reason == TickReason::Operator);
        (admitted && self.in_flight.is_none()).then_some(pending)
    }
}

#[derive(Debug)]
struct Cycle {
    began: Instant,
    wave: usize,
    wave_ends: Instant,
    waiting: Vec<usize>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Timetable {
    rhythm: Rhythm,
    slots: Vec<Slot>,
    waves: Vec<Vec<usize>>,
    next_cycle: Instant,
    cycle: Option<Cycle>,
    last_tick: u64,
}

impl Timetable {
    /// `periods` has an entry for each stage: its own period, or `None` for a stage of the cycle. `waves` holds the stages of
    /// the cycle. No stage is up yet. Ticks are numbered from `first_tick` on, so that a new timetable does not mistake an
    /// answer to an earlier one's tick for an answer to its own.
    pub(crate) fn new(
        rhythm: Rhythm,
        periods: &[Option<Duration>],
        waves: Vec<Vec<usize>>,
        first_tick: u64,
        now: Instant,
    ) -> Self {
        let slot =
            |period: &Option<Duration>| Slot { period: *period, period_at: period.map(|_| now), ..Slot::default() };
        Self {
            rhythm,
            slots: periods.iter().map(slot).collect(),
            waves,
            next_cycle: now,
            cycle: None,
            last_tick: first_tick,
        }
    }

    pub(crate) fn up(&mut self, stage: usize, first: Option<TickReason>) {
        self.slots[stage].up = true;
        if let Some(reason) = first {
            self.slots[stage].request(reason);
        }
    }

    pub(crate) fn down(&mut self, stage: usize) {
        let slot = &mut self.slots[stage];
        slot.up = false;
        slot.in_flight = None;
        slot.held_until = None;
        self.wait_no_more(stage);
    }

    pub(crate) fn hold(&mut self, stage: usize, until: Instant) {
        self.slots[stage].held_until = Some(until);
        self.wait_no_more(stage);
    }

    pub(crate) fn pause(&mut self, stage: usize) {
        self.slots[stage].paused = true;
        // A tick in flight is still waited for; one that was not sent will not be.
        if self.slots[stage].in_flight.is_none() {
            self.wait_no_more(stage);
        }
    }

    pub(crate) fn resume(&mut self, stage: usize) {
        if std::mem::take(&mut self.slots[stage].paused) {
            self.slots[stage].request(TickReason::Resume);
        }
    }

    pub(crate) fn request(&mut self, stage: usize, reason: TickReason) {
        self.slots[stage].request(reason);
    }

    /// A tick could not be delivered. It is tried again soon, but not at once: the stage has plenty to read already.
    pub(crate) fn undelivered(&mut self, now: Instant, stage: usize) {
        self.slots[stage].in_flight = None;
        self.slots[stage].due_at = Some(now + DELIVER_AGAIN);
        self.wait_no_more(stage);
    }

    pub(crate) fn ended(&mut self, now: Instant, stage: usize, tick: u64, wish: Wish) {
        let slot = &mut self.slots[stage];
        slot.due_at = wish.due_in.map(|delay| now + delay.min(FOREVER));
        if wish.more {
            slot.request(TickReason::More);
        }
        if let Some(flight) = slot.in_flight.take_if(|flight| flight.tick == tick)
            && flight.in_cycle
        {
            self.wait_no_more(stage);
        }
        if let Some(delay) = wish.hold {
            self.hold(stage, now + delay.min(FOREVER));
        }
    }

    fn wait_no_more(&mut self, stage: usize) {
        if let Some(pending) = &mut self.slots[stage].pending {
            pending.in_cycle = false;
        }
        if let Some(cycle) = &mut self.cycle {
            cycle.waiting.retain(|waiting| *waiting != stage);
        }
    }

    /// Does what is due at `now`. Afterwards nothing is due before [`Timetable::next_wakeup`], unless another call comes.
    pub(crate) fn advance(&mut self, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        self.expire_timers(now);
        self.advance_cycle(now, &mut actions);
        for stage in 0..self.slots.len() {
            self.send(stage, &mut actions);
        }
        actions
    }

    /// How many requests since the last call became one tick with another.
    pub(crate) fn take_coalesced(&mut self) -> u64 {
        self.slots.iter_mut().map(|slot| std::mem::take(&mut slot.coalesced)).sum()
    }

    /// When to call [`Timetable::advance`] again, if nothing happens before.
    pub(crate) fn next_wakeup(&self) -> Instant {
        let of_cycle = self.cycle.as_ref().map_or(self.next_cycle, |cycle| cycle.wave_ends);
        let of_slots = self.slots.iter().flat_map(|slot| [slot.held_until, slot.period_at, slot.due_at]);
        of_slots.flatten().fold(of_cycle, Instant::min)
    }

    fn expire_timers(&mut self, now: Instant) {
        for slot in &mut self.slots {
            if slot.held_until.take_if(|until| *until <= now).is_some() {
                slot.request(TickReason::Retry);
            }
            if slot.due_at.take_if(|at| *at <= now).is_some() {
                slot.request(TickReason::Due);
            }
            if let (Some(period), Some(at)) = (slot.period, slot.period_at)
                && at <= now
            {
                slot.period_at = Some(now + self.rhythm.jittered(period));
                if slot.available() {
                    slot.request(TickReason::Period);
                }
            }
        }
    }

    fn advance_cycle(&mut self, now: Instant, actions: &mut Vec<Action>) {
        if self.cycle.is_none() && self.next_cycle <= now {
            let interval = self.rhythm.interval.max(Duration::from_millis(1));
            self.next_cycle = now + self.rhythm.jittered(interval);
            self.begin_wave(now, now, 0);
        }
        while let Some(cycle) = &self.cycle {
            let over = cycle.wave_ends <= now;
            if !over && !cycle.waiting.is_empty() {
                return;
            }
            if !cycle.waiting.is_empty() {
                actions.push(Action::WaveOverBudget { stages: cycle.waiting.clone() });
            }
            let (began, next) = (cycle.began, cycle.wave + 1);
            if next < self.waves.len() {
                self.begin_wave(now, began, next);
            } else {
                self.cycle = None;
                actions.push(Action::CycleCompleted { took: now - began });
            }
        }
    }

    fn begin_wave(&mut self, now: Instant, began: Instant, wave: usize) {
        let members = self.waves.get(wave).cloned().unwrap_or_default();
        let waiting: Vec<usize> = members.into_iter().filter(|stage| self.slots[*stage].available()).collect();
        for stage in &waiting {
            self.slots[*stage].request(TickReason::Cycle);
        }
        let budget = self.rhythm.budget.max(Duration::from_millis(1));
        self.cycle = Some(Cycle { began, wave, wave_ends: now + budget.min(FOREVER), waiting });
    }

    fn send(&mut self, stage: usize, actions: &mut Vec<Action>) {
        let slot = &mut self.slots[stage];
        let Some(pending) = slot.ready() else { return };
        self.last_tick += 1;
        slot.pending = None;
        slot.in_flight = Some(Flight { tick: self.last_tick, in_cycle: pending.in_cycle });
        actions.push(Action::Tick { stage, tick: self.last_tick, reason: pending.reason });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn rhythm() -> Rhythm {
        Rhythm { interval: SECOND, jitter: 0.0, budget: 2 * SECOND }
    }

    /// Two waves of one stage each, and a third stage beside the cycle; all up.
    fn timetable(now: Instant) -> Timetable {
        let mut timetable = Timetable::new(rhythm(), &[None, None, Some(SECOND)], vec![vec![0], vec![1]], 0, now);
        for stage in 0..3 {
            timetable.up(stage, None);
        }
        timetable
    }

    fn ticks(actions: &[Action]) -> Vec<(usize, TickReason)> {
        let tick = |action: &Action| match action {
            Action::Tick { stage, reason, .. } => Some((*stage, *reason)),
            _ => None,
        };
        actions.iter().filter_map(tick).collect()
    }

    fn tick_of(actions: &[Action], of: usize) -> u64 {
        let tick = |action: &Action| match action {
            Action::Tick { stage, tick, .. } if *stage == of => Some(*tick),
            _ => None,
        };
        actions.iter().find_map(tick).expect("ticked")
    }

    #[test]
    fn a_cycle_that_outlasts_the_interval_is_followed_at_once() {
        let mut now = Instant::now();
        let mut timetable = timetable(now);
        let actions = timetable.advance(now);
        assert_eq!(ticks(&actions), [(0, TickReason::Cycle), (2, TickReason::Period)]);
        let first = tick_of(&actions, 0);
        now += SECOND * 3 / 2;
        timetable.ended(now, 0, first, Wish::default());
        let actions = timetable.advance(now);
        assert_eq!(ticks(&actions), [(1, TickReason::Cycle)]);
        timetable.ended(now, 1, tick_of(&actions, 1), Wish::default());
        let actions = timetable.advance(now);
        assert_eq!(actions, [Action::CycleCompleted { took: SECOND * 3 / 2 }]);
        assert!(timetable.next_wakeup() <= now);
        assert_eq!(ticks(&timetable.advance(now)), [(0, TickReason::Cycle)]);
    }

    #[test]
    fn a_stage_that_goes_down_ends_its_wave() {
        let now = Instant::now();
        let mut timetable = timetable(now);
        timetable.advance(now);
        timetable.down(0);
        assert_eq!(ticks(&timetable.advance(now)), [(1, TickReason::Cycle)]);
        timetable.up(0, Some(TickReason::Restart));
        assert_eq!(ticks(&timetable.advance(now)), [(0, TickReason::Restart)]);
    }

    #[test]
    fn an_answer_to_another_timetables_tick_counts_but_is_not_its_own() {
        let now = Instant::now();
        let mut timetable = timetable(now);
        timetable.advance(now);
        timetable.ended(now, 0, u64::MAX, Wish { more: true, ..Wish::default() });
        assert_eq!(ticks(&timetable.advance(now)), [], "its own is still in flight");
        timetable.ended(now, 0, 1, Wish::default());
        assert_eq!(ticks(&timetable.advance(now)), [(0, TickReason::More), (1, TickReason::Cycle)]);
    }

    #[test]
    fn an_operator_passes_backoff_and_pause_but_not_a_running_cycle() {
        let now = Instant::now();
        let mut timetable = timetable(now);
        let first = tick_of(&timetable.advance(now), 0);
        timetable.request(0, TickReason::Wake);
        timetable.request(0, TickReason::Operator);
        assert_eq!((timetable.take_coalesced(), timetable.take_coalesced()), (1, 0));
        assert_eq!(ticks(&timetable.advance(now)), []);
        timetable.pause(0);
        timetable.ended(now, 0, first, Wish { hold: Some(SECOND), ..Wish::default() });
        assert!(ticks(&timetable.advance(now)).contains(&(0, TickReason::Operator)));
    }

    #[test]
    fn wakes_wait_for_the_backoff_to_end() {
        let now = Instant::now();
        let mut timetable = timetable(now);
        let first = tick_of(&timetable.advance(now), 0);
        timetable.ended(now, 0, first, Wish { hold: Some(SECOND / 4), ..Wish::default() });
        timetable.request(0, TickReason::Wake);
        assert_eq!(ticks(&timetable.advance(now)), [(1, TickReason::Cycle)]);
        assert_eq!(timetable.next_wakeup(), now + SECOND / 4);
        assert_eq!(ticks(&timetable.advance(now + SECOND / 4)), [(0, TickReason::Wake)]);
    }

    #[test]
    fn a_tick_that_was_not_delivered_comes_again_and_absurd_wishes_do_no_harm() {
        let now = Instant::now();
        let mut timetable = timetable(now);
        timetable.advance(now);
        timetable.undelivered(now, 2);
        assert_eq!(ticks(&timetable.advance(now)), []);
        let later = now + DELIVER_AGAIN;
        let actions = timetable.advance(later);
        assert_eq!(ticks(&actions), [(2, TickReason::Due)]);
        let absurd = Wish { due_in: Some(Duration::MAX), hold: Some(Duration::MAX), more: true };
        timetable.ended(later, 2, tick_of(&actions, 2), absurd);
        assert_eq!(ticks(&timetable.advance(later)), []);
    }

    #[test]
    fn it_never_spins() {
        let mut now = Instant::now();
        let mut timetable = timetable(now);
        // Only an overdue cycle is due at once.
        timetable.rhythm.budget = SECOND / 2;
        timetable.pause(1);
        timetable.down(2);
        for _ in 0..1000 {
            timetable.advance(now);
            let next = timetable.next_wakeup();
            assert!(next > now);
            now = next;
        }
    }
}
