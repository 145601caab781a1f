//! Submitting a run: any number of chunks, in constant memory, exactly once.
//!
//! [`submit`] begins the run, cuts its source into parts while earlier parts travel, and seals it with the digest of all of
//! them: a run either holds exactly what was given, or is never handed out. An outage is waited for; a client that died is
//! followed by one with the same idempotency key and the same input, which sends only what is missing. Input that turns out
//! wrong gives the run up. Nothing here knows the command line, or how progress is shown.

mod cut;
mod header;
mod parts;
mod range;
mod send;
mod source;

use std::fmt;
use std::time::Duration;

use runherd_actors::model::RunId;
/// Interrupts a submission; see [`submit`].
pub use tokio_util::sync::CancellationToken;

pub use self::cut::Limits;
pub use self::header::{Header, PRIORITY_MAX, SHARDS_MAX};
pub use self::range::Range;
pub use self::send::submit;
pub use self::source::{Input, LineError, Source};
use crate::config::SubmissionConfig;
use crate::store::StoreError;

/// What is to be submitted, and how.
pub struct Request {
    /// What the run is, beside its chunks.
    pub header: Header,
    /// Under which key it may be tried again; a random one when there is none, so that an outage can be waited for.
    pub idempotency_key: Option<String>,
    /// Where its chunks come from.
    pub source: Source,
    /// How it is sent.
    pub options: Options,
}

/// How a run is sent.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How large parts and payloads may be. A try with other limits cuts other parts, and cannot go on with this run.
    pub limits: Limits,
    /// How long the run's creation is held between two parts.
    pub lease: Duration,
    /// How long to wait for a database that was never reached.
    pub first_patience: Duration,
    /// How long to wait for a database that went away, counted from the last part that arrived.
    pub patience: Duration,
}

impl From<&SubmissionConfig> for Options {
    fn from(config: &SubmissionConfig) -> Self {
        Self {
            limits: Limits {
                part_chunks: config.part_chunks,
                part_bytes: config.part_bytes,
                payload_limit_bytes: config.payload_limit_bytes,
            },
            lease: config.lease,
            first_patience: Duration::from_secs(10),
            patience: Duration::from_secs(120),
        }
    }
}

/// A run that is sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// The run.
    pub run_id: RunId,
    /// Its chunks.
    pub chunks: u64,
    /// Its parts.
    pub parts: u32,
    /// Whether this submission began it; false when an earlier one with the same key did.
    pub created: bool,
}

/// How far a submission has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Chunks that are there.
    pub chunks: u64,
    /// Bytes of the parts that are there.
    pub bytes: u64,
    /// Parts that are there.
    pub parts: u32,
}

/// Is told how a submission goes on. Each call should return at once.
pub trait Observer: Send {
    /// The run is begun, or taken up again with `parts_present` parts that are there already.
    fn begun(&mut self, run_id: RunId, parts_present: u32, sealed: bool) {
        let _ = (run_id, parts_present, sealed);
    }

    /// More parts are there.
    fn progress(&mut self, progress: Progress) {
        let _ = progress;
    }

    /// The database is not available; the submission waits this long and tries again, under this key.
    fn waiting(&mut self, error: &StoreError, pause: Duration) {
        let _ = (error, pause);
    }
}

/// Looks away.
impl Observer for () {}

/// Why a run was not submitted.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// The request is wrong; nothing was begun.
    #[error("{0}")]
    Request(String),
    /// The input is wrong.
    #[error("{error}; {fate}")]
    Input {
        /// What is wrong, and where.
        error: LineError,
        /// What became of the run.
        fate: Fate,
    },
    /// The idempotency key belongs to a run with other chunks.
    #[error(
        "the idempotency key belongs to run {run_id}, which {what}; nothing was changed. Use another key for other chunks (the same input cut by other limits under [submission] counts as other chunks)"
    )]
    OtherContent {
        /// That run.
        run_id: RunId,
        /// How it differs.
        what: String,
    },
    /// The submission was asked to stop.
    #[error("interrupted; {fate}")]
    Interrupted {
        /// What became of the run.
        fate: Fate,
    },
    /// A failure of a kind that should not happen; the run can be taken up with its idempotency key.
    #[error("the submission of run {run_id} stopped: {what}")]
    Broken {
        /// The run.
        run_id: RunId,
        /// What happened, and what to do.
        what: String,
    },
    /// A database refused or failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What became of a run whose submission did not end well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// No run was begun.
    NotBegun,
    /// The run is given up: it becomes failed, and nothing of it is handed out.
    GivenUp(RunId),
    /// The run could not be given up; it is abandoned by itself, after a while.
    Abandoned(RunId, String),
    /// The run was sealed by an earlier submission and stays as it is.
    Untouched(RunId),
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBegun => f.write_str("no run was begun"),
            Self::GivenUp(run_id) => write!(f, "run {run_id} is given up and ends as failed, with nothing handed out"),
            Self::Abandoned(run_id, why) => write!(
                f,
                "run {run_id} could not be given up ({why}); nothing of it is handed out, and it fails by itself after creation_recovery.abandon_after"
            ),
            Self::Untouched(run_id) => write!(f, "run {run_id}, sealed before under this key, stays as it is"),
        }
    }
}
