//! A database that takes runs, inputs of every kind, and an eye on how far a submission has come.

use std::io::{BufRead, BufReader, Cursor, Read};
use std::sync::Arc;
use std::time::Duration;

use runherd::config::{Config, PoolConfig, SessionConfig};
use runherd::store::client::ClientStore;
use runherd::store::{Database, SessionSettings};
use runherd::submission::{
    CancellationToken, Header, Input, Observer, Options, Progress, Request, Source, SubmitError, Submitted, submit,
};
use runherd_actors::model::RunId;
use runherd_integration_tests::herd::Herd;
use tokio::sync::{Notify, mpsc};
use tokio_postgres::{Client, Row};

/// Longer than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// What the client's connections are called.
pub(crate) const APPLICATION: &str = "submission";

/// A database with the schema, and no coordinator.
pub(crate) struct Desk {
    /// As its owner.
    pub(crate) sql: Client,
    /// As a client.
    pub(crate) store: ClientStore,
    /// Keeps the database. Dropped last.
    pub(crate) herd: Herd,
}

impl Desk {
    pub(crate) async fn new(test: &str) -> Self {
        let herd = Herd::new(test).await;
        let mut databases = herd.config().databases().unwrap();
        let (_, mut as_client) = databases.remove(0);
        // Everything here is done with the rights of a client.
        as_client.options("-c role=runherd_client").application_name(APPLICATION);
        let settings = SessionSettings::new(&PoolConfig::default(), &SessionConfig::default(), false);
        let store = ClientStore::new(Database::new("control", as_client, &settings, None).unwrap());
        Self { sql: herd.world.pg(herd.world.database()).await, store, herd }
    }

    pub(crate) async fn submit(&self, request: Request) -> Result<Submitted, SubmitError> {
        let stop = CancellationToken::new();
        tokio::time::timeout(PATIENCE, submit(&self.store, request, &mut (), &stop)).await.unwrap()
    }

    pub(crate) async fn row(&self, text: &str) -> Row {
        self.sql.query_one(text, &[]).await.unwrap()
    }

    /// Every payload of a run in the order of submission, and the sizes of its parts.
    pub(crate) async fn contents(&self, run_id: RunId) -> (Vec<String>, Vec<i32>) {
        let text = "SELECT part_no, run_shard, chunk_count, body::text FROM runherd.run_seeds WHERE run_id = $1 ORDER BY part_no";
        let (mut payloads, mut sizes) = (Vec::new(), Vec::new());
        for (index, row) in self.sql.query(text, &[&run_id.0]).await.unwrap().iter().enumerate() {
            assert_eq!(row.get::<_, i32>("part_no") as usize, index);
            let body: Vec<Box<serde_json::value::RawValue>> = serde_json::from_str(row.get("body")).unwrap();
            assert_eq!(row.get::<_, i32>("chunk_count") as usize, body.len());
            sizes.push(row.get("chunk_count"));
            payloads.extend(body.iter().map(|value| value.get().to_owned()));
        }
        (payloads, sizes)
    }

    pub(crate) async fn intent(&self, run_id: RunId) -> Option<(String, String)> {
        let text = "SELECT intent, reason FROM runherd.run_intents WHERE run_id = $1";
        let row = self.sql.query_opt(text, &[&run_id.0]).await.unwrap();
        row.map(|row| (row.get("intent"), row.get("reason")))
    }
}

pub(crate) fn options() -> Options {
    Options::from(&Config::default().submission)
}

pub(crate) fn request(source: Source, key: Option<&str>) -> Request {
    Request { header: Header::new("q"), idempotency_key: key.map(str::to_owned), source, options: options() }
}

pub(crate) fn text(text: impl Into<String>) -> Source {
    Source::Chunks(Input::new("in.jsonl", Cursor::new(text.into())))
}

pub(crate) fn numbers(count: u32) -> String {
    (0..count).map(|number| format!("{{\"n\": {number}}}\n")).collect()
}

pub(crate) fn payloads(count: u32) -> Vec<String> {
    (0..count).map(|number| format!("{{\"n\": {number}}}")).collect()
}

/// Notified when a submission has as many parts there.
pub(crate) struct At {
    pub(crate) parts: u32,
    pub(crate) reached: Arc<Notify>,
}

impl Observer for At {
    fn progress(&mut self, progress: Progress) {
        if progress.parts == self.parts {
            self.reached.notify_one();
        }
    }
}

/// Tells at the beginning and at every so many parts, that somebody may disturb it there.
pub(crate) struct Beats {
    pub(crate) every: u32,
    pub(crate) tell: mpsc::UnboundedSender<()>,
    pub(crate) begun: bool,
}

impl Observer for Beats {
    fn begun(&mut self, _: RunId, _: u32, _: bool) {
        if !std::mem::replace(&mut self.begun, true) {
            let _ = self.tell.send(());
        }
    }

    fn progress(&mut self, progress: Progress) {
        if progress.parts.is_multiple_of(self.every) {
            let _ = self.tell.send(());
        }
    }
}

/// Opens a [`gated`] input when its submission has begun.
pub(crate) struct Opens(pub(crate) Option<std::sync::mpsc::Sender<()>>);

impl Observer for Opens {
    fn begun(&mut self, _: RunId, _: u32, _: bool) {
        self.0.take();
    }
}

/// Two texts, of which the second comes when the sender is dropped.
pub(crate) fn gated(first: String, second: String) -> (std::sync::mpsc::Sender<()>, impl BufRead + Send) {
    struct Gate(std::sync::mpsc::Receiver<()>);
    impl Read for Gate {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            // Nothing is ever sent: this is the end of the sender.
            let _ = self.0.recv();
            Ok(0)
        }
    }
    let (sender, gate) = std::sync::mpsc::channel();
    (sender, BufReader::new(Cursor::new(first).chain(Gate(gate)).chain(Cursor::new(second))))
}

/// Some bytes, and then nothing for ever, as from a terminal.
pub(crate) fn then_silence(text: String) -> impl BufRead + Send {
    struct Silence;
    impl Read for Silence {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            loop {
                std::thread::park();
            }
        }
    }
    BufReader::new(Cursor::new(text).chain(Silence))
}
