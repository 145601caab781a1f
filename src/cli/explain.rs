//! `runherd explain`: why a run is not moving, and what to do about it.

use std::io::{self, Write};
use std::time::Duration;

use runherd_actors::model::RunId;
use tokio::time::timeout;
use uuid::Uuid;

use super::run_arg::{RunArg, unknown_run};
use super::{CliError, Context, EXIT_OK};
use crate::broker::{BrokerSettings, BrokerState, Publisher, silent};
use crate::explain::{Bearing, BrokerView, Finding, findings, needs_broker};
use crate::store::SessionSettings;
use crate::store::client::ClientStore;
use crate::store::explain::{Facts, read};
use crate::store::verify::Installation;

/// The longest wait for the broker.
const BROKER_PATIENCE: Duration = Duration::from_secs(5);

/// Say why a run is not moving, and what to do
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    runherd explain 0190a1b2            by the first digits of the run's identifier\n  \
    runherd explain 0190a1b2 --json     the findings for a program\n\n\
    Reads only. The likeliest reason comes first. Exit status: 0 whatever is found, 65 no such run, 69 the control database \
    cannot be reached.")]
pub struct Args {
    /// The run: its identifier, or at least eight of its first digits
    run: RunArg,
    /// How long to watch whether the run moves
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = humantime::parse_duration)]
    pause: Duration,
}

/// Runs the command.
///
/// # Errors
/// The control database cannot be read, or the run is not there.
pub async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let config = context.config();
    let settings = SessionSettings { pool_size: 1, ..SessionSettings::new(&config.pool, &config.session, true) };
    let installation = Installation::open(&config.databases()?, &settings).await?;
    let run = args.run.resolve(&ClientStore::new(installation.control.clone())).await?.0;
    let (facts, moved) = observe(&installation, run, args.pause).await?;
    let broker = if needs_broker(&facts) { ask_broker(context).await? } else { BrokerView::NotAsked };
    let findings = findings(&facts, moved, &broker);
    let mut out = io::stdout().lock();
    if context.json {
        writeln!(out, "{}", json(&facts, moved, &findings))?;
    } else {
        print(&facts, &findings, &mut out)?;
    }
    Ok(EXIT_OK)
}

/// Reads the run twice, and says whether it moved in between. A run that has ended is read once.
async fn observe(installation: &Installation, run: Uuid, pause: Duration) -> Result<(Facts, bool), CliError> {
    let gone = || unknown_run(RunId(run));
    let first = read(installation, run).await?.ok_or_else(gone)?;
    if first.run.finished_ms_ago.is_some() {
        return Ok((first, false));
    }
    tokio::time::sleep(pause).await;
    let second = read(installation, run).await?.ok_or_else(gone)?;
    let moved = first.progress() != second.progress();
    Ok((second, moved))
}

/// Connects as a publisher does, and looks what becomes of it.
async fn ask_broker(context: &Context) -> Result<BrokerView, CliError> {
    let config = &context.config().broker;
    if config.url.is_none() {
        return Ok(BrokerView::NotConfigured);
    }
    let mut settings = BrokerSettings::from_config(context.config())?;
    settings.connect_timeout = config.connect_timeout.min(BROKER_PATIENCE);
    let publisher = Publisher::start(settings, "explain", &silent());
    let mut state = publisher.state();
    // The state before the first attempt has no pause after it.
    let tried =
        |state: &BrokerState| !matches!(state, BrokerState::Disconnected { retry_in, .. } if retry_in.is_zero());
    let view = match timeout(BROKER_PATIENCE + Duration::from_secs(1), state.wait_for(tried)).await {
        Ok(Ok(state)) => view_of(&state),
        _ => BrokerView::Obstacle(format!("it did not answer within {BROKER_PATIENCE:?}")),
    };
    publisher.close().await;
    Ok(view)
}

fn view_of(state: &BrokerState) -> BrokerView {
    match state {
        BrokerState::Connected => BrokerView::Connected,
        BrokerState::Blocked { reason } => BrokerView::Obstacle(format!("it takes no messages: {reason}")),
        BrokerState::Disconnected { error, .. } => BrokerView::Obstacle(error.clone()),
        BrokerState::Closed => BrokerView::Obstacle("the connection was closed".to_owned()),
    }
}

fn print(facts: &Facts, findings: &[Finding], out: &mut dyn Write) -> io::Result<()> {
    let run = &facts.run;
    let name = if run.name.is_empty() { String::new() } else { format!(" {:?}", run.name) };
    writeln!(out, "run {}{name} on queue {} is {}", run.run_id, run.queue, run.status)?;
    for finding in findings {
        let mark = match finding.bearing {
            Bearing::Blocks => "blocked",
            Bearing::Waits => "waits",
            Bearing::Fine => "fine",
        };
        writeln!(out, "\n[{mark}] {}", finding.summary)?;
        for fact in &finding.facts {
            writeln!(out, "    - {fact}")?;
        }
        if !finding.advice.is_empty() {
            writeln!(out, "    → {}", finding.advice)?;
        }
    }
    Ok(())
}

fn json(facts: &Facts, moved: bool, findings: &[Finding]) -> serde_json::Value {
    let run = &facts.run;
    serde_json::json!({
        "run_id": run.run_id, "name": run.name, "queue": run.queue, "status": run.status, "moving": moved,
        "findings": findings,
    })
}
