//! The runtime as a whole, with scripted stages.
//!
//! Most tests run on one thread under tokio's paused time: an hour passes as soon as nobody has anything to do. Those about
//! stages that hold a thread need several threads and real time; they wait for events all the same.

mod cycles;
mod deaths;
mod drains;
mod hogs;
mod logs;

use std::sync::Arc;
use std::time::Duration;

use slog::{Discard, Logger, o};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::backoff::{Backoff, Intensity};
use super::report::CycleReport;
use super::stage::StageSpec;
use super::testkit::{Answer, Gate, Happened, Journal, Script};
use super::{Registry, RunOutcome, Runtime, RuntimeHandle, RuntimeSettings};

/// No test needs more virtual (or real) time.
const LIMIT: Duration = Duration::from_secs(2 * 3600);

fn settings() -> RuntimeSettings {
    RuntimeSettings { cycle_jitter: 0.0, control_stall: Duration::ZERO, ..RuntimeSettings::default() }
}

/// Runs `specs` under paused time while `test` acts on them. Afterwards the run is drained, unless it has ended.
fn run<F>(settings: RuntimeSettings, specs: Vec<StageSpec>, test: impl FnOnce(RuntimeHandle) -> F) -> RunOutcome
where
    F: Future<Output = ()> + Send + 'static,
{
    run_with(paused(), Logger::root(Discard, o!()), settings, specs, test)
}

fn paused() -> tokio::runtime::Runtime {
    Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
}

/// The same on several threads, in real time.
fn run_threaded<F>(
    settings: RuntimeSettings,
    specs: Vec<StageSpec>,
    test: impl FnOnce(RuntimeHandle) -> F,
) -> RunOutcome
where
    F: Future<Output = ()> + Send + 'static,
{
    let tokio = Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap();
    run_with(tokio, Logger::root(Discard, o!()), settings, specs, test)
}

fn run_with<F>(
    tokio: tokio::runtime::Runtime,
    log: Logger,
    settings: RuntimeSettings,
    specs: Vec<StageSpec>,
    test: impl FnOnce(RuntimeHandle) -> F,
) -> RunOutcome
where
    F: Future<Output = ()> + Send + 'static,
{
    let tokio = Arc::new(tokio);
    let runtime = {
        // Made inside the runtime, or its times would be those of the real clock.
        let _inside = tokio.enter();
        let registry = Registry::new(specs).unwrap();
        Runtime::new(log, settings, registry)
    };
    let handle = runtime.handle();
    let test = test(handle.clone());
    let (sender, passed) = oneshot::channel();
    tokio.spawn(async move {
        // Also when the test panics.
        let _drain = DrainAtEnd(handle);
        let in_time = timeout(LIMIT, test).await;
        let _ = sender.send(in_time.is_ok());
    });
    let outcome = runtime.run(Arc::clone(&tokio));
    // The run may have ended before the test has seen all that it waits for.
    let passed = tokio.block_on(passed);
    if let Ok(tokio) = Arc::try_unwrap(tokio) {
        tokio.shutdown_background();
    }
    assert!(passed.unwrap_or(false), "the test panicked, or waited too long: {outcome:?}");
    outcome
}

struct DrainAtEnd(RuntimeHandle);

impl Drop for DrainAtEnd {
    fn drop(&mut self) {
        self.0.drain();
    }
}

fn after(spec: StageSpec, families: &[&str]) -> StageSpec {
    spec.after(families.iter().copied())
}

fn every(spec: StageSpec, period: Duration) -> StageSpec {
    spec.every(period)
}

fn deadline(spec: StageSpec, deadline: Duration) -> StageSpec {
    spec.deadline(deadline)
}
