//! The stages of one process, checked before anything starts.
//!
//! A [`Registry`] that exists is sound: names are unique and well formed, every `after` names a known family, `after` has no
//! loop, no deadline is zero and no period too short. It also knows the order: families in levels, each level after all it waits for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;

use super::stage::{Schedule, StageSpec, family};

/// A stage that runs more often than this leaves no time for the others.
pub const SHORTEST_PERIOD: Duration = Duration::from_millis(10);

/// Names that the runtime uses for its own actors.
const RESERVED: [&str; 2] = ["overseer", "scheduler"];

/// Why a set of stages was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RegistryError {
    /// A name is empty, or has an empty part or a character that names may not have.
    #[error(
        "stage name {name:?} is not valid: use letters, digits, `_`, `-` and `.`, with `/` between family and instance"
    )]
    InvalidName {
        /// The name as given.
        name: String,
    },
    /// The name belongs to the runtime itself.
    #[error("stage name {name:?} is reserved for the runtime's own actor: choose another family name")]
    ReservedName {
        /// The name as given.
        name: String,
    },
    /// Two stages have one name.
    #[error("stage {name:?} is registered twice: give instances of one family names such as \"{name}/0\"")]
    DuplicateName {
        /// The name that is there twice.
        name: String,
    },
    /// `after` names a family that no stage belongs to.
    #[error("stage {name:?} is to run after {after:?}, but no stage of that family is registered")]
    UnknownAfter {
        /// The stage that says `after`.
        name: String,
        /// The family it names.
        after: String,
    },
    /// Families wait for each other.
    #[error("stages wait for each other in a loop: {}", path.join(" after "))]
    Loop {
        /// The families of the loop; the first is repeated at the end.
        path: Vec<String>,
    },
    /// A stage's deadline is zero.
    #[error("stage {name:?} has a deadline of zero: a cycle needs time to run in")]
    ZeroDeadline {
        /// The stage.
        name: String,
    },
    /// A stage's own period is too short.
    #[error("stage {name:?} has a period of {period:?}: the shortest is {SHORTEST_PERIOD:?}, or it would hardly rest")]
    ShortPeriod {
        /// The stage.
        name: String,
        /// Its period.
        period: Duration,
    },
    /// A stage would be restarted before it has failed.
    #[error("stage {name:?} is to be restarted after 0 failed cycles: the least is 1")]
    ZeroFailures {
        /// The stage.
        name: String,
    },
}

/// One line of the stage list, for operators.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct StageListing {
    /// The stage's name.
    pub name: String,
    /// What it is for.
    pub purpose: String,
    /// The families it runs after.
    pub after: Vec<String>,
    /// `in cycle`, or `every 500ms`.
    pub schedule: String,
    /// The most one cycle may take, in milliseconds.
    pub deadline_ms: u64,
}

/// A sound set of stages, and their order.
#[derive(Debug)]
pub struct Registry {
    specs: Vec<StageSpec>,
    levels: Vec<Vec<String>>,
}

impl Registry {
    /// Checks `specs` and finds their order.
    ///
    /// # Errors
    /// The first thing that is wrong with them.
    pub fn new(specs: Vec<StageSpec>) -> Result<Self, RegistryError> {
        let mut names = BTreeSet::new();
        for spec in &specs {
            check(spec)?;
            if !names.insert(spec.name.as_str()) {
                return Err(RegistryError::DuplicateName { name: spec.name.clone() });
            }
        }
        let families: BTreeSet<&str> = specs.iter().map(StageSpec::family).collect();
        for spec in &specs {
            if let Some(after) = spec.after.iter().find(|after| !families.contains(after.as_str())) {
                return Err(RegistryError::UnknownAfter { name: spec.name.clone(), after: after.clone() });
            }
        }
        let levels = levels(&specs)?;
        Ok(Self { specs, levels })
    }

    /// The stages as registered.
    #[must_use]
    pub fn specs(&self) -> &[StageSpec] {
        &self.specs
    }

