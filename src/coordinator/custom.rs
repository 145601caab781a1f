//! Stages that are not built in: what they get to work with, what their sections override, and what is refused.

use std::collections::BTreeSet;
use std::sync::Arc;

use runherd_actors::runtime::stage::{Schedule, StageSpec, family};
use runherd_actors::stages::entry;
use slog::Logger;

use super::{Shared, StartError, presence, reporting};
use crate::config::Config;
use crate::router::SharedRouter;
use crate::store::Database;

/// What a stage of one's own gets to work with, once the coordinator has reached the control database.
///
/// It is cheap to clone; a factory keeps its own.
#[derive(Clone, Debug)]
pub struct Services {
    /// The control database, with the coordinator's pool, its sessions and its rights.
    pub control: Database,
    /// The placements: which there are, and the database of each.
    pub router: SharedRouter,
    /// The coordinator's log.
    pub log: Logger,
    /// The configuration; [`Config::stage_settings`] reads a stage's own section.
    pub config: Arc<Config>,
}

/// Makes a stage of one's own when its services are there.
pub(super) type MakeSpec = Box<dyn FnOnce(&Services) -> StageSpec + Send>;

/// Makes these stages as the configuration wants them.
pub(super) fn specs(shared: &Shared, custom: Vec<MakeSpec>) -> Result<Vec<StageSpec>, StartError> {
    let services = Services {
        control: shared.router.control().clone(),
        router: Arc::clone(&shared.router),
        log: shared.log.clone(),
        config: Arc::clone(&shared.config),
    };
    let mut specs: Vec<StageSpec> = custom.into_iter().map(|make| make(&services)).collect();
    check(&shared.config, &specs)?;
    let sections = &shared.config.stages;
    for spec in &mut specs {
        if let Some(period) = sections.period(spec.family()) {
            spec.schedule = Schedule::Every(period);
        }
        if let Some(deadline) = sections.deadline(spec.family()) {
            spec.deadline = deadline;
        }
    }
    Ok(specs)
}

/// Refuses names that are taken, and sections that belong to none of these stages.
pub(super) fn check(config: &Config, specs: &[StageSpec]) -> Result<(), StartError> {
    if let Some(taken) = specs.iter().find(|spec| is_built_in(&spec.name)) {
        return Err(StartError::NameTaken { name: taken.name.clone() });
    }
    let families: BTreeSet<&str> = specs.iter().map(StageSpec::family).collect();
    config.stages.check_names(&families.into_iter().collect::<Vec<_>>())?;
    Ok(())
}

fn is_built_in(name: &str) -> bool {
    let family = family(name);
    entry(family).is_some() || [presence::NAME, reporting::NAME].contains(&family)
}
