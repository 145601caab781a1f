//! How a person names a run: by its identifier, or by the first digits of it.

use std::str::FromStr;

use runherd_actors::model::RunId;
use uuid::Uuid;

use super::CliError;
use crate::store::client::ClientStore;

/// Digits of a UUID.
const DIGITS: usize = 32;
/// Fewer digits would soon be ambiguous.
const PREFIX_DIGITS_MIN: usize = 8;

/// A run on the command line: its identifier, or a prefix of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunArg {
    lowest: Uuid,
    highest: Uuid,
}

impl FromStr for RunArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits: String = text.chars().filter(|c| *c != '-').collect();
        if digits.len() > DIGITS || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err("a run is named by its UUID, or by a prefix of it".to_owned());
        }
        if digits.len() < PREFIX_DIGITS_MIN {
            return Err(format!("a prefix of a run's UUID has at least {PREFIX_DIGITS_MIN} hexadecimal digits"));
        }
        let padded = |with: &str| {
            let digits = format!("{digits}{}", with.repeat(DIGITS - digits.len()));
            Uuid::parse_str(&digits).map_err(|error| error.to_string())
        };
        Ok(Self { lowest: padded("0")?, highest: padded("f")? })
    }
}

impl RunArg {
    /// The run that is meant.
    ///
    /// # Errors
    /// No run, or more than one, begins like this.
    pub async fn resolve(&self, store: &ClientStore) -> Result<RunId, CliError> {
        let found = store.find_runs(self.lowest, self.highest).await?;
        match found.as_slice() {
            [run_id] => Ok(*run_id),
            [] if self.lowest == self.highest => Err(unknown_run(RunId(self.lowest))),
            [] => Err(CliError::Data(format!("no run begins with {}", self.prefix()))),
            several => {
                let list: Vec<String> = several.iter().take(2).map(ToString::to_string).collect();
                let which = list.join(" and ");
                Err(CliError::Data(format!("several runs begin with {} ({which}); give more digits", self.prefix())))
            }
        }
    }

    /// The digits that both ends share.
    fn prefix(&self) -> String {
        let (lowest, highest) = (self.lowest.to_string(), self.highest.to_string());
        let shared = lowest.chars().zip(highest.chars()).take_while(|(low, high)| low == high).map(|(low, _)| low);
        shared.collect::<String>().trim_end_matches('-').to_owned()
    }
}

/// The control database has no such run.
pub(super) fn unknown_run(run_id: RunId) -> CliError {
    CliError::Data(format!("there is no run {run_id}; runs that ended long ago are removed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_named_by_its_identifier_or_a_prefix() {
        let full = "0193e1c2-7d4e-4c51-9f0a-5b1d2c3e4f60";
        let run: RunArg = full.parse().unwrap();
        assert_eq!(run.lowest.to_string(), full);
        assert_eq!(run.lowest, run.highest);
        let run: RunArg = "0193E1C2-7d".parse().unwrap();
        assert_eq!(run.lowest.to_string(), "0193e1c2-7d00-0000-0000-000000000000");
        assert_eq!(run.highest.to_string(), "0193e1c2-7dff-ffff-ffff-ffffffffffff");
        assert_eq!(run.prefix(), "0193e1c2-7d");
        assert_eq!("0193e1c2".parse::<RunArg>().unwrap().prefix(), "0193e1c2");
        for bad in ["", "0193e1c", "0193e1c2-xyz", "0193e1c2-7d4e-4c51-9f0a-5b1d2c3e4f600", "é0193e1c2"] {
            assert!(bad.parse::<RunArg>().is_err(), "{bad}");
        }
    }
}
