//! Every built-in stage with its adapter, and the runtime's settings.

use std::sync::Arc;

use runherd_actors::runtime::RuntimeSettings;
use runherd_actors::runtime::backoff::{Backoff, Intensity};
use runherd_actors::runtime::stage::{FailurePolicy, Schedule, Stage, StageFactory, StageSpec};
use runherd_actors::stages::creation_recovery::{self, CreationRecovery, CreationRecoverySettings};
use runherd_actors::stages::entry;
use runherd_actors::stages::finalizer::{self, Finalizer, FinalizerSettings};
use runherd_actors::stages::lease_recovery::{self, LeaseRecovery};
use runherd_actors::stages::outbox_publisher::{self, OutboxPublisher, OutboxPublisherSettings};
use runherd_actors::stages::placements::PlacementRef;
use runherd_actors::stages::shard_dispatcher::{self, ShardDispatcher, ShardDispatcherSettings};

use super::{Shared, presence, reporting};
use crate::broker::outbox_publisher::BrokerPort;
use crate::broker::{BrokerSettings, Publisher};
use crate::config::Config;
use crate::store::creation_recovery::CreationRecoveryStore;
use crate::store::finalizer::FinalizerStore;
use crate::store::lease_recovery::LeaseRecoveryStore;
use crate::store::outbox_publisher::OutboxStore;
use crate::store::shard_dispatcher::ShardDispatcherStore;

/// The built-in stages, and the publishers whose connections outlive their stages' restarts.
pub(super) fn built_in(
    shared: &Arc<Shared>,
    broker: &BrokerSettings,
    placements: &[PlacementRef],
) -> (Vec<StageSpec>, Vec<Publisher>) {
    let mut specs = vec![creation_recovery(shared), lease_recovery(shared)];
    specs.extend(shard_dispatchers(shared));
    specs.push(finalizer(shared));
    let (publishing, publishers) = outbox_publishers(shared, broker, placements);
    specs.extend(publishing);
    specs.push(presence::spec(shared));
    specs.push(reporting::spec(shared, &publishers));
    (specs, publishers)
}

/// The runtime's settings as the configuration gives them.
pub(super) fn runtime_settings(config: &Config) -> RuntimeSettings {
    let runtime = &config.runtime;
    RuntimeSettings {
        cycle_interval: config.cycle.interval,
        cycle_jitter: f64::from(config.cycle.jitter_percent) / 100.0,
        wave_budget: config.cycle.stage_budget,
        drain_grace: runtime.drain_grace,
        restart_backoff: Backoff { min: runtime.restart_delay_min, max: runtime.restart_delay_max },
        child_intensity: Intensity { count: runtime.restarts, window: runtime.restart_window },
        total_intensity: Intensity { count: runtime.restarts_total, window: runtime.restart_window },
        failures_before_restart: runtime.failures_before_restart,
        mailbox_capacity: runtime.mailbox_capacity as usize,
        report_interval: runtime.report_interval,
        ..RuntimeSettings::default()
    }
}

/// A built-in stage: its purpose and its place in the cycle stand in the table of stages.
fn spec(
    family: &str,
    instance: Option<String>,
    schedule: Schedule,
    config: &Config,
    factory: StageFactory,
) -> StageSpec {
    let listed = entry(family);
    StageSpec {
        name: instance.map_or_else(|| family.to_owned(), |instance| format!("{family}/{instance}")),
        purpose: listed.map_or_else(String::new, |stage| stage.purpose.to_owned()),
        after: listed.map_or_else(Vec::new, |stage| stage.after.iter().map(|&name| name.to_owned()).collect()),
        schedule,
        deadline: config.cycle.deadline,
        policy: FailurePolicy::default(),
        factory,
    }
}

fn boxed<S: Stage>(stage: S) -> Box<dyn Stage> {
    Box::new(stage)
}

fn creation_recovery(shared: &Arc<Shared>) -> StageSpec {
    let owned = Arc::clone(shared);
    let factory: StageFactory = Box::new(move || {
        let config = &owned.config.creation_recovery;
        let port = CreationRecoveryStore {
            router: Arc::clone(&owned.router),
            lease: config.lease,
            abandon_after: config.abandon_after,
            policy: owned.config.policy.clone(),
        };
        let settings = CreationRecoverySettings { batch: config.batch, parts_per_pass: config.parts_per_pass };
        boxed(CreationRecovery::new(port, settings))
    });
    spec(creation_recovery::NAME, None, Schedule::InCycle, &shared.config, factory)
}

