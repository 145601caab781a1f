//! One placement's lane: from announced ranges to leased chunks.
//!
//! Promises that at most `concurrency + batch` leases whose work is not over are held, that one lease call is under way at a
//! time and takes what is waiting (nothing waits for a batch to fill), that a call whose answer was lost is asked again with
//! the same token, and that what is not taken goes back to the queue. Does not know what becomes of a chunk.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use runherd_actors::model::{ChunkKey, LeaseToken};
use slog::{debug, warn};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use super::chunk::Handler;
use super::core::{Core, Placement, take_up_to};
use super::event::{Range, Ticket};
use super::leases::Lease;
use super::pace::Pauses;
use super::settle::{End, Verdict};
use super::work::{Job, work};
use crate::store::worker::{LeaseAnswer, LeaseKey, LeaseRefusal, Leased};
use crate::telemetry::{error_chain, field};

/// How long messages of a placement that is away are kept, where others could use their places.
const PATIENCE: Duration = Duration::from_secs(30);

/// One placement's lane.
pub(super) struct Lane<H> {
    pub(super) core: Arc<Core>,
    pub(super) handler: Arc<H>,
    pub(super) placement: Arc<Placement>,
    pub(super) incoming: UnboundedReceiver<Range>,
    pub(super) ends: UnboundedSender<End>,
    pub(super) waiting: VecDeque<Range>,
}

/// Chunks that are to be leased in one call, with the messages that announced them.
struct Wanted {
    token: LeaseToken,
    chunks: HashMap<ChunkKey, Arc<Ticket>>,
}

/// Room for leases.
struct Permits {
    room: OwnedSemaphorePermit,
    unsettled: OwnedSemaphorePermit,
}

impl<H: Handler> Lane<H> {
    /// Leases and starts what comes in, until the worker drains or nothing more can come.
    pub(super) async fn run(mut self) {
        let drain = self.core.drain.clone();
        loop {
            let permits = tokio::select! {
                biased;
                () = drain.cancelled() => break,
                permits = self.next_permits() => permits,
            };
            let Some(permits) = permits else { break };
            let wanted = self.gather(permits.room.num_permits());
            if !wanted.chunks.is_empty() {
                self.lease(wanted, permits).await;
            }
        }
        for range in self.waiting.drain(..) {
            range.ticket.requeue();
        }
    }

    /// Waits until there is something to lease and room for it; `None` when nothing more will come.
    async fn next_permits(&mut self) -> Option<Permits> {
        if self.waiting.is_empty() {
            let range = self.incoming.recv().await?;
            self.waiting.push_back(range);
        }
        self.collect();
        let unsettled = take_up_to(&self.placement.unsettled, self.wanted()).await?;
        let mut room = take_up_to(&self.core.room, unsettled.num_permits()).await?;
        // Handlers that end together free their permits one by one: let those be counted that are about to.
        tokio::task::yield_now().await;
        let more = unsettled.num_permits() - room.num_permits();
        if more > 0 && self.core.room.available_permits() > 0 {
            room.merge(take_up_to(&self.core.room, more).await?);
        }
        self.collect();
        Some(Permits { room, unsettled })
    }

    fn collect(&mut self) {
        while let Ok(range) = self.incoming.try_recv() {
            self.waiting.push_back(range);
        }
    }

    fn wanted(&self) -> usize {
        let mut wanted = 0;
        for range in &self.waiting {
            wanted += range.remaining();
            if wanted >= self.core.settings.batch {
                return self.core.settings.batch;
            }
        }
        wanted.max(1)
    }

    /// Takes up to `most` chunks from the ranges that wait.
    fn gather(&mut self, most: usize) -> Wanted {
        let mut chunks = HashMap::with_capacity(most);
        while chunks.len() < most
            && let Some(range) = self.waiting.front_mut()
        {
            // The broker has taken the message back, and will bring it again: the rest of it waits for that.
            let next = if range.is_current() { range.take() } else { None };
            let ticket = range.ticket.clone();
            if next.is_none() || range.remaining() == 0 {
                self.waiting.pop_front();
            }
            match next {
                Some(key) if chunks.contains_key(&key) => ticket.chunk_ended(),
                Some(key) => drop(chunks.insert(key, ticket)),
                None => {}
            }
        }
        Wanted { token: LeaseToken::fresh(), chunks }
    }

