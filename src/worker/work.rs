//! One leased chunk: wait for a slot, let the handler work, say how it ended.
//!
//! Promises that a handler whose lease is lost is told, is dropped if it does not listen, and that its result is discarded; and
//! that a panic is the chunk's failure, not the worker's.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use serde_json::value::RawValue;
use slog::{debug, info};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedSender;

use super::chunk::{Chunk, ChunkError, Handler};
use super::core::{Core, Placement};
use super::event::Ticket;
use super::leases::Lease;
use super::settle::{End, Verdict};
use crate::telemetry::field;

/// A leased chunk.
pub(super) struct Job {
    pub(super) lease: Arc<Lease>,
    pub(super) payload: String,
    pub(super) attempt: i32,
    pub(super) generation: i32,
    pub(super) ticket: Arc<Ticket>,
    pub(super) room: OwnedSemaphorePermit,
    pub(super) unsettled: OwnedSemaphorePermit,
}

/// Works on one chunk and passes its end on.
pub(super) async fn work<H: Handler>(
    core: Arc<Core>,
    handler: Arc<H>,
    placement: Arc<Placement>,
    job: Job,
    ends: UnboundedSender<End>,
) {
    let Job { lease, payload, attempt, generation, ticket, room, unsettled } = job;
    let verdict = tokio::select! {
        biased;
        () = core.abandon.cancelled() => return,
        verdict = judge(&core, handler.as_ref(), &lease, payload, (attempt, generation)) => verdict,
    };
    drop(room);
    if lease.is_lost() {
        placement.leases.remove(lease.key);
        core.progress.lost();
        // Whoever took the chunk from us sees to its next announcement.
        ticket.chunk_ended();
        return;
    }
    lease.settle();
    if let Verdict::Fail(failure) = &verdict {
        report(&core, &placement, &lease, attempt, failure);
    }
    // The receiver lives as long as any sender.
    let _ = ends.send(End { lease, ticket, verdict, unsettled: Some(unsettled) });
}

async fn judge<H: Handler>(
    core: &Core,
    handler: &H,
    lease: &Lease,
    payload: String,
    (attempt, generation): (i32, i32),
) -> Verdict {
    let slot = tokio::select! {
        slot = core.slots.acquire() => slot,
        () = lease.cancelled.cancelled() => return Verdict::Release,
    };
    let Ok(_slot) = slot else { return Verdict::Release };
    let payload = match RawValue::from_string(payload) {
        Ok(payload) => payload,
        Err(error) => return Verdict::Fail(ChunkError::fatal(format!("the payload cannot be read: {error}"))),
    };
    let cancelled = lease.cancelled.clone();
    let chunk = Chunk { key: lease.key.chunk, payload, attempt, generation, cancelled };
    let result = tokio::select! {
        result = AssertUnwindSafe(handler.handle(chunk)).catch_unwind() => result,
        () = overdue(core, lease) => return Verdict::Release,
    };
    match result {
        Ok(Ok(outcome)) => Verdict::Complete(outcome),
        // It was told to stop, and that is no failure of the chunk's.
        Ok(Err(_)) if lease.cancelled.is_cancelled() => Verdict::Release,
        Ok(Err(error)) => Verdict::Fail(error),
        Err(panic) => Verdict::Fail(ChunkError::retryable(format!("the handler panicked: {}", panic_text(&*panic)))),
    }
}

/// A cancelled handler has had its time to end.
async fn overdue(core: &Core, lease: &Lease) {
    lease.cancelled.cancelled().await;
    tokio::time::sleep(core.settings.cancel_grace).await;
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("(no text)")
}

fn report(core: &Core, placement: &Placement, lease: &Lease, attempt: i32, failure: &ChunkError) {
    let chunk = lease.key.chunk;
    let error = failure.error.as_str();
    if core.failures.allows() {
        info!(placement.log, "chunk failed"; field::ERROR => error, "retryable" => failure.retryable,
            field::ATTEMPT => attempt, field::RUN_ID => %chunk.run_id, field::RUN_SHARD => chunk.run_shard,
            field::CHUNK_NO => chunk.chunk_no);
    } else {
        debug!(placement.log, "chunk failed"; field::ERROR => error, "retryable" => failure.retryable,
            field::ATTEMPT => attempt, field::RUN_ID => %chunk.run_id, field::RUN_SHARD => chunk.run_shard,
            field::CHUNK_NO => chunk.chunk_no);
    }
}
