//! `runherd stages`: what a coordinator is made of.

use std::io::Write;

use runherd_actors::stages::STAGES;

use super::{CliError, EXIT_OK};

/// List the stages of a coordinator and what each is for
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    runherd stages           in the order of a cycle; outbox_publisher runs beside it\n  \
    runherd stages --json\n\n\
    A stage's name is also the name of its section in the configuration and of its `stage` field in the log.")]
pub struct Args {}

/// Runs the command.
///
/// # Errors
/// Standard output cannot be written.
pub fn run(_: &Args, json: bool, out: &mut dyn Write) -> Result<u8, CliError> {
    if json {
        let stages: Vec<_> = STAGES
            .iter()
            .map(|stage| serde_json::json!({ "stage": stage.name, "purpose": stage.purpose, "after": stage.after }))
            .collect();
        writeln!(out, "{}", serde_json::Value::from(stages))?;
        return Ok(EXIT_OK);
    }
    for stage in STAGES {
        let after = if stage.after.is_empty() { String::new() } else { format!(" (after {})", stage.after.join(", ")) };
        writeln!(out, "{:<18} {}{after}", stage.name, stage.purpose)?;
    }
    Ok(EXIT_OK)
}
