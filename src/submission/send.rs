//! Sends a run: begin, append, seal, and what to do when one of them fails.
//!
//! After an outage the run is begun again under the same key. That fences off whatever the lost connection may still be
//! doing (its token is lost from then on), and says which of the parts in flight have arrived.

use std::sync::Arc;
use std::time::{Duration, Instant};

use runherd_actors::model::RunId;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::parts::{NoPart, Parts, other_content};
use super::source::LineError;
use super::{Fate, Observer, Options, Request, SubmitError, Submitted, header};
use crate::store::StoreError;
use crate::store::client::{Begun, ClientStore, PartAppender};
use crate::telemetry::error_chain;

/// Parts on the wire: enough to hide the way there and back, few enough to keep memory small.
const IN_FLIGHT: usize = 4;
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How long giving a run up may take.
const GIVE_UP_WITHIN: Duration = Duration::from_secs(5);

/// Submits a run and seals it. `stop` interrupts: the run is given up then.
///
/// # Errors
/// See [`SubmitError`]. After [`SubmitError::Store`] the run may be taken up again with the same key.
pub async fn submit(
    store: &ClientStore,
    request: Request,
    observer: &mut dyn Observer,
    stop: &CancellationToken,
) -> Result<Submitted, SubmitError> {
    request.header.validate()?;
    if let Some(key) = &request.idempotency_key {
        header::check_key(key)?;
    }
    let mut sender = Sender {
        store,
        header: request.header.to_json(),
        key_is_ours: request.idempotency_key.is_none(),
        key: request.idempotency_key.unwrap_or_else(|| format!("submit/{}", Uuid::new_v4())),
        options: request.options,
        observer,
        stop,
        trouble: None,
        tried_again: false,
    };
    let first = sender.begin(request.options.first_patience).await?;
    let mut parts = Parts::start(request.source, request.options.limits, first.shards)?;
    sender.send_all(first, &mut parts).await
}

struct Sender<'a> {
    store: &'a ClientStore,
    header: Value,
    key: String,
    key_is_ours: bool,
    options: Options,
    observer: &'a mut dyn Observer,
    stop: &'a CancellationToken,
    trouble: Option<Trouble>,
    /// A token that is lost after this may have been lost to ourselves.
    tried_again: bool,
}

/// An outage, until the next part arrives.
struct Trouble {
    since: Instant,
    pause: Duration,
}

/// Why an attempt ended.
enum Ended {
    Unavailable(StoreError),
    Wrong(LineError),
    Stopped,
    Failed(SubmitError),
}

impl From<StoreError> for Ended {
    fn from(error: StoreError) -> Self {
        if error.is_unavailable() { Self::Unavailable(error) } else { Self::Failed(error.into()) }
    }
}

impl From<SubmitError> for Ended {
    fn from(error: SubmitError) -> Self {
        Self::Failed(error)
    }
}

