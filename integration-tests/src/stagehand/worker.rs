//! What a worker does, through the SQL functions that are its contract, and what happens to one that dies.

use runherd_actors::model::RunId;
use uuid::Uuid;

use super::{Sql, Stagehand};

/// A chunk that a worker holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its run.
    pub run: RunId,
    /// Its shard.
    pub shard: i32,
    /// Its number in the shard.
    pub no: i64,
    /// The token that leased it.
    pub token: Uuid,
}

impl Sql {
    /// Leases a chunk for a minute; answers the status, and the chunk to go on with.
    pub async fn lease(&self, run: RunId, shard: i32, no: i64) -> (String, Held) {
        let token = Uuid::new_v4();
        let lease = "SELECT status FROM runherd.lease_chunk($1, $2, $3, $4, 'a worker', '1 min')";
        let status = self.value(lease, &[&run.0, &shard, &no, &token]).await;
        (status, Held { run, shard, no, token })
    }

    /// Leases a chunk that can be leased.
    ///
    /// # Panics
    /// If it is refused.
    pub async fn hold(&self, run: RunId, shard: i32, no: i64) -> Held {
        let (status, held) = self.lease(run, shard, no).await;
        assert_eq!(status, "leased", "{held:?}");
        held
    }

    /// Leases every chunk of a run that can be leased here.
    pub async fn hold_all(&self, run: RunId) -> Vec<Held> {
        let token = Uuid::new_v4();
        let lease = "SELECT l.run_shard, l.chunk_no FROM (
                SELECT array_agg(a.run_id) AS runs, array_agg(a.run_shard) AS shards, array_agg(a.chunk_no) AS nos
                FROM runherd.active_chunks a WHERE a.run_id = $1 AND a.lease_token IS NULL
            ) x CROSS JOIN LATERAL runherd.lease_chunks(x.runs, x.shards, x.nos, $2, 'a worker', '1 min') l
            WHERE l.status = 'leased' ORDER BY 1, 2";
        let rows = self.rows(lease, &[&run.0, &token]).await;
        rows.iter().map(|row| Held { run, shard: row.get(0), no: row.get(1), token }).collect()
    }

    /// Completes a chunk; the status.
    pub async fn complete(&self, held: Held) -> String {
        let complete = "SELECT runherd.complete_chunk($1, $2, $3, $4, '{\"done\": true}')";
        self.value(complete, &[&held.run.0, &held.shard, &held.no, &held.token]).await
    }

    /// Completes chunks that are all held.
    ///
    /// # Panics
    /// If one is refused.
    pub async fn complete_all(&self, held: &[Held]) {
        let shards: Vec<i32> = held.iter().map(|held| held.shard).collect();
        let nos: Vec<i64> = held.iter().map(|held| held.no).collect();
        let runs: Vec<Uuid> = held.iter().map(|held| held.run.0).collect();
        let tokens: Vec<Uuid> = held.iter().map(|held| held.token).collect();
        let complete = "SELECT count(*) FILTER (WHERE status = 'ok') FROM runherd.complete_chunks($1, $2, $3, $4,
            array_fill('1'::text, ARRAY[cardinality($1::uuid[])])::json[])";
        let done: i64 = self.value(complete, &[&runs, &shards, &nos, &tokens]).await;
        assert_eq!(usize::try_from(done).ok(), Some(held.len()));
    }

    /// Fails a chunk; the status, and what comes next (`retry` or `failed`).
    pub async fn fail(&self, held: Held, retryable: bool) -> (String, Option<String>) {
        let fail = "SELECT status, next FROM runherd.fail_chunk($1, $2, $3, $4, 'it broke', $5)";
        let params: super::Params<'_> = &[&held.run.0, &held.shard, &held.no, &held.token, &retryable];
        let row = self.rows(fail, params).await.remove(0);
        (row.get(0), row.get(1))
    }

    /// Releases a chunk; the status.
    pub async fn release(&self, held: Held) -> String {
        let release = "SELECT status FROM runherd.release_chunk($1, $2, $3, $4)";
        self.value(release, &[&held.run.0, &held.shard, &held.no, &held.token]).await
    }

    /// Renews a lease for a minute; the status.
    pub async fn renew(&self, held: Held) -> String {
        let renew = "SELECT status FROM runherd.renew_lease($1, $2, $3, $4, '1 min')";
        self.value(renew, &[&held.run.0, &held.shard, &held.no, &held.token]).await
    }

    /// Lets every lease of a run expire, as if its workers had died a minute ago.
    pub async fn expire_leases(&self, run: RunId) -> u64 {
        let expire = "UPDATE runherd.active_chunks SET expires_at = now() - interval '1 s'
            WHERE run_id = $1 AND lease_token IS NOT NULL";
        self.run(expire, &[&run.0]).await
    }

    /// Makes what was pushed into the future for a run ready now.
    pub async fn ready_now(&self, run: RunId) {
        self.run("UPDATE runherd.active_chunks SET ready_at = now() WHERE run_id = $1 AND ready_at > now()", &[&run.0])
            .await;
    }
}

impl Stagehand {
    /// Completes, on every placement, all that is handed out of a run; how many chunks that were.
    pub async fn complete_everything(&self, run: RunId) -> usize {
        let mut done = 0;
        for placement in self.placements.values() {
            let held = placement.hold_all(run).await;
            placement.complete_all(&held).await;
            done += held.len();
        }
        done
    }

    /// Hands out and completes until nothing is left of a run; how many chunks were completed.
    pub async fn work_off(&self, run: RunId) -> usize {
        let mut done = 0;
        loop {
            self.dispatch().await;
            match self.complete_everything(run).await {
                0 => return done,
                completed => done += completed,
            }
        }
    }
}
