//! `runherd verify`: checks the protocol's invariants over every database, and names what violates them.

use std::io::{self, Write};
use std::time::Duration;

use super::run_arg::RunArg;
use super::{CliError, Context, EXIT_FAILED, EXIT_OK, EXIT_UNAVAILABLE};
use crate::store::SessionSettings;
use crate::store::client::ClientStore;
use crate::store::verify::Installation;
use crate::verify::{Invariant, Options, Report, Scope, Violation, verify};

/// Keys that are listed for one invariant.
const LISTED: usize = 20;

/// Check the protocol's invariants in every database
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    runherd verify               every run, and every event of every database\n  \
    runherd verify 0190a1b2      one run, by the first digits of its identifier\n\n\
    Reads only, and may be run while coordinators and workers are at work: what two samples, a pause apart, do not agree on is \
    a transition in flight, and not reported. It reads every chunk and every event once.\n\
    Exit status: 0 everything was checked and holds, 1 something is violated, 69 something could not be checked.")]
pub struct Args {
    /// The run: its identifier, or at least eight of its first digits [default: all runs]
    run: Option<RunArg>,
    /// The pause before the second sample
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = humantime::parse_duration)]
    pause: Duration,
    /// How long one statement may take; a placement that needs longer counts as not checked
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = humantime::parse_duration)]
    statement_timeout: Duration,
}

/// Runs the command.
///
/// # Errors
/// The control database cannot be read, or the run is not there.
pub async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let installation = Installation::open(&context.config().databases()?, &settings(&args, context)).await?;
    let scope = match args.run {
        Some(run) => Scope::Run(run.resolve(&ClientStore::new(installation.control.clone())).await?.0),
        None => Scope::All,
    };
    let report = verify(&installation, scope, Options { pause: args.pause }).await?;
    let mut out = io::stdout().lock();
    if context.json {
        writeln!(out, "{}", json(&report))?
    } else {
        print(&report, &mut out)?
    }
    Ok(exit_status(&report))
}

/// One connection to each database, whose statements may take long and choose their plans.
fn settings(args: &Args, context: &Context) -> SessionSettings {
    let config = context.config();
    SessionSettings {
        pool_size: 1,
        statement_timeout: args.statement_timeout,
        ..SessionSettings::new(&config.pool, &config.session, false)
    }
}

fn exit_status(report: &Report) -> u8 {
    if !report.violations.is_empty() {
        EXIT_FAILED
    } else if report.is_ok() {
        EXIT_OK
    } else {
        EXIT_UNAVAILABLE
    }
}

fn print(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "    {:<48} {:>24} {:>11}", "invariant", "checked", "violations")?;
    for invariant in Invariant::ALL {
        let checked = format!("{} {}", report.checked.of(invariant), invariant.unit());
        let more = if report.incomplete.contains(&invariant) { "+" } else { "" };
        let violations = format!("{}{more}", report.count(invariant));
        writeln!(out, "{invariant:?}  {:<48} {checked:>24} {violations:>11}", invariant.what())?;
    }
    for invariant in Invariant::ALL {
        list(report, invariant, out)?;
    }
    if !report.unchecked.is_empty() {
        writeln!(out, "\nNot checked:")?;
        for unchecked in &report.unchecked {
            writeln!(out, "  {}: {}", unchecked.database, unchecked.reason)?;
        }
    }
    writeln!(out, "\n{}", verdict(report))
}

fn list(report: &Report, invariant: Invariant, out: &mut dyn Write) -> io::Result<()> {
    let violations: Vec<&Violation> = report.of(invariant).collect();
    if violations.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{invariant:?}, {}:", invariant.what())?;
    for Violation { database, key, detail, .. } in violations.iter().take(LISTED) {
        writeln!(out, "  {key} on {database}: {detail}")?;
    }
    if violations.len() > LISTED {
        writeln!(out, "  … and {} more lines; --json has all", violations.len() - LISTED)?;
    }
    Ok(())
}

fn verdict(report: &Report) -> String {
    let violations: i64 = Invariant::ALL.iter().map(|invariant| report.count(*invariant)).sum();
    match (violations, report.unchecked.len()) {
        (0, 0) => "OK: every invariant holds".to_owned(),
        (0, _) => "INCOMPLETE: what was checked holds; not everything could be checked".to_owned(),
        (1, _) => "VIOLATED: 1 violation".to_owned(),
        (many, _) => format!("VIOLATED: {many} violations"),
    }
}

fn json(report: &Report) -> serde_json::Value {
    let invariants: Vec<_> = Invariant::ALL
        .iter()
        .map(|invariant| {
            serde_json::json!({
                "invariant": invariant, "what": invariant.what(), "unit": invariant.unit(),
                "checked": report.checked.of(*invariant), "violations": report.count(*invariant),
                "complete": !report.incomplete.contains(invariant),
            })
        })
        .collect();
    serde_json::json!({
        "ok": report.is_ok(), "checked": report.checked, "invariants": invariants, "violations": report.violations,
        "passing": report.passing, "unchecked": report.unchecked,
    })
}