    async fn lease(&mut self, wanted: Wanted, permits: Permits) {
        let settings = &self.core.settings;
        let keys: Vec<ChunkKey> = wanted.chunks.keys().copied().collect();
        let mut permits = Some(permits);
        let mut pauses = Pauses::default();
        let began = Instant::now();
        loop {
            let asked_at = Instant::now();
            let call = self.placement.store.lease(&keys, wanted.token, &settings.worker_id, settings.lease_ttl);
            let error = match call.await {
                Ok(answers) => {
                    let Some(permits) = permits.take() else { return };
                    return self.start(wanted, answers, asked_at, permits);
                }
                Err(error) => error,
            };
            if self.core.failures.allows() {
                warn!(self.placement.log, "chunks cannot be leased, trying again";
                    field::ERROR => error_chain(&error), "chunks" => keys.len());
            }
            // While this placement is away, the others may use the room.
            drop(permits.take());
            let late = self.core.placements > 1 && began.elapsed() > PATIENCE;
            if late || !self.pause(&mut pauses).await {
                return self.let_go(wanted);
            }
            permits = self.permits(keys.len()).await;
        }
    }

    /// False if the worker drains.
    async fn pause(&self, pauses: &mut Pauses) -> bool {
        tokio::select! {
            () = self.core.drain.cancelled() => false,
            () = pauses.pause() => true,
        }
    }

    /// As many permits as before.
    async fn permits(&self, count: usize) -> Option<Permits> {
        let count = u32::try_from(count).ok()?;
        let unsettled = self.placement.unsettled.clone().acquire_many_owned(count).await.ok()?;
        let room = self.core.room.clone().acquire_many_owned(count).await.ok()?;
        Some(Permits { room, unsettled })
    }

    /// Gives the messages back. The leases may have been taken, in a call whose answer was lost: those are released.
    fn let_go(&mut self, wanted: Wanted) {
        let waiting = self.waiting.drain(..).map(|range| range.ticket);
        for ticket in wanted.chunks.values().cloned().chain(waiting) {
            ticket.requeue();
        }
        for (chunk, ticket) in wanted.chunks {
            let key = LeaseKey { chunk, token: wanted.token };
            let lease = Arc::new(Lease::new(key, self.core.cancel.child_token()));
            // The receiver lives as long as any lane.
            let _ = self.ends.send(End { lease, ticket, verdict: Verdict::Release, unsettled: None });
        }
    }

    /// Starts what was leased, and settles with the broker for the rest.
    fn start(
        &mut self,
        mut wanted: Wanted,
        answers: Vec<(ChunkKey, LeaseAnswer)>,
        asked_at: Instant,
        mut permits: Permits,
    ) {
        let mut jobs: Vec<(Job, Duration)> = Vec::with_capacity(answers.len());
        for (chunk, answer) in answers {
            let Some(ticket) = wanted.chunks.remove(&chunk) else { continue };
            match answer {
                LeaseAnswer::Leased(leased) => {
                    let (Some(room), Some(unsettled)) = (permits.room.split(1), permits.unsettled.split(1)) else {
                        continue;
                    };
                    let key = LeaseKey { chunk, token: wanted.token };
                    let lease = Arc::new(Lease::new(key, self.core.cancel.child_token()));
                    let Leased { payload, attempt, generation, granted } = leased;
                    jobs.push((Job { lease, payload, attempt, generation, ticket, room, unsettled }, granted));
                }
                LeaseAnswer::Refused(refusal) => self.refused(chunk, refusal, &ticket),
            }
        }
        // One answer for each chunk: nothing is left over. If it were, its message would go back to the queue.
        self.placement.leases.insert(jobs.iter().map(|(job, granted)| (job.lease.clone(), *granted)), asked_at);
        for (job, _) in jobs {
            self.core.progress.leased();
            let (core, handler) = (self.core.clone(), self.handler.clone());
            tokio::spawn(work(core, handler, self.placement.clone(), job, self.ends.clone()));
        }
    }

    fn refused(&self, chunk: ChunkKey, refusal: LeaseRefusal, ticket: &Ticket) {
        self.core.progress.refused(refusal);
        if refusal == LeaseRefusal::Unknown && self.core.failures.allows() {
            warn!(self.placement.log, "an announced chunk is not on this placement: is the worker configured with the \
                coordinator's databases, or was the run removed?";
                field::RUN_ID => %chunk.run_id, field::RUN_SHARD => chunk.run_shard, field::CHUNK_NO => chunk.chunk_no);
        } else {
            debug!(self.placement.log, "chunk not leased"; field::REASON => format!("{refusal:?}"),
                field::RUN_ID => %chunk.run_id, field::RUN_SHARD => chunk.run_shard, field::CHUNK_NO => chunk.chunk_no);
        }
        ticket.chunk_ended();
    }
}
