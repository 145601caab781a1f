//! Waiting for the servers at the start: with backoff and a word about it, or not at all.

use std::time::Duration;

use runherd_actors::runtime::backoff::{Backoff, worth_a_line};
use runherd_actors::stages::placements::PlacementRef;
use slog::{Logger, warn};

use super::StartError;
use crate::broker::{BrokerSettings, BrokerState, Publisher};
use crate::config::{self, Config};
use crate::router::{Router, RouterError};
use crate::telemetry::{error_chain, field, millis};

/// Between two attempts to reach a server.
const DELAYS: Backoff = Backoff { min: Duration::from_millis(500), max: Duration::from_secs(10) };
/// How long the start waits for the broker before the stages begin without it.
const A_MOMENT: Duration = Duration::from_secs(1);

/// The router, once the control database can be reached. A missing schema is not waited for: an operator has to act.
pub(super) async fn router(config: &Config, fail_fast: bool, log: &Logger) -> Result<Router, StartError> {
    let mut attempt = 0;
    loop {
        let delay = DELAYS.delay(attempt);
        match Router::connect(config).await {
            Ok(router) => return Ok(router),
            Err(RouterError::Store(error)) if error.is_unavailable() && !fail_fast => {
                if worth_a_line(attempt + 1) {
                    warn!(log, "waiting for the control database"; field::ERROR => error_chain(&error),
                        field::IN_ROW => attempt + 1, field::RETRY_IN_MS => millis(delay));
                }
            }
            Err(error) => return Err(error.into()),
        }
        tokio::time::sleep(delay).await;
        attempt += 1;
    }
}

/// Every placement that the control database lists.
pub(super) async fn placements(
    router: &Router,
    fail_fast: bool,
    log: &Logger,
) -> Result<Vec<PlacementRef>, StartError> {
    let mut attempt = 0;
    loop {
        let delay = DELAYS.delay(attempt);
        match router.placements().await {
            Ok(placements) => {
                for (placement, reason) in &placements.skipped {
                    warn!(log, "placement is skipped"; field::PLACEMENT => &placement.name, field::REASON => reason);
                }
                let skipped = placements.skipped.into_iter().map(|(placement, _)| placement);
                return Ok(placements.reachable.into_iter().chain(skipped).collect());
            }
            Err(error) if fail_fast => {
                let reason = error_chain(&error);
                return Err(StartError::Store(crate::store::StoreError::Schema {
                    database: config::CONTROL.to_owned(),
                    reason,
                }));
            }
            Err(error) => {
                if worth_a_line(attempt + 1) {
                    warn!(log, "waiting for the list of placements"; field::ERROR => error_chain(&error),
                        field::IN_ROW => attempt + 1, field::RETRY_IN_MS => millis(delay));
                }
            }
        }
        tokio::time::sleep(delay).await;
        attempt += 1;
    }
}

/// Gives the publishers a moment to connect, so that the first cycle finds them ready. Without `fail_fast` they go on trying.
pub(super) async fn check_broker(
    publishers: &[Publisher],
    settings: &BrokerSettings,
    fail_fast: bool,
) -> Result<(), StartError> {
    let limit = if fail_fast { settings.connect_timeout * 2 } else { A_MOMENT };
    let connected = publishers.iter().map(|publisher| async move {
        let mut state = publisher.state();
        let connected = state.wait_for(|state| *state == BrokerState::Connected).await;
        drop(connected);
    });
    let all = tokio::time::timeout(limit, futures::future::join_all(connected)).await;
    if all.is_ok() || !fail_fast {
        return Ok(());
    }
    let obstacle = publishers.iter().find_map(|publisher| publisher.state().borrow().obstacle());
    let reason = obstacle.unwrap_or_else(|| "it did not answer in time".to_owned());
    Err(StartError::Broker { url: settings.url.to_string(), reason })
}
