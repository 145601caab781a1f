//! What the parts of one worker share.

use std::sync::Arc;
use std::time::Duration;

use slog::Logger;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::leases::Leases;
use super::pace::RateLimit;
use super::progress::Progress;
use crate::store::worker::WorkerStore;
use crate::telemetry::field;

/// How a worker works.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) concurrency: usize,
    pub(super) batch: usize,
    pub(super) lease_ttl: Duration,
    pub(super) worker_id: String,
    /// How long running handlers may go on when the worker drains.
    pub(super) grace: Duration,
    /// How long a cancelled handler may take to end.
    pub(super) cancel_grace: Duration,
    /// How long a draining worker tries to commit what has ended.
    pub(super) settle_limit: Duration,
}

/// Shared by all parts of one worker.
pub(super) struct Core {
    pub(super) settings: Settings,
    /// Handlers that may run; closed when the worker drains, so that chunks that wait are given back.
    pub(super) slots: Semaphore,
    /// Leases whose work is not over.
    pub(super) room: Arc<Semaphore>,
    /// Take no more leases.
    pub(super) drain: CancellationToken,
    /// Cancels running handlers: the parent of every chunk's own.
    pub(super) cancel: CancellationToken,
    /// Stop trying to commit: the leases will expire.
    pub(super) give_up: CancellationToken,
    /// The worker's future was dropped: stop everything, now.
    pub(super) abandon: CancellationToken,
    pub(super) progress: Arc<Progress>,
    /// How many placements there are.
    pub(super) placements: usize,
    pub(super) failures: RateLimit,
    pub(super) log: Logger,
}

impl Core {
    pub(super) fn new(settings: Settings, placements: usize, drain: CancellationToken, log: Logger) -> Self {
        Self {
            slots: Semaphore::new(settings.concurrency),
            room: Arc::new(Semaphore::new(settings.concurrency + settings.batch)),
            drain,
            cancel: CancellationToken::new(),
            give_up: CancellationToken::new(),
            abandon: CancellationToken::new(),
            progress: Arc::default(),
            placements,
            failures: RateLimit::new(),
            settings,
            log,
        }
    }
}

/// One placement, as a worker sees it.
pub(super) struct Placement {
    pub(super) store: WorkerStore,
    pub(super) leases: Leases,
    /// Leases whose end is not committed. It bounds what piles up while the database is away.
    pub(super) unsettled: Arc<Semaphore>,
    pub(super) log: Logger,
}

impl Placement {
    pub(super) fn new(store: WorkerStore, core: &Core) -> Self {
        let log = core.log.new(slog::o!(field::PLACEMENT => store.placement().to_owned()));
        let unsettled = core.settings.concurrency + 3 * core.settings.batch;
        Self { store, leases: Leases::default(), unsettled: Arc::new(Semaphore::new(unsettled)), log }
    }
}

/// Waits for one permit and takes up to `most` (at least 1) of those that are there then.
pub(super) async fn take_up_to(semaphore: &Arc<Semaphore>, most: usize) -> Option<OwnedSemaphorePermit> {
    let mut permit = semaphore.clone().acquire_owned().await.ok()?;
    let more = semaphore.available_permits().min(most.saturating_sub(1));
    if let Ok(more) = u32::try_from(more)
        && more > 0
        && let Ok(rest) = semaphore.clone().try_acquire_many_owned(more)
    {
        permit.merge(rest);
    }
    Some(permit)
}