    /// All families in order: each level runs after the levels before it. The process stops them in reverse.
    #[must_use]
    pub fn levels(&self) -> &[Vec<String>] {
        &self.levels
    }

    /// The cycle: the families with [`Schedule::InCycle`], wave after wave.
    #[must_use]
    pub fn waves(&self) -> Vec<Vec<String>> {
        let in_cycle: BTreeSet<&str> =
            self.specs.iter().filter(|spec| spec.schedule == Schedule::InCycle).map(StageSpec::family).collect();
        let wave = |level: &Vec<String>| -> Vec<String> {
            level.iter().filter(|name| in_cycle.contains(name.as_str())).cloned().collect()
        };
        self.levels.iter().map(wave).filter(|wave| !wave.is_empty()).collect()
    }

    /// The list for operators, in the order of registration.
    #[must_use]
    pub fn list(&self) -> Vec<StageListing> {
        self.specs
            .iter()
            .map(|spec| StageListing {
                name: spec.name.clone(),
                purpose: spec.purpose.clone(),
                after: spec.after.clone(),
                schedule: match spec.schedule {
                    Schedule::InCycle => "in cycle".to_owned(),
                    Schedule::Every(period) => format!("every {period:?}"),
                },
                deadline_ms: u64::try_from(spec.deadline.as_millis()).unwrap_or(u64::MAX),
            })
            .collect()
    }

    /// The stages, with the levels as indices into them.
    pub(crate) fn into_parts(self) -> (Vec<StageSpec>, Vec<Vec<usize>>) {
        let indices = |level: &Vec<String>| -> Vec<usize> {
            let of_level = |(_, spec): &(usize, &StageSpec)| level.iter().any(|name| name == spec.family());
            self.specs.iter().enumerate().filter(of_level).map(|(index, _)| index).collect()
        };
        let levels = self.levels.iter().map(indices).collect();
        (self.specs, levels)
    }
}

fn check(spec: &StageSpec) -> Result<(), RegistryError> {
    let name = || spec.name.clone();
    let part_ok = |part: &str| {
        !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
    };
    if !spec.name.split('/').all(part_ok) {
        return Err(RegistryError::InvalidName { name: name() });
    }
    if RESERVED.contains(&family(&spec.name)) {
        return Err(RegistryError::ReservedName { name: name() });
    }
    if spec.deadline.is_zero() {
        return Err(RegistryError::ZeroDeadline { name: name() });
    }
    match spec.schedule {
        Schedule::Every(period) if period < SHORTEST_PERIOD => {
            return Err(RegistryError::ShortPeriod { name: name(), period });
        }
        _ => {}
    }
    if spec.policy.failures_before_restart == Some(0) {
        return Err(RegistryError::ZeroFailures { name: name() });
    }
    Ok(())
}

/// Levels of families: a family stands one level after the last of those it waits for. Instances of a family wait together.
fn levels(specs: &[StageSpec]) -> Result<Vec<Vec<String>>, RegistryError> {
    let mut waits: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut order: Vec<&str> = Vec::new();
    for spec in specs {
        if !order.contains(&spec.family()) {
            order.push(spec.family());
        }
        waits.entry(spec.family()).or_default().extend(spec.after.iter().map(String::as_str));
    }
    let mut levels: Vec<Vec<String>> = Vec::new();
    let mut placed: BTreeSet<&str> = BTreeSet::new();
    while placed.len() < order.len() {
        let ready = |name: &&str| !placed.contains(name) && waits[name].iter().all(|after| placed.contains(after));
        let level: Vec<&str> = order.iter().copied().filter(ready).collect();
        if level.is_empty() {
            let start = order.iter().copied().find(|name| !placed.contains(name)).unwrap_or_default();
            return Err(RegistryError::Loop { path: find_loop(&waits, &placed, start) });
        }
        placed.extend(level.iter().copied());
        levels.push(level.into_iter().map(str::to_owned).collect());
    }
    Ok(levels)
}

