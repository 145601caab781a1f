//! Commits how chunks ended: what waits when a call returns forms the next call.
//!
//! Promises that an end is written until the database has answered for it (the lease token makes writing it again harmless),
//! that one end that the database does not take spoils no other, and that a chunk's message learns of its end only after the
//! commit. Ends that cannot be written before the worker must go are left to the lease's expiry.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use runherd_actors::model::ChunkKey;
use slog::{debug, error, warn};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedReceiver;

use super::chunk::{ChunkError, Outcome};
use super::core::{Core, Placement};
use super::event::Ticket;
use super::leases::Lease;
use super::pace::{Pauses, RateLimit};
use crate::store::StoreError;
use crate::store::worker::{EndAnswer, Failure, LeaseKey};
use crate::telemetry::{error_chain, field};

/// The most ends, and about the most bytes of outcomes and errors, in one call.
const BATCH: usize = 500;
const BATCH_BYTES: usize = 4 << 20;

/// How a chunk's lease is to end.
pub(super) enum Verdict {
    Complete(Outcome),
    Fail(ChunkError),
    Release,
}

impl Verdict {
    fn kind(&self) -> usize {
        match self {
            Self::Complete(_) => 0,
            Self::Fail(_) => 1,
            Self::Release => 2,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Complete(outcome) => outcome.json().len(),
            Self::Fail(failure) => failure.error.len(),
            Self::Release => 0,
        }
    }
}

/// A chunk whose work is over.
pub(super) struct End {
    pub(super) lease: Arc<Lease>,
    pub(super) ticket: Arc<Ticket>,
    pub(super) verdict: Verdict,
    /// Dropped when the end is settled.
    pub(super) unsettled: Option<OwnedSemaphorePermit>,
}

/// Commits one placement's ends, until no more can come.
pub(super) async fn settle(core: Arc<Core>, placement: Arc<Placement>, mut ends: UnboundedReceiver<End>) {
    let settler = Settler { core, placement, complaints: RateLimit::new() };
    let mut batch = Vec::with_capacity(BATCH);
    while ends.recv_many(&mut batch, BATCH).await > 0 {
        for call in calls(batch.drain(..)) {
            settler.commit(call).await;
        }
    }
}

/// Sorts ends into calls: one kind in each, each chunk once, not too many bytes.
fn calls(ends: impl Iterator<Item = End>) -> Vec<Vec<End>> {
    #[derive(Default)]
    struct Call {
        ends: Vec<End>,
        chunks: HashSet<ChunkKey>,
        bytes: usize,
    }
    let mut done = Vec::new();
    let mut open: [Call; 3] = Default::default();
    for end in ends {
        let call = &mut open[end.verdict.kind()];
        call.bytes += end.verdict.bytes();
        // The same chunk twice: an older lease that was lost ends beside the newer one.
        if !call.chunks.insert(end.lease.key.chunk) || (call.bytes > BATCH_BYTES && !call.ends.is_empty()) {
            let bytes = end.verdict.bytes();
            done.push(std::mem::take(call).ends);
            call.chunks.insert(end.lease.key.chunk);
            call.bytes = bytes;
        }
        call.ends.push(end);
    }
    done.extend(open.into_iter().map(|call| call.ends).filter(|ends| !ends.is_empty()));
    done
}

struct Settler {
    core: Arc<Core>,
    placement: Arc<Placement>,
    complaints: RateLimit,
}

impl Settler {
    async fn commit(&self, call: Vec<End>) {
        let mut rest = vec![call];
        let mut pauses = Pauses::default();
        while let Some(mut call) = rest.pop() {
            let answered = tokio::select! {
                biased;
                () = self.core.give_up.cancelled() => {
                    self.leave(call);
                    continue;
                }
                answered = self.write(&call) => answered,
            };
            match answered {
                Ok(answers) => {
                    pauses.reset();
                    self.settled(call, &answers);
                }
                Err(error) if is_final(&error) && call.len() > 1 => {
                    let second = call.split_off(call.len() / 2);
                    rest.extend([second, call]);
                }
                Err(error) if is_final(&error) => rest.extend(self.refused(call, &error)),
                Err(error) => {
                    if self.complaints.allows() {
                        warn!(self.placement.log, "ends of chunks cannot be committed, trying again";
                            field::ERROR => error_chain(&error), "chunks" => call.len());
                    }
                    rest.push(call);
                    tokio::select! {
                        () = self.core.give_up.cancelled() => {}
                        () = pauses.pause() => {}
                    }
                }
            }
        }
    }

