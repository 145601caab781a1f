//! `runherd migrate`: brings the databases to the schema of this program.

use std::io::Write;

use super::{CliError, Context, EXIT_OK};
use crate::store::migrate::{MigrationReport, migrate};

/// Bring the databases to the schema of this program
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    runherd migrate --dry-run    list what is pending and change nothing\n  \
    runherd migrate              control database first, then every [placements.<name>]\n\n\
    Running it twice, or from two machines at once, is safe. The role needs the right to create roles and schemas.")]
pub struct Args {
    /// List what is pending and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// Runs the command.
///
/// # Errors
/// A database that cannot be reached, is newer than this program, or belongs to another installation.
pub async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let databases = context.config().databases()?;
    let reports = migrate(&databases, args.dry_run).await?;
    let mut out = std::io::stdout().lock();
    if context.json {
        let value = serde_json::json!({ "dry_run": args.dry_run, "databases": reports });
        writeln!(out, "{value}")?;
        return Ok(EXIT_OK);
    }
    for report in &reports {
        writeln!(out, "{}", line(report, args.dry_run))?;
    }
    Ok(EXIT_OK)
}

fn line(report: &MigrationReport, dry_run: bool) -> String {
    let what = if report.migrations.is_empty() {
        "up to date".to_owned()
    } else if dry_run {
        format!("pending: {}", report.migrations.join(", "))
    } else {
        format!("applied: {}", report.migrations.join(", "))
    };
    format!("{} ({} schema): {what}", report.database, report.set)
}
