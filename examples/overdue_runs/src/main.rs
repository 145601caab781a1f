//! A runherd coordinator with one more stage, `overdue_runs`.
//!
//! Each argument is a setting, `section.key=value`; the configuration file and the environment are read as `runherd` does.

mod overdue_runs;

use std::process::ExitCode;

use runherd::config::{Config, Sources};
use runherd::coordinator::{Coordinator, StartError};
use runherd::telemetry::{Telemetry, error_chain};

fn run() -> Result<u8, StartError> {
    let config = Config::load(&Sources::of_process(None, std::env::args().skip(1).collect()))?.config;
    // Read here, before anything is connected: what is wrong with it is said at once.
    let settings = config.stage_settings(overdue_runs::NAME)?;
    let telemetry = Telemetry::start(&config.log);
    let coordinator = Coordinator::builder(config, telemetry.log.clone())
        .stage_with(move |services| overdue_runs::spec(services, settings));
    Ok(coordinator.run()?.exit_code())
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("overdue_runs: {}", error_chain(&error));
            ExitCode::from(error.exit_code())
        }
    }
}
