//! presence: says in the control database that this coordinator is alive.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use runherd_actors::runtime::report::{CycleReport, StageError};
use runherd_actors::runtime::stage::{CycleContext, Stage, StageSpec};

use super::Shared;
use crate::store::presence;

pub(super) const NAME: &str = "presence";
pub(super) const PERIOD: Duration = Duration::from_secs(5);

struct Presence {
    shared: Arc<Shared>,
}

#[async_trait]
impl Stage for Presence {
    async fn run_cycle(&mut self, _: &CycleContext) -> Result<CycleReport, StageError> {
        let shared = &self.shared;
        presence::announce(shared.router.control(), shared.coordinator_id, &shared.host).await?;
        Ok(CycleReport::default())
    }
}

pub(super) fn spec(shared: &Arc<Shared>) -> StageSpec {
    let owned = Arc::clone(shared);
    StageSpec::new(NAME, "says in the control database that this coordinator is alive", move || Presence {
        shared: Arc::clone(&owned),
    })
    .every(PERIOD)
    .deadline(shared.config.cycle.deadline)
}
