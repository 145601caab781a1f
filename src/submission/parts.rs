//! The parts of a run between the thread that cuts them and the connection that sends them.
//!
//! A part is kept until the server has it: after an outage the kept ones are sent again. The source is read in a thread of its
//! own, because a terminal or a pipe may block for ever; few parts wait, so that memory stays bounded.

use std::collections::VecDeque;
use std::thread;

use runherd_actors::model::RunId;
use tokio::sync::mpsc;

use super::cut::{Cutter, Limits, Part};
use super::source::{LineError, Source};
use super::{Progress, SubmitError};
use crate::store::client::Begun;

/// Parts that are cut and wait to be sent.
const CUT_AHEAD: usize = 2;

enum Cut {
    Part(Part),
    Wrong(LineError),
    End,
}

/// Why there is no next part.
pub(super) enum NoPart {
    /// The source is at its end.
    End,
    /// A line is wrong.
    Wrong(LineError),
    /// The cutting thread died.
    Died,
}

/// The parts of one run, in order.
pub(super) struct Parts {
    cut: mpsc::Receiver<Cut>,
    at_end: bool,
    /// Cut, and not known to have arrived.
    kept: VecDeque<Part>,
    /// Of the kept ones, those given out since the last rewind.
    given: usize,
    arrived: Progress,
    chain: Vec<u8>,
}

impl Parts {
    /// Begins to cut.
    pub(super) fn start(source: Source, limits: Limits, shards: u32) -> Result<Self, SubmitError> {
        let (sender, cut) = mpsc::channel(CUT_AHEAD);
        let mut cutter = Cutter::new(source, limits, shards);
        // Not a task: the runtime would wait at its end for a read that blocks.
        let spawned = thread::Builder::new().name("submission".to_owned()).spawn(move || {
            loop {
                let (next, last) = match cutter.next_part() {
                    Ok(Some(part)) => (Cut::Part(part), false),
                    Ok(None) => (Cut::End, true),
                    Err(error) => (Cut::Wrong(error), true),
                };
                if sender.blocking_send(next).is_err() || last {
                    return;
                }
            }
        });
        spawned
            .map_err(|error| SubmitError::Request(format!("cannot start a thread that reads the input: {error}")))?;
        let (kept, chain) = (VecDeque::new(), Vec::new());
        Ok(Self { cut, at_end: false, kept, given: 0, arrived: Progress::default(), chain })
    }

    /// Whether every part was given out since the last rewind.
    pub(super) fn exhausted(&self) -> bool {
        self.at_end && self.given == self.kept.len()
    }

    /// The next part; safe to drop and call again.
    pub(super) async fn next(&mut self) -> Result<&Part, NoPart> {
        if self.given == self.kept.len() {
            match self.cut.recv().await {
                Some(Cut::Part(part)) => self.kept.push_back(part),
                Some(Cut::Wrong(error)) => return Err(NoPart::Wrong(error)),
                Some(Cut::End) => self.at_end = true,
                None if self.at_end => {}
                None => return Err(NoPart::Died),
            }
        }
        let part = self.kept.get(self.given).ok_or(NoPart::End)?;
        self.given += 1;
        Ok(part)
    }

    /// The oldest part that was given out has arrived.
    pub(super) fn arrive(&mut self) -> Progress {
        if let Some(part) = self.kept.pop_front() {
            self.given = self.given.saturating_sub(1);
            self.arrived.parts = part.part_no + 1;
            self.arrived.chunks += u64::from(part.chunks);
            self.arrived.bytes += part.body.len() as u64;
            self.chain = part.digest.to_vec();
        }
        self.arrived
    }

    /// What has arrived.
    pub(super) fn arrived(&self) -> Progress {
        self.arrived
    }

    /// The digest of the chain of what has arrived.
    pub(super) fn chain(&self) -> &[u8] {
        &self.chain
    }

    /// Gives every kept part out again, to go on with what `begun` says is there.
    pub(super) fn rewind(&mut self, begun: &Begun) -> Result<(), SubmitError> {
        self.given = 0;
        if begun.parts_present < self.arrived.parts {
            return Err(SubmitError::Broken {
                run_id: begun.run_id,
                what: format!(
                    "the database holds {} parts but had confirmed {}; it lost some in a failover. Submit again with the same idempotency key",
                    begun.parts_present, self.arrived.parts
                ),
            });
        }
        self.compare(begun)
    }

    /// Compares the chains, once exactly what the server has is here too.
    pub(super) fn compare(&self, begun: &Begun) -> Result<(), SubmitError> {
        if begun.parts_present != self.arrived.parts || begun.parts_digest == self.chain {
            return Ok(());
        }
        Err(other_content(begun.run_id, format!("holds other chunks in its first {} parts", begun.parts_present)))
    }

    /// Compares at the end of the source: the server must have nothing beyond it, and a sealed run nothing less.
    pub(super) fn compare_end(&self, begun: &Begun) -> Result<(), SubmitError> {
        let (here, there) = (self.arrived.parts, begun.parts_present);
        if there > here || (begun.sealed && there < here) {
            return Err(other_content(begun.run_id, format!("holds {there} parts, where this input makes {here}")));
        }
        Ok(())
    }
}

pub(super) fn other_content(run_id: RunId, what: String) -> SubmitError {
    SubmitError::OtherContent { run_id, what }
}