fn lease_recovery(shared: &Arc<Shared>) -> StageSpec {
    let owned = Arc::clone(shared);
    let factory: StageFactory = Box::new(move || {
        let config = &owned.config.lease_recovery;
        boxed(LeaseRecovery::new(LeaseRecoveryStore {
            router: Arc::clone(&owned.router),
            batch: config.batch,
            scan_rows: config.scan_rows,
            spread: config.spread,
        }))
    });
    spec(lease_recovery::NAME, None, Schedule::InCycle, &shared.config, factory)
}

fn shard_dispatchers(shared: &Arc<Shared>) -> Vec<StageSpec> {
    let instances = i32::try_from(shared.config.shard_dispatcher.instances).unwrap_or(1);
    let make = |instance: i32| {
        let owned = Arc::clone(shared);
        let factory: StageFactory = Box::new(move || {
            let config = &owned.config.shard_dispatcher;
            let port =
                ShardDispatcherStore { router: Arc::clone(&owned.router), lease: config.lease, instances, instance };
            let settings =
                ShardDispatcherSettings { cursors_per_pass: config.cursors_per_pass, full_delay: config.full_delay };
            boxed(ShardDispatcher::new(port, settings))
        });
        spec(shard_dispatcher::NAME, Some(instance.to_string()), Schedule::InCycle, &shared.config, factory)
    };
    (0..instances).map(make).collect()
}

fn finalizer(shared: &Arc<Shared>) -> StageSpec {
    let owned = Arc::clone(shared);
    let factory: StageFactory = Box::new(move || {
        let config = &owned.config.finalizer;
        let port = FinalizerStore {
            router: Arc::clone(&owned.router),
            lease: config.lease,
            sweep_batch: config.sweep_batch,
            orphan_grace: config.orphan_grace,
        };
        let settings = FinalizerSettings {
            batch: config.batch,
            look_delay_min: config.look_delay_min,
            look_delay_max: config.look_delay_max,
        };
        boxed(Finalizer::new(port, settings))
    });
    spec(finalizer::NAME, None, Schedule::InCycle, &shared.config, factory)
}

/// A pool of publishers for each database, each with a connection of its own.
fn outbox_publishers(
    shared: &Arc<Shared>,
    broker: &BrokerSettings,
    placements: &[PlacementRef],
) -> (Vec<StageSpec>, Vec<Publisher>) {
    let mut specs = Vec::new();
    let mut publishers = Vec::new();
    for placement in placements {
        for instance in 0..shared.config.outbox_publisher.publishers {
            let name = format!("{}/{instance}", placement.name);
            let publisher = Publisher::start(broker.clone(), &name, &shared.log);
            publishers.push(publisher.clone());
            let factory = publisher_factory(shared, publisher, placement, instance);
            let schedule = Schedule::Every(shared.config.outbox_publisher.poll_interval);
            specs.push(spec(outbox_publisher::NAME, Some(name), schedule, &shared.config, factory));
        }
    }
    (specs, publishers)
}

fn publisher_factory(
    shared: &Arc<Shared>,
    publisher: Publisher,
    placement: &PlacementRef,
    instance: u32,
) -> StageFactory {
    let owned = Arc::clone(shared);
    let placement = placement.id;
    Box::new(move || {
        let config = &owned.config.outbox_publisher;
        let outbox = OutboxStore {
            router: Arc::clone(&owned.router),
            placement,
            claimed_by: owned.coordinator_id,
            lease: config.lease,
            max_attempts: config.max_attempts,
            parked_delay: config.parked_delay,
        };
        let port = BrokerPort::new(publisher.clone(), owned.log.clone());
        let settings = OutboxPublisherSettings {
            batch: config.batch,
            retry_delay: Backoff { min: config.retry_delay_min, max: config.retry_delay_max },
        };
        boxed(OutboxPublisher::new(outbox, port, settings, u16::try_from(instance).unwrap_or_default()))
    })
}
