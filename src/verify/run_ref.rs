//! How a person names a run: by its whole identifier, or by the first digits of it.
//!
//! Promises that a short name that fits several runs is refused rather than resolved.

use std::str::FromStr;

use uuid::Uuid;

use crate::store::verify::find_runs;
use crate::store::{Database, StoreError};

/// Fewer digits would soon be ambiguous.
const DIGITS_MIN: usize = 8;
const DIGITS: usize = 32;

/// A run's identifier, or at least eight of its first digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunRef {
    text: String,
    first: Uuid,
    last: Uuid,
}

/// Why a name leads to no run.
#[derive(Debug, thiserror::Error)]
pub enum RunRefError {
    /// It is no identifier and no beginning of one.
    #[error("{0:?} names no run: give its whole identifier, or at least {DIGITS_MIN} of its first hexadecimal digits")]
    Malformed(String),
    /// No run has it.
    #[error("no run {0}; runs that ended long ago are removed")]
    Unknown(String),
    /// Several runs begin with it.
    #[error("several runs begin with {0}: give more digits ({1}, …)")]
    Ambiguous(String, String),
    /// The control database could not say.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl FromStr for RunRef {
    type Err = RunRefError;

    fn from_str(text: &str) -> Result<Self, RunRefError> {
        let text = text.trim();
        let malformed = || RunRefError::Malformed(text.chars().take(80).collect());
        let digits: String = text.chars().filter(|c| *c != '-').collect();
        if !(DIGITS_MIN..=DIGITS).contains(&digits.len()) || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(malformed());
        }
        let filled = |with: &str| {
            let rest = with.repeat(DIGITS - digits.len());
            Uuid::parse_str(&(digits.clone() + &rest)).map_err(|_| malformed())
        };
        Ok(Self { text: text.to_owned(), first: filled("0")?, last: filled("f")? })
    }
}

impl RunRef {
    /// The run that is meant.
    ///
    /// # Errors
    /// None or several fit, or the control database cannot be read.
    pub async fn resolve(&self, control: &Database) -> Result<Uuid, RunRefError> {
        match find_runs(control, self.first, self.last).await?.as_slice() {
            [] => Err(RunRefError::Unknown(self.text.clone())),
            [run] => Ok(*run),
            [run, other, ..] => Err(RunRefError::Ambiguous(self.text.clone(), format!("{run}, {other}"))),
        }
    }
}
