//! `runherd stages`: what a coordinator is made of; and, of one that runs, what each part does, and orders to it.

mod table;

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Subcommand;
use runherd_actors::stages::STAGES;

use super::{CliError, EXIT_OK};
use crate::config::{Config, Sources};
use crate::control::{Answer, Place, Request, ask};

/// List the stages of a coordinator and what each is for
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  \
    runherd stages                          in the order of a cycle; outbox_publisher runs beside it\n  \
    runherd stages status                   what the coordinator on this machine is doing\n  \
    runherd --json stages status | jq .not_ready\n  \
    runherd stages pause shard_dispatcher   nothing more is handed out by this coordinator\n  \
    runherd stages resume shard_dispatcher\n\n\
    A stage's name is also the name of its section in the configuration and of its `stage` field in the log."
)]
pub struct Args {
    #[command(subcommand)]
    live: Option<Live>,
}

#[derive(Debug, Subcommand)]
enum Live {
    /// Show what every stage of the running coordinator does now and did last
    #[command(after_help = "Examples:\n  \
        runherd stages status\n  \
        runherd stages status --socket /run/runherd/control.sock\n  \
        runherd --json stages status | jq '.runtime.stages[] | select(.state != \"idle\")'")]
    Status(Where),
    /// Stop ticking stages; a cycle that runs is finished
    #[command(after_help = "Examples:\n  \
        runherd stages pause finalizer\n  \
        runherd stages pause outbox_publisher/control   all publishers of one database\n\n\
        It lasts until `resume`, or the end of the coordinator. Other coordinators go on.")]
    Pause(Order),
    /// Tick paused stages again, at once
    #[command(after_help = "Example:\n  runherd stages resume finalizer")]
    Resume(Order),
    /// Tick stages now, even if they are paused or backing off
    #[command(after_help = "Example:\n  runherd stages tick shard_dispatcher/0")]
    Tick(Order),
}

/// Which coordinator.
#[derive(Debug, clap::Args)]
struct Where {
    /// The coordinator's control socket [default: runtime.control_socket, else runherd/control.sock in $XDG_RUNTIME_DIR, for
    /// root also in /run]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// Which stages of it.
#[derive(Debug, clap::Args)]
struct Order {
    /// A stage (shard_dispatcher/0), a family (shard_dispatcher), or what is in between (outbox_publisher/control)
    name: String,
    #[command(flatten)]
    at: Where,
}

/// Runs the command. It reads the configuration only to learn where the socket is.
///
/// # Errors
/// Standard output cannot be written; no coordinator listens; no stage has that name.
pub fn run(args: Args, sources: &Sources, json: bool, out: &mut dyn Write) -> Result<u8, CliError> {
    match args.live {
        None => list(json, out)?,
        Some(live) => {
            let (request, word, at) = match live {
                Live::Status(at) => (Request::Status, "", at),
                Live::Pause(order) => (Request::Pause { stage: order.name }, "paused", order.at),
                Live::Resume(order) => (Request::Resume { stage: order.name }, "resumed", order.at),
                Live::Tick(order) => (Request::Tick { stage: order.name }, "ticked", order.at),
            };
            show(answer(&request, at, sources)?, word, json, out)?;
        }
    }
    Ok(EXIT_OK)
}

fn list(json: bool, out: &mut dyn Write) -> io::Result<()> {
    if json {
        let stages: Vec<_> = STAGES
            .iter()
            .map(|stage| serde_json::json!({ "stage": stage.name, "purpose": stage.purpose, "after": stage.after }))
            .collect();
        return writeln!(out, "{}", serde_json::Value::from(stages));
    }
    for stage in STAGES {
        let after = if stage.after.is_empty() { String::new() } else { format!(" (after {})", stage.after.join(", ")) };
        writeln!(out, "{:<18} {}{after}", stage.name, stage.purpose)?;
    }
    Ok(())
}

/// Asks the first coordinator that listens where it may be.
fn answer(request: &Request, at: Where, sources: &Sources) -> Result<Answer, CliError> {
    let sockets = match at.socket {
        Some(socket) => vec![socket],
        None => Place::candidates(&Config::load(sources)?.config),
    };
    let mut tried = Vec::new();
    for socket in sockets {
        match ask(&socket, request) {
            Ok(answer) => return Ok(answer),
            Err(error) => tried.push(format!("{} ({error})", socket.display())),
        }
    }
    let tried = if tried.is_empty() {
        "it is not configured, and there is no usual place for it".to_owned()
    } else {
        format!("tried {}", tried.join(", then "))
    };
    Err(CliError::Unavailable(format!(
        "no coordinator answers at its control socket: {tried}; pass --socket PATH, or set runtime.control_socket as the \
         coordinator has it (its log says where it listens)"
    )))
}

fn show(answer: Answer, word: &str, json: bool, out: &mut dyn Write) -> Result<(), CliError> {
    match answer {
        // Plain data under fixed names: writing it as JSON cannot fail.
        Answer::Status(status) if json => writeln!(out, "{}", serde_json::to_value(&status).unwrap_or_default())?,
        Answer::Status(status) => out.write_all(table::text(&status).as_bytes())?,
        Answer::Done { stages } if json => writeln!(out, "{}", serde_json::json!({ "stages": stages }))?,
        Answer::Done { stages } => writeln!(out, "{word}: {}", stages.join(", "))?,
        Answer::UnknownStage { stage, known } => {
            let known = known.join(", ");
            return Err(CliError::Data(format!("no stage and no family is named {stage:?}; the stages are {known}")));
        }
        Answer::Refused { reason } => return Err(CliError::Unavailable(reason)),
    }
    Ok(())
}
