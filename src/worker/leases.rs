//! The leases that are held on one placement, and the heartbeat that renews them.
//!
//! Promises that whatever is held is renewed when a third of it has passed, many in one call, also while it waits for a slot or
//! for its end to be committed; and that whoever works under a lease that is lost is told. A database that is away is asked
//! again and again: nobody can take the lease from there either. Does not know what is done under a lease.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use runherd_actors::model::{ChunkKey, LeaseToken};
use slog::{Logger, info, warn};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::pace::{Pauses, RateLimit};
use crate::store::worker::{LeaseKey, RenewAnswer, WorkerStore};
use crate::telemetry::{error_chain, field};

/// The most leases renewed in one call.
const BATCH: usize = 1_000;
/// How long to sleep when nothing is held; an insert wakes sooner.
const IDLE: Duration = Duration::from_secs(3600);
/// No lease is renewed more often, however short a policy makes it.
const PACE_MIN: Duration = Duration::from_millis(20);

/// One lease that this worker believes to hold.
pub(super) struct Lease {
    pub(super) key: LeaseKey,
    /// Told to whoever works under it.
    pub(super) cancelled: CancellationToken,
    lost: AtomicBool,
    /// The work is over and only its end is to be committed: the database will say what that comes to.
    settling: AtomicBool,
}

impl Lease {
    pub(super) fn new(key: LeaseKey, cancelled: CancellationToken) -> Self {
        Self { key, cancelled, lost: AtomicBool::new(false), settling: AtomicBool::new(false) }
    }

    /// Whether what was done under it is of no use any more.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// From now on the lease is renewed, but not reported as lost: its end may have been committed a moment ago.
    pub(super) fn settle(&self) {
        self.settling.store(true, Ordering::Release);
    }

    fn lose(&self) {
        self.lost.store(true, Ordering::Release);
        self.cancelled.cancel();
    }
}

struct Held {
    lease: Arc<Lease>,
    renew_at: Instant,
    pace: Duration,
}

/// The leases held on one placement.
#[derive(Default)]
pub(super) struct Leases {
    held: Mutex<HashMap<ChunkKey, Held>>,
    inserted: Notify,
}

impl Leases {
    /// Notes leases that were granted for this long at `asked_at`.
    pub(super) fn insert(&self, leases: impl Iterator<Item = (Arc<Lease>, Duration)>, asked_at: Instant) {
        let mut held = self.lock();
        for (lease, granted) in leases {
            let pace = (granted / 3).max(PACE_MIN);
            let key = lease.key.chunk;
            let now = Held { lease, renew_at: asked_at + pace, pace };
            if let Some(before) = held.insert(key, now) {
                // Leased anew: what we held of it was lost, and we were not told yet.
                before.lease.lose();
            }
        }
        drop(held);
        self.inserted.notify_one();
    }

    /// Forgets a lease.
    pub(super) fn remove(&self, key: LeaseKey) {
        let mut held = self.lock();
        if held.get(&key.chunk).is_some_and(|now| now.lease.key.token == key.token) {
            held.remove(&key.chunk);
        }
    }

    fn next_due(&self) -> Option<Instant> {
        self.lock().values().map(|held| held.renew_at).min()
    }

    /// The leases that are due, and those that soon will be: together they cost one call.
    fn due(&self) -> Vec<LeaseKey> {
        let now = Instant::now();
        let due = |held: &&Held| held.renew_at <= now + held.pace / 2;
        self.lock().values().filter(due).take(BATCH).map(|held| held.lease.key).collect()
    }

    /// Notes what became of a lease; true if it was held and is lost.
    fn note(&self, key: LeaseKey, answer: RenewAnswer, asked_at: Instant) -> bool {
        let mut held = self.lock();
        let Some(now) = held.get_mut(&key.chunk).filter(|now| now.lease.key.token == key.token) else { return false };
        if let RenewAnswer::Renewed(granted) = answer {
            // Less and less is granted towards the longest time that a chunk may take; then the answer is overtime.
            now.renew_at = asked_at + (granted / 3).max(PACE_MIN);
            return false;
        }
        if now.lease.settling.load(Ordering::Acquire) {
            now.renew_at = asked_at + now.pace;
            return false;
        }
        now.lease.lose();
        held.remove(&key.chunk);
        true
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ChunkKey, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Renews what is held on one placement, for as long as it is polled.
pub(super) async fn heartbeat(leases: &Leases, store: &WorkerStore, ttl: Duration, log: &Logger) {
    let mut pauses = Pauses::default();
    let complaints = RateLimit::new();
    loop {
        let until = leases.next_due().unwrap_or_else(|| Instant::now() + IDLE);
        tokio::select! {
            () = tokio::time::sleep_until(until.into()) => {}
            () = leases.inserted.notified() => continue,
        }
        let due = leases.due();
        let asked_at = Instant::now();
        match store.renew(&due, ttl).await {
            Ok(answers) => {
                pauses.reset();
                let tokens: HashMap<ChunkKey, LeaseToken> = due.iter().map(|key| (key.chunk, key.token)).collect();
                for (chunk, answer) in answers {
                    let Some(&token) = tokens.get(&chunk) else { continue };
                    if leases.note(LeaseKey { chunk, token }, answer, asked_at) {
                        info!(log, "lease lost, its work is cancelled"; field::REASON => reason(answer),
                            field::RUN_ID => %chunk.run_id, field::RUN_SHARD => chunk.run_shard, field::CHUNK_NO => chunk.chunk_no);
                    }
                }
            }
            Err(error) => {
                if complaints.allows() {
                    warn!(log, "leases cannot be renewed, trying again"; field::ERROR => error_chain(&error), "leases" => due.len());
                }
                pauses.pause().await;
            }
        }
    }
}

fn reason(answer: RenewAnswer) -> &'static str {
    match answer {
        RenewAnswer::Renewed(_) => "renewed",
        RenewAnswer::Lost => "lost",
        RenewAnswer::Overtime => "overtime",
        RenewAnswer::RunClosed => "run_closed",
    }
}
