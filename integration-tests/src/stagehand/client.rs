//! What a client does, through the SQL functions that are its contract.

use runherd_actors::model::RunId;
use serde_json::{Value, json};
use uuid::Uuid;

use super::Stagehand;

/// A part of a submission: how many chunks it holds, and its text.
#[derive(Clone, Debug)]
pub struct Part {
    /// Chunks.
    pub chunks: i32,
    /// JSON: an array of payloads or a range.
    pub body: String,
}

impl Part {
    /// A part of numbers.
    #[must_use]
    pub fn of(chunks: i32) -> Self {
        Self { chunks, body: json!((0..chunks).collect::<Vec<_>>()).to_string() }
    }

    /// A range that its placement expands.
    #[must_use]
    pub fn range(start: i64, step: i64, end: i64) -> Self {
        let chunks = (end - start + step - 1) / step;
        let chunks = i32::try_from(chunks).expect("a part of a test is small");
        Self { chunks, body: json!({"start": start, "step": step, "end": end}).to_string() }
    }
}

/// `parts` parts of `chunks` chunks each: with as many shards as parts, one part a shard.
#[must_use]
pub fn parts(parts: usize, chunks: i32) -> Vec<Part> {
    vec![Part::of(chunks); parts]
}

impl Stagehand {
    /// Submits a run in parts and seals it; part p belongs to shard p mod `shards`.
    pub async fn submit(&self, header: Value, parts: &[Part]) -> RunId {
        let (run, token) = self.begin(header, None, parts).await;
        self.seal(run, token, parts.len()).await;
        run
    }

    /// Submits a run whose shards lie on both placements.
    pub async fn submit_split(&self, header: Value, parts: &[Part]) -> RunId {
        loop {
            let (run, token) = self.begin(header.clone(), None, parts).await;
            let used: i64 = self
                .control
                .value("SELECT count(DISTINCT placement_id) FROM runherd.run_seeds WHERE run_id = $1", &[&run.0])
                .await;
            if used == 2 {
                self.seal(run, token, parts.len()).await;
                return run;
            }
            self.control.run("DELETE FROM runherd.runs WHERE run_id = $1", &[&run.0]).await;
        }
    }

    /// Begins a run and appends parts; it is not sealed.
    pub async fn begin(&self, header: Value, key: Option<&str>, parts: &[Part]) -> (RunId, Uuid) {
        let begin = "SELECT run_id, creation_token FROM runherd.begin_run($1::text::jsonb, $2, '1 min')";
        let row = self.control.rows(begin, &[&header.to_string(), &key]).await.remove(0);
        let (run, token): (Uuid, Uuid) = (row.get(0), row.get(1));
        for (number, part) in parts.iter().enumerate() {
            let number = i32::try_from(number).expect("a test has few parts");
            let append = "SELECT runherd.append_part($1, $2, $3, $4, $5::text::json, '1 min')";
            let answer: String = self.control.value(append, &[&run, &token, &number, &part.chunks, &part.body]).await;
            assert_eq!(answer, "appended");
        }
        (RunId(run), token)
    }

    /// Seals what [`Stagehand::begin`] began.
    pub async fn seal(&self, run: RunId, token: Uuid, parts: usize) {
        let parts = i32::try_from(parts).expect("a test has few parts");
        let seal = "SELECT runherd.seal_run($1, $2, $3, COALESCE((SELECT s.digest FROM runherd.run_seeds s
            WHERE s.run_id = $1 ORDER BY s.part_no DESC LIMIT 1), ''::bytea))";
        self.control.value::<i64>(seal, &[&run.0, &token, &parts]).await;
    }

    /// The whole of a submission in one call, with the text of its chunks.
    pub async fn submit_sql(&self, header: Value, chunks: &str, key: Option<&str>) -> RunId {
        let submit = "SELECT runherd.submit_run($1::text::jsonb, $2::text::json, $3)";
        RunId(self.control.value(submit, &[&header.to_string(), &chunks, &key]).await)
    }

    /// Asks for a run to be cancelled; answers the status that was found.
    pub async fn cancel(&self, run: RunId) -> String {
        self.control.value("SELECT runherd.cancel_run($1)", &[&run.0]).await
    }

    /// Submits a run and has it created.
    pub async fn created(&self, header: Value, parts: &[Part]) -> RunId {
        let run = self.submit(header, parts).await;
        super::tick(&mut self.creation_recovery()).await;
        assert_eq!(self.status(run).await, "pending");
        run
    }

    /// Submits a run, has it created, and hands out its first windows.
    pub async fn dispatched(&self, header: Value, parts: &[Part]) -> RunId {
        let run = self.created(header, parts).await;
        self.dispatch().await;
        assert_eq!(self.status(run).await, "running");
        run
    }

    /// Hands out all that fits in the windows.
    pub async fn dispatch(&self) {
        self.dispatch_now().await;
        let mut dispatcher = self.dispatcher();
        while super::tick(&mut dispatcher).await.counted("chunks") > 0 {
            self.dispatch_now().await;
        }
    }

    /// Makes every open cursor due.
    pub async fn dispatch_now(&self) {
        let due = "UPDATE runherd.dispatch_cursors SET next_dispatch_at = now() WHERE next_dispatch_at > now()";
        self.control.run(due, &[]).await;
    }

    /// Makes every run due for the finalizer.
    pub async fn finalize_now(&self) {
        self.control.run("UPDATE runherd.run_finalizations SET look_after = now() WHERE look_after > now()", &[]).await;
    }

    /// Lets the lease of a creation expire, as if its holder had died long ago.
    pub async fn expire_creation(&self, run: RunId) {
        let expire = "UPDATE runherd.runs SET creation_expires_at = now() - interval '1 s' WHERE run_id = $1";
        assert_eq!(self.control.run(expire, &[&run.0]).await, 1);
    }
}
