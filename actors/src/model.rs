//! The words of the protocol as types: identifiers, keys, tokens and statuses.
//!
//! Everything here is plain data. It knows neither how a value is stored nor how it is sent.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

macro_rules! uuid_newtype {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

uuid_newtype!(
    /// One large piece of work.
    RunId
);
uuid_newtype!(
    /// Restated by whoever claimed a run's creation, a cursor, a finalization or an outbox batch; fresh with each claim.
    ClaimToken
);
uuid_newtype!(
    /// Supplied by a worker when it leases a chunk, and restated with every later write.
    LeaseToken
);

impl FromStr for RunId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Uuid::parse_str(text).map(RunId)
    }
}

impl ClaimToken {
    /// A token nobody has used before.
    #[must_use]
    pub fn fresh() -> Self {
        Self(Uuid::new_v4())
    }
}

impl LeaseToken {
    /// A token nobody has used before.
    #[must_use]
    pub fn fresh() -> Self {
        Self(Uuid::new_v4())
    }
}

/// One slice of a run, numbered from 0.
pub type RunShard = i32;

/// A chunk's number in its shard, from 0.
pub type ChunkNo = i64;

/// The identifier of a placement, as the control database numbers them.
pub type PlacementId = i32;

/// One shard of one run: the unit of placement and of dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ShardKey {
    /// The run.
    pub run_id: RunId,
    /// Its shard.
    pub run_shard: RunShard,
}

impl fmt::Display for ShardKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.run_id, self.run_shard)
    }
}

/// The smallest unit of execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ChunkKey {
    /// The run.
    pub run_id: RunId,
    /// Its shard.
    pub run_shard: RunShard,
    /// The chunk's number in the shard.
    pub chunk_no: ChunkNo,
}

impl fmt::Display for ChunkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.run_id, self.run_shard, self.chunk_no)
    }
}

/// Where a run stands. The four last ones are terminal and never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// Being submitted, or being seeded.
    Creating,
    /// Every placement is seeded; nothing has been handed out.
    Pending,
    /// Being handed out and worked on.
    Running,
    /// Asked to stop; what is open is being swept.
    Cancelling,
    /// Stopped by a policy; what is open is being swept.
    Failing,
    /// Ended with no more failures than it tolerates.
    Succeeded,
    /// Ended with more failures than it tolerates, or stopped by a policy.
    Failed,
    /// Ended because it was asked to.
    Cancelled,
}

impl RunStatus {
    /// The name used in tables, logs and events.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Cancelling => "cancelling",
            Self::Failing => "failing",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether the run has ended.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }
}

impl fmt::Display for RunStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for RunStatus {
    type Err = UnknownStatus;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "creating" => Self::Creating,
            "pending" => Self::Pending,
            "running" => Self::Running,
            "cancelling" => Self::Cancelling,
            "failing" => Self::Failing,
            "succeeded" => Self::Succeeded,
            "failed" => Self::Failed,
            "cancelled" => Self::Cancelled,
            other => return Err(UnknownStatus(other.to_owned())),
        })
    }
}

/// A status that this version does not know; a newer coordinator wrote it.
#[derive(Debug, thiserror::Error)]
#[error("unknown run status {0:?}: was it written by a newer version?")]
pub struct UnknownStatus(pub String);

/// How many chunks ended in which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Chunks that a worker completed.
    pub succeeded: i64,
    /// Chunks that failed for good.
    pub failed: i64,
    /// Chunks that were swept when the run was stopped.
    pub cancelled: i64,
    /// Chunks on a placement that was given up.
    pub lost: i64,
}

impl Totals {
    /// The number of chunks that have ended.
    #[must_use]
    pub fn finished(&self) -> i64 {
        self.succeeded + self.failed + self.cancelled + self.lost
    }
}
