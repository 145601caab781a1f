//! A stage of your own under the supervised runtime, with no database and no broker:
//!
//! ```text
//! cargo run -p runherd-actors --example custom_stage
//! ```
//!
//! It runs ten cycles, has one bad moment on the way, drains, and exits with 0.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use runherd_actors::runtime::report::{CycleReport, StageError};
use runherd_actors::runtime::stage::{CycleContext, Stage, StageSpec};
use runherd_actors::runtime::{Registry, Runtime, RuntimeSettings};
use slog::{Drain, Logger, info, o};

/// Counts sheep, five in a cycle.
struct Shepherd {
    log: Logger,
    /// Shared with the factory: a restarted shepherd goes on from here.
    sheep: Arc<AtomicU64>,
}

#[async_trait]
impl Stage for Shepherd {
    async fn run_cycle(&mut self, cx: &CycleContext) -> Result<CycleReport, StageError> {
        if cx.iteration == 3 {
            // The runtime waits a little and tries again; it does not restart the stage for this.
            return Err(StageError::transient("counting sheep", "they are asleep"));
        }
        let mut report = CycleReport::default();
        for _ in 0..5 {
            self.sheep.fetch_add(1, Ordering::Relaxed);
            report.count("sheep", 1);
        }
        // Asks for the next cycle at once, until ten have run.
        report.more = cx.iteration < 10;
        Ok(report)
    }

    async fn drain(&mut self) {
        info!(self.log, "the shepherd goes home"; "sheep" => self.sheep.load(Ordering::Relaxed));
    }
}

fn main() -> ExitCode {
    let decorator = slog_term::PlainSyncDecorator::new(std::io::stderr());
    let log = Logger::root(slog_term::FullFormat::new(decorator).build().fuse(), o!());
    let sheep = Arc::new(AtomicU64::new(0));
    let factory = {
        let log = log.clone();
        move || Shepherd { log: log.clone(), sheep: Arc::clone(&sheep) }
    };
    let spec = StageSpec::new("shepherd", "counts sheep", factory).deadline(Duration::from_secs(5));
    let registry = match Registry::new(vec![spec]) {
        Ok(registry) => registry,
        Err(error) => {
            slog::crit!(log, "the stages are refused"; "error" => %error);
            return ExitCode::from(78);
        }
    };
    let tokio = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(tokio) => Arc::new(tokio),
        Err(error) => {
            slog::crit!(log, "no threads"; "error" => %error);
            return ExitCode::FAILURE;
        }
    };
    let runtime = Runtime::new(log, RuntimeSettings::default(), registry);
    let handle = runtime.handle();
    // A service would call `drain` when it is told to stop; this one stops when the sheep are counted.
    tokio.spawn(async move {
        while handle.status().stage("shepherd").is_none_or(|stage| stage.cycles < 10) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        handle.drain();
    });
    let outcome = runtime.run(tokio);
    ExitCode::from(outcome.exit_code())
}