impl Sender<'_> {
    async fn send_all(&mut self, first: Begun, parts: &mut Parts) -> Result<Submitted, SubmitError> {
        let created = first.created || self.key_is_ours;
        let mut begun = first;
        loop {
            let error = match self.attempt(&begun, parts).await {
                Ok(chunks) => {
                    let parts = parts.arrived().parts;
                    return Ok(Submitted { run_id: begun.run_id, chunks, parts, created });
                }
                Err(Ended::Unavailable(error)) => error,
                Err(Ended::Failed(SubmitError::Store(error))) if self.may_be_our_own(&error) => error,
                Err(Ended::Failed(error)) => return Err(error),
                Err(Ended::Wrong(error)) => {
                    let fate = give_up(self.store, &begun, &format!("submission: {error}")).await;
                    return Err(SubmitError::Input { error, fate });
                }
                Err(Ended::Stopped) => {
                    let fate = give_up(self.store, &begun, "submission: interrupted").await;
                    return Err(SubmitError::Interrupted { fate });
                }
            };
            if !self.pause(error, self.options.patience).await? {
                let fate = give_up(self.store, &begun, "submission: interrupted").await;
                return Err(SubmitError::Interrupted { fate });
            }
            begun = match self.begin(self.options.patience).await {
                Err(SubmitError::Interrupted { .. }) => {
                    let fate = give_up(self.store, &begun, "submission: interrupted").await;
                    return Err(SubmitError::Interrupted { fate });
                }
                other => other?,
            };
        }
    }

    /// Sends everything that is missing, over one connection, and seals; answers how many chunks the run holds.
    async fn attempt(&mut self, begun: &Begun, parts: &mut Parts) -> Result<u64, Ended> {
        parts.rewind(begun)?;
        let mut appender = match begun.token {
            Some(token) => Some(self.store.appender(begun.run_id, token, self.options.lease).await?),
            None => None,
        };
        loop {
            let in_flight = appender.as_ref().map_or(0, PartAppender::in_flight);
            if in_flight == 0 && parts.exhausted() {
                break;
            }
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return Err(Ended::Stopped),
                result = settle(&mut appender), if in_flight > 0 => {
                    result?;
                    self.trouble = None;
                    self.observer.progress(parts.arrive());
                }
                next = parts.next(), if in_flight < IN_FLIGHT && !parts.exhausted() => {
                    let part = match next {
                        Ok(part) => part,
                        Err(NoPart::End) => continue,
                        Err(NoPart::Wrong(error)) => return Err(Ended::Wrong(error)),
                        Err(NoPart::Died) => return Err(died(begun.run_id).into()),
                    };
                    if part.part_no < begun.parts_present {
                        let progress = parts.arrive();
                        parts.compare(begun)?;
                        self.observer.progress(progress);
                    } else if let Some(appender) = &mut appender {
                        appender.send(part.part_no, part.chunks, Arc::clone(&part.body));
                    } else {
                        let what = format!("is sealed with {} parts, where this input makes more", begun.parts_present);
                        return Err(other_content(begun.run_id, what).into());
                    }
                }
            }
        }
        parts.compare_end(begun)?;
        let Some(token) = begun.token else { return Ok(begun.chunks_present) };
        Ok(self.store.seal_run(begun.run_id, token, parts.arrived().parts, parts.chain()).await?)
    }

    /// Begins the run, or begins it again.
    async fn begin(&mut self, patience: Duration) -> Result<Begun, SubmitError> {
        loop {
            if self.stop.is_cancelled() {
                return Err(SubmitError::Interrupted { fate: Fate::NotBegun });
            }
            let error = match self.store.begin_run(&self.header, &self.key, self.options.lease).await {
                Ok(begun) => {
                    self.observer.begun(begun.run_id, begun.parts_present, begun.sealed);
                    return Ok(begun);
                }
                Err(error) if error.is_unavailable() => error,
                Err(error) => return Err(error.into()),
            };
            if !self.pause(error, patience).await? {
                return Err(SubmitError::Interrupted { fate: Fate::NotBegun });
            }
        }
    }

    /// Waits before the next try; false when the submission was stopped meanwhile.
    async fn pause(&mut self, error: StoreError, patience: Duration) -> Result<bool, SubmitError> {
        let trouble = self.trouble.get_or_insert_with(|| Trouble { since: Instant::now(), pause: PAUSE_MIN });
        if trouble.since.elapsed() > patience {
            return Err(error.into());
        }
        let pause = trouble.pause;
        trouble.pause = (pause * 2).min(PAUSE_MAX);
        self.tried_again |= error.is_unavailable();
        self.observer.waiting(&error, pause);
        tokio::select! {
            () = self.stop.cancelled() => Ok(false),
            () = tokio::time::sleep(pause) => Ok(true),
        }
    }

    /// Whether this refusal may come from a statement of our own that a lost connection delivered late. Believed once.
    fn may_be_our_own(&mut self, error: &StoreError) -> bool {
        let StoreError::Refused { code, .. } = error else { return false };
        matches!(code.as_str(), "RH409" | "RH410") && std::mem::take(&mut self.tried_again)
    }
}

async fn give_up(store: &ClientStore, begun: &Begun, reason: &str) -> Fate {
    let run_id = begun.run_id;
    let Some(token) = begun.token else { return Fate::Untouched(run_id) };
    let told = async {
        loop {
            match store.abort_run(run_id, token, reason).await {
                Err(error) if error.is_unavailable() => tokio::time::sleep(PAUSE_MIN).await,
                other => return other,
            }
        }
    };
    match tokio::time::timeout(GIVE_UP_WITHIN, told).await {
        Ok(Ok(())) => Fate::GivenUp(run_id),
        Ok(Err(error)) => Fate::Abandoned(run_id, error_chain(&error)),
        Err(_) => Fate::Abandoned(run_id, "the database is not available".to_owned()),
    }
}

async fn settle(appender: &mut Option<PartAppender>) -> Result<(), StoreError> {
    match appender {
        Some(appender) => appender.settle().await,
        None => std::future::pending().await,
    }
}

fn died(run_id: RunId) -> SubmitError {
    SubmitError::Broken {
        run_id,
        what: "the thread that reads the input died; submit again with the same key".to_owned(),
    }
}