    async fn write(&self, call: &[End]) -> Result<Vec<(ChunkKey, EndAnswer)>, StoreError> {
        let store = &self.placement.store;
        match call.first().map(|end| &end.verdict) {
            None => Ok(Vec::new()),
            Some(Verdict::Complete(_)) => {
                let outcome = |end: &'_ End| match &end.verdict {
                    Verdict::Complete(outcome) => outcome.json().to_owned(),
                    Verdict::Fail(_) | Verdict::Release => String::new(),
                };
                let outcomes: Vec<String> = call.iter().map(outcome).collect();
                let leases = call.iter().map(|end| end.lease.key);
                let ends: Vec<(LeaseKey, &str)> = leases.zip(outcomes.iter().map(String::as_str)).collect();
                store.complete(&ends).await
            }
            Some(Verdict::Fail(_)) => store.fail(&call.iter().filter_map(failure).collect::<Vec<_>>()).await,
            Some(Verdict::Release) => store.release(&call.iter().map(|end| end.lease.key).collect::<Vec<_>>()).await,
        }
    }

    fn settled(&self, call: Vec<End>, answers: &[(ChunkKey, EndAnswer)]) {
        let answers: HashMap<ChunkKey, EndAnswer> = answers.iter().copied().collect();
        for end in call {
            let key = end.lease.key;
            self.placement.leases.remove(key);
            match answers.get(&key.chunk) {
                Some(EndAnswer::Done(next)) => self.core.progress.ended(*next),
                // After a call whose answer was lost this may also mean that the failure or release was written then.
                Some(EndAnswer::Lost | EndAnswer::RunClosed) | None => {
                    self.core.progress.lost();
                    debug!(self.placement.log, "the lease was lost before its end was committed";
                        field::RUN_ID => %key.chunk.run_id, field::RUN_SHARD => key.chunk.run_shard,
                        field::CHUNK_NO => key.chunk.chunk_no);
                }
            }
            end.ticket.chunk_ended();
            drop(end.unsettled);
        }
    }

    /// The database does not take this end, and never will. An outcome that it does not take fails its chunk.
    fn refused(&self, call: Vec<End>, why: &StoreError) -> Option<Vec<End>> {
        let mut end = call.into_iter().next()?;
        let chunk = end.lease.key.chunk;
        let text = error_chain(why);
        if matches!(end.verdict, Verdict::Complete(_)) && !is_broken(why) {
            end.verdict = Verdict::Fail(ChunkError::fatal(format!("the database does not take the outcome: {text}")));
            return Some(vec![end]);
        }
        error!(self.placement.log, "the end of a chunk was refused"; field::ERROR => text,
            field::RUN_ID => %chunk.run_id, field::RUN_SHARD => chunk.run_shard, field::CHUNK_NO => chunk.chunk_no);
        self.placement.leases.remove(end.lease.key);
        self.core.progress.lost();
        end.ticket.chunk_ended();
        None
    }

    /// The worker must go: the leases expire, and recovery announces the chunks again.
    fn leave(&self, call: Vec<End>) {
        for end in call {
            self.placement.leases.remove(end.lease.key);
            self.core.progress.lost();
            end.ticket.requeue();
        }
    }
}

fn failure(end: &End) -> Option<Failure> {
    let Verdict::Fail(failure) = &end.verdict else { return None };
    Some(Failure { lease: end.lease.key, error: failure.error.clone(), retryable: failure.retryable })
}

/// Whether trying again cannot help: the data are wrong (or too deep), or the rows contradict each other.
fn is_final(error: &StoreError) -> bool {
    sql_state(error).is_some_and(|state| state.starts_with("22") || state.starts_with("54")) || is_broken(error)
}

fn is_broken(error: &StoreError) -> bool {
    sql_state(error) == Some("RH500")
}

fn sql_state(error: &StoreError) -> Option<&str> {
    let StoreError::Failed { source, .. } = error else { return None };
    source.downcast_ref::<tokio_postgres::Error>()?.code().map(|state| state.code())
}
