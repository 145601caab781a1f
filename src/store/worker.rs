//! The worker's contract with one placement: lease, renew, complete, fail, release, in batches.
//!
//! It promises that a refusal is a status and never an error, that every call may be made again with the same tokens, and that
//! payloads and outcomes are the bytes that were given. Every answer names its chunk: a batch is answered in any order.

use std::time::Duration;

use runherd_actors::model::{ChunkKey, LeaseToken, RunId};
use tokio_postgres::Row;
use uuid::Uuid;

use super::query::{Query, query};
use super::{Database, StoreError};

const LEASE: Query = query!("worker/lease");
const RENEW: Query = query!("worker/renew");
const COMPLETE: Query = query!("worker/complete");
const FAIL: Query = query!("worker/fail");
const RELEASE: Query = query!("worker/release");

/// A lease: the chunk, and the token that every later write restates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseKey {
    /// The chunk.
    pub chunk: ChunkKey,
    /// The token it was leased with.
    pub token: LeaseToken,
}

/// What became of the wish to lease one chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseAnswer {
    /// It is ours.
    Leased(Leased),
    /// It is not, and why.
    Refused(LeaseRefusal),
}

/// A chunk that was leased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leased {
    /// Its payload, byte for byte.
    pub payload: String,
    /// The number of this attempt, from 1.
    pub attempt: i32,
    /// How many times it was handed out anew.
    pub generation: i32,
    /// How long the lease lasts, counted from before the call: the run's policy may grant less than was asked for.
    pub granted: Duration,
}

/// Why a chunk was not leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaseRefusal {
    /// It has its final status.
    Finished,
    /// Somebody holds a lease of it, which may have expired; recovery will announce it again.
    Held,
    /// It is to be tried later, and will be announced again.
    NotYet,
    /// Its run takes no more work.
    RunClosed,
    /// This placement does not know it.
    Unknown,
}

/// What became of one lease's renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewAnswer {
    /// It lasts this much longer, counted from before the call.
    Renewed(Duration),
    /// The token holds no lease any more.
    Lost,
    /// The attempt has taken longer than the run's policy allows.
    Overtime,
    /// The run takes no more work.
    RunClosed,
}

/// What became of one write that ends a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndAnswer {
    /// It is written, now or by an earlier call with the same token.
    Done(Next),
    /// The token holds no lease any more; nothing was written.
    Lost,
    /// The run takes no more work; nothing was written.
    RunClosed,
}

/// What comes next for a chunk whose lease has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing: it succeeded.
    Succeeded,
    /// Nothing: it failed for good.
    Failed,
    /// Another attempt, after a delay.
    Retry,
    /// The same attempt again, at once.
    Release,
}

/// A failure to report.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Which lease.
    pub lease: LeaseKey,
    /// What went wrong, for people. (NUL, which PostgreSQL cannot keep, is replaced.)
    pub error: String,
    /// Whether another attempt may mend it.
    pub retryable: bool,
}

/// The worker's functions on one placement. Cheap to clone.
#[derive(Clone, Debug)]
pub struct WorkerStore {
    database: Database,
}

impl WorkerStore {
    /// The functions on this placement.
    #[must_use]
    pub fn new(database: Database) -> Self {
        Self { database }
    }

    /// The placement's name.
    #[must_use]
    pub fn placement(&self) -> &str {
        self.database.name()
    }