/// Follows `after` from `start` through families that could not be placed, until one comes up again.
fn find_loop(waits: &BTreeMap<&str, BTreeSet<&str>>, placed: &BTreeSet<&str>, start: &str) -> Vec<String> {
    let mut path: Vec<&str> = vec![start];
    loop {
        let last = path[path.len() - 1];
        let Some(next) = waits.get(last).and_then(|after| after.iter().copied().find(|name| !placed.contains(name)))
        else {
            return path.into_iter().map(str::to_owned).collect();
        };
        if let Some(seen) = path.iter().position(|name| *name == next) {
            path.push(next);
            return path[seen..].iter().map(|name| (*name).to_owned()).collect();
        }
        path.push(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::testkit::Script;

    fn spec(name: &str, after: &[&str]) -> StageSpec {
        let mut spec = Script::default().spec(name);
        spec.after = after.iter().map(|&name| name.to_owned()).collect();
        spec
    }

    fn refused(specs: Vec<StageSpec>) -> RegistryError {
        Registry::new(specs).expect_err("refused")
    }

    #[test]
    fn families_stand_in_waves() {
        let mut publisher = spec("publisher/0", &[]);
        publisher.schedule = Schedule::Every(Duration::from_millis(500));
        let registry = Registry::new(vec![
            spec("finalizer", &["dispatcher"]),
            spec("dispatcher/0", &["recovery"]),
            spec("dispatcher/1", &["creation"]),
            spec("recovery", &["creation"]),
            spec("creation", &[]),
            publisher,
        ])
        .unwrap();
        assert_eq!(registry.waves(), [vec!["creation"], vec!["recovery"], vec!["dispatcher"], vec!["finalizer"]]);
        assert_eq!(registry.levels()[0], ["creation", "publisher"]);
        assert_eq!(registry.list()[5].schedule, "every 500ms");
        assert_eq!(registry.into_parts().1, [vec![4, 5], vec![3], vec![1, 2], vec![0]]);
    }

    #[test]
    fn bad_names_are_refused() {
        for name in ["", "/", "a/", "/a", "a//b", "a b", "ä", "a\n"] {
            assert_eq!(refused(vec![spec(name, &[])]), RegistryError::InvalidName { name: name.to_owned() });
        }
        assert!(matches!(refused(vec![spec("scheduler", &[])]), RegistryError::ReservedName { .. }));
        assert!(matches!(refused(vec![spec("a", &[]), spec("a", &[])]), RegistryError::DuplicateName { .. }));
    }

    #[test]
    fn unknown_families_and_numbers_that_make_no_sense_are_refused() {
        let error = refused(vec![spec("a", &["b"])]);
        assert_eq!(error.to_string(), "stage \"a\" is to run after \"b\", but no stage of that family is registered");
        let zero = spec("a", &[]).deadline(Duration::ZERO);
        assert!(matches!(refused(vec![zero]), RegistryError::ZeroDeadline { .. }));
        let error = refused(vec![spec("a", &[]).every(Duration::from_millis(9))]);
        assert_eq!(error.to_string(), "stage \"a\" has a period of 9ms: the shortest is 10ms, or it would hardly rest");
        assert!(Registry::new(vec![spec("a", &[]).every(SHORTEST_PERIOD)]).is_ok());
        let never = spec("a", &[]).failures_before_restart(0);
        assert!(matches!(refused(vec![never]), RegistryError::ZeroFailures { .. }));
    }

    #[test]
    fn loops_are_refused_and_named() {
        let error = refused(vec![spec("a", &["d"]), spec("b", &["a", "c"]), spec("c/1", &["b"]), spec("d", &[])]);
        assert_eq!(error.to_string(), "stages wait for each other in a loop: b after c after b");
        let error = refused(vec![spec("a/0", &["a"]), spec("a/1", &[])]);
        assert_eq!(error.to_string(), "stages wait for each other in a loop: a after a");
    }
}