    /// Finds out whether the placement can be worked with: reachable, migrated, and ours to use. Changes nothing.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn check(&self) -> Result<(), StoreError> {
        self.renew(&[], Duration::from_secs(1)).await.map(drop)
    }

    /// Leases chunks under one fresh token. A chunk that is named twice is answered once.
    ///
    /// # Errors
    /// See [`StoreError`]. The leases may have been taken all the same: ask again with the same token.
    pub async fn lease(
        &self,
        chunks: &[ChunkKey],
        token: LeaseToken,
        worker_id: &str,
        ttl: Duration,
    ) -> Result<Vec<(ChunkKey, LeaseAnswer)>, StoreError> {
        let (runs, shards, numbers) = columns(chunks.iter().copied());
        let params: super::pool::Params<'_> = &[&runs, &shards, &numbers, &token.0, &worker_id, &ms(ttl)];
        let rows = self.database.query(&LEASE, params).await?;
        rows.iter().map(|row| Ok((key(row), self.lease_answer(row)?))).collect()
    }

    /// Renews leases. Each chunk may be named once.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn renew(&self, leases: &[LeaseKey], ttl: Duration) -> Result<Vec<(ChunkKey, RenewAnswer)>, StoreError> {
        let (runs, shards, numbers) = columns(leases.iter().map(|lease| lease.chunk));
        let tokens = tokens(leases.iter());
        let rows = self.database.query(&RENEW, &[&runs, &shards, &numbers, &tokens, &ms(ttl)]).await?;
        rows.iter().map(|row| Ok((key(row), self.renew_answer(row)?))).collect()
    }

    /// Finishes chunks as succeeded, with their outcomes as JSON text. Each chunk may be named once.
    ///
    /// # Errors
    /// See [`StoreError`]. One outcome that the database does not take fails the whole call.
    pub async fn complete(&self, ends: &[(LeaseKey, &str)]) -> Result<Vec<(ChunkKey, EndAnswer)>, StoreError> {
        let (runs, shards, numbers) = columns(ends.iter().map(|(lease, _)| lease.chunk));
        let tokens = tokens(ends.iter().map(|(lease, _)| lease));
        let outcomes: Vec<&str> = ends.iter().map(|(_, outcome)| *outcome).collect();
        let rows = self.database.query(&COMPLETE, &[&runs, &shards, &numbers, &tokens, &outcomes]).await?;
        rows.iter().map(|row| Ok((key(row), self.end_answer(row, Some("succeeded"))?))).collect()
    }

    /// Reports failures. Each chunk may be named once.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn fail(&self, failures: &[Failure]) -> Result<Vec<(ChunkKey, EndAnswer)>, StoreError> {
        let (runs, shards, numbers) = columns(failures.iter().map(|failure| failure.lease.chunk));
        let tokens = tokens(failures.iter().map(|failure| &failure.lease));
        let errors: Vec<String> = failures.iter().map(|failure| failure.error.replace('\0', "\u{fffd}")).collect();
        let retryable: Vec<bool> = failures.iter().map(|failure| failure.retryable).collect();
        let rows = self.database.query(&FAIL, &[&runs, &shards, &numbers, &tokens, &errors, &retryable]).await?;
        rows.iter().map(|row| Ok((key(row), self.end_answer(row, row.get("next"))?))).collect()
    }

    /// Gives chunks back unfinished. Each chunk may be named once.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn release(&self, leases: &[LeaseKey]) -> Result<Vec<(ChunkKey, EndAnswer)>, StoreError> {
        let (runs, shards, numbers) = columns(leases.iter().map(|lease| lease.chunk));
        let tokens = tokens(leases.iter());
        let rows = self.database.query(&RELEASE, &[&runs, &shards, &numbers, &tokens]).await?;
        rows.iter().map(|row| Ok((key(row), self.end_answer(row, row.get("next"))?))).collect()
    }

    fn lease_answer(&self, row: &Row) -> Result<LeaseAnswer, StoreError> {
        let refusal = match row.get("status") {
            "leased" => {
                return Ok(LeaseAnswer::Leased(Leased {
                    payload: row.get("payload"),
                    attempt: row.get("attempt"),
                    generation: row.get("generation"),
                    granted: left(row),
                }));
            }
            "finished" => LeaseRefusal::Finished,
            "held" => LeaseRefusal::Held,
            "not_yet" => LeaseRefusal::NotYet,
            "run_closed" => LeaseRefusal::RunClosed,
            "unknown" => LeaseRefusal::Unknown,
            other => return Err(self.strange(&LEASE, other)),
        };
        Ok(LeaseAnswer::Refused(refusal))
    }

    fn renew_answer(&self, row: &Row) -> Result<RenewAnswer, StoreError> {
        Ok(match row.get("status") {
            "ok" => RenewAnswer::Renewed(left(row)),
            "lost" => RenewAnswer::Lost,
            "overtime" => RenewAnswer::Overtime,
            "run_closed" => RenewAnswer::RunClosed,
            other => return Err(self.strange(&RENEW, other)),
        })
    }

    fn end_answer(&self, row: &Row, next: Option<&str>) -> Result<EndAnswer, StoreError> {
        Ok(match (row.get("status"), next) {
            ("ok", Some("succeeded")) => EndAnswer::Done(Next::Succeeded),
            ("ok", Some("failed")) => EndAnswer::Done(Next::Failed),
            ("ok", Some("retry")) => EndAnswer::Done(Next::Retry),
            ("ok", Some("release")) => EndAnswer::Done(Next::Release),
            ("lost", _) => EndAnswer::Lost,
            ("run_closed", _) => EndAnswer::RunClosed,
            (other, _) => return Err(self.strange(&COMPLETE, other)),
        })
    }

    fn strange(&self, query: &Query, status: &str) -> StoreError {
        let reason =
            format!("{} answered {status:?}, which this program does not know; use a newer runherd", query.name);
        StoreError::Schema { database: self.placement().to_owned(), reason }
    }
}

fn columns(chunks: impl Iterator<Item = ChunkKey>) -> (Vec<Uuid>, Vec<i32>, Vec<i64>) {
    let (mut runs, mut shards, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
    for chunk in chunks {
        runs.push(chunk.run_id.0);
        shards.push(chunk.run_shard);
        numbers.push(chunk.chunk_no);
    }
    (runs, shards, numbers)
}

fn tokens<'a>(leases: impl Iterator<Item = &'a LeaseKey>) -> Vec<Uuid> {
    leases.map(|lease| lease.token.0).collect()
}

fn key(row: &Row) -> ChunkKey {
    ChunkKey { run_id: RunId(row.get("run_id")), run_shard: row.get("run_shard"), chunk_no: row.get("chunk_no") }
}

fn left(row: &Row) -> Duration {
    // A lease that was answered again may have expired: then nothing is left of it.
    let left: Option<i64> = row.get("left_ms");
    Duration::from_millis(u64::try_from(left.unwrap_or_default()).unwrap_or_default())
}

fn ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
