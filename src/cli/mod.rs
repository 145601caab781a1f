//! The command line: one file for each command, and what they share.
//!
//! A command is a `clap::Args` struct named `Args` and an `async fn run(Args, &Context) -> Result<u8, CliError>` whose value is
//! the exit status. Results go to standard output; progress, logs and errors go to standard error.

pub mod cancel;
pub mod config;
pub mod explain;
pub mod migrate;
pub mod pause;
pub mod progress;
pub mod results;
pub mod resume;
pub mod run_arg;
pub mod runs;
pub mod serve;
pub mod stages;
pub mod status;
pub mod submit;
pub mod verify;
pub mod watch;
pub mod worker;

use std::error::Error as StdError;
use std::io::IsTerminal;
use std::path::PathBuf;

use clap::{Parser, Subcommand};

pub use crate::process::{
    EXIT_CANCELLED, EXIT_DATA, EXIT_ESCALATED, EXIT_FAILED, EXIT_FORCED, EXIT_INTERRUPTED, EXIT_OK, EXIT_UNAVAILABLE,
};

use crate::config::{Config, ConfigError, EXIT_CONFIG, Loaded, Sources};
use crate::coordinator::StartError;
use crate::store::{Database, SessionSettings, StoreError};
use crate::telemetry::error_chain;

/// A run coordinator: hands a huge run out in chunks, recovers whatever dies, and finishes the run exactly once.
#[derive(Debug, Parser)]
#[command(name = "runherd", version, max_term_width = 110, arg_required_else_help = true, after_help = EXIT_STATUS)]
pub struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

const EXIT_STATUS: &str = "Exit status: 0 done (the run succeeded) · 1 the run failed, or a check found a violation · 2 usage · \
3 the run was cancelled · 65 bad input · 69 a server is not available · 70 escalated · 75 forced to stop · 78 configuration · 130 interrupted";

/// Flags of every command.
#[derive(Debug, clap::Args)]
struct Common {
    /// The configuration file [default: ./runherd.toml, then /etc/runherd/runherd.toml, if there is one]
    #[arg(long, global = true, value_name = "FILE", env = "RUNHERD_CONFIG")]
    config: Option<PathBuf>,
    /// Set one key of the configuration, such as control.url=postgresql://… (may be repeated)
    #[arg(long = "set", global = true, value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Print JSON instead of text, where the command prints a result
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a coordinator
    Serve(serve::Args),
    /// Bring the databases to the schema of this program
    Migrate(migrate::Args),
    /// List the stages of a coordinator; show what those of a running one do, pause, resume or tick them
    Stages(stages::Args),
    /// Submit a run: one chunk for each line, or for each step of a range
    Submit(Box<submit::Args>),
    /// Follow a run until it has ended
    Watch(watch::Args),
    /// List runs, newest first
    Runs(runs::Args),
    /// Show everything about one run
    Status(status::Args),
    /// Stream a run's outcomes, one JSON object a line
    Results(results::Args),
    /// Cancel a run: nothing more of it is handed out, and what is open is swept
    Cancel(cancel::Args),
    /// Stop handing out a run; what is handed out goes on
    Pause(pause::Args),
    /// Go on handing out a paused run
    Resume(resume::Args),
    /// Check the protocol's invariants in every database
    Verify(verify::Args),
    /// Say why a run is not moving, and what to do
    Explain(explain::Args),
    /// Work on the chunks of one queue by running a command for each
    Worker(worker::Args),
    /// Check or print the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Check the configuration and name everything that is wrong
    Check,
    /// Print every setting with the place it came from; passwords are not shown
    Print,
}

/// What a command gets to work with.
#[derive(Debug)]
pub struct Context {
    /// The configuration, with the origin of each value.
    pub loaded: Loaded,
    /// Print JSON.
    pub json: bool,
}

impl Context {
    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.loaded.config
    }

    /// The control database, for commands that ask or tell it something.
    ///
    /// # Errors
    /// It is not configured.
    pub fn control(&self) -> Result<Database, CliError> {
        self.database(crate::config::CONTROL)
    }

    /// A placement's database by its name in the configuration, for commands.
    ///
    /// # Errors
    /// It is not configured.
    pub fn database(&self, name: &str) -> Result<Database, CliError> {
        let connection = self.config().placement_connection(name)?;
        let settings = SessionSettings::new(&self.config().pool, &self.config().session, false);
        Ok(Database::new(name, connection, &settings, None)?)
    }

    /// Whether progress may be drawn: standard error is a terminal.
    #[must_use]
    pub fn draws_progress(&self) -> bool {
        std::io::stderr().is_terminal()
    }
}

/// Why a command ended without doing what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The configuration is wrong or incomplete.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A database refused or failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A coordinator did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A server that is not a database cannot be reached.
    #[error("{0}")]
    Unavailable(String),
    /// The input is bad; the text says what, where and what to do.
    #[error("{0}")]
    Data(String),
    /// Something else went wrong.
    #[error("{0}")]
    Other(String, #[source] Option<Box<dyn StdError + Send + Sync>>),
}

impl CliError {
    /// The exit status it leads to.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) => EXIT_CONFIG,
            Self::Start(error) => error.exit_code(),
            Self::Store(StoreError::Unavailable { .. } | StoreError::Schema { .. }) | Self::Unavailable(_) => {
                EXIT_UNAVAILABLE
            }
            Self::Store(StoreError::Refused { .. }) | Self::Data(_) => EXIT_DATA,
            Self::Store(_) | Self::Other(..) => EXIT_FAILED,
        }
    }
}

impl From<std::io::Error> for CliError {
    fn from(error: std::io::Error) -> Self {
        Self::Other("writing the result".to_owned(), Some(error.into()))
    }
}

/// Parses the command line and runs the command; returns the exit status.
#[must_use]
pub fn main() -> u8 {
    let cli = Cli::parse();
    match dispatch(cli) {
        Ok(code) => code,
        Err(error) => {
            report(&error);
            error.exit_code()
        }
    }
}

#[expect(clippy::print_stderr, reason = "the one place where a command's error is shown")]
fn report(error: &CliError) {
    let chain = error_chain(error);
    // The SQL functions begin their refusals with the same word.
    eprintln!("runherd: {}", chain.strip_prefix("runherd: ").unwrap_or(&chain));
}

fn dispatch(cli: Cli) -> Result<u8, CliError> {
    let sources = Sources::of_process(
        cli.common.config,
        sets(std::env::args_os().map(|argument| argument.to_string_lossy().into_owned())),
    );
    if let Command::Config(command) = &cli.command {
        return config_command(command, &sources, cli.common.json);
    }
    let command = match cli.command {
        Command::Stages(args) => return stages::run(args, &sources, cli.common.json, &mut std::io::stdout().lock()),
        command => command,
    };
    let context = Context { loaded: Config::load(&sources)?, json: cli.common.json };
    if let Command::Serve(args) = &command {
        return serve::run(args, &context);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::Other("starting the runtime".to_owned(), Some(error.into())))?;
    runtime.block_on(async {
        match command {
            Command::Migrate(args) => migrate::run(args, &context).await,
            Command::Config(_) | Command::Serve(_) | Command::Stages(_) => Ok(EXIT_OK),
            Command::Submit(args) => submit::run(*args, &context).await,
            Command::Watch(args) => watch::run(args, &context).await,
            Command::Runs(args) => runs::run(args, &context).await,
            Command::Status(args) => status::run(args, &context).await,
            Command::Results(args) => results::run(args, &context).await,
            Command::Cancel(args) => cancel::run(args, &context).await,
            Command::Pause(args) => pause::run(args, &context).await,
            Command::Resume(args) => resume::run(args, &context).await,
            Command::Explain(args) => explain::run(args, &context).await,
            Command::Verify(args) => verify::run(args, &context).await,
            Command::Worker(args) => worker::run(args, &context).await,
        }
    })
}

/// Every `--set` of the command line, before and behind the command's name. A flag that every command takes is overridden as a
/// whole when it stands on both sides, which would lose those in front.
fn sets(arguments: impl Iterator<Item = String>) -> Vec<String> {
    let mut arguments = arguments.skip(1).take_while(|argument| argument != "--");
    let mut sets = Vec::new();
    while let Some(argument) = arguments.next() {
        if argument == "--set" {
            sets.extend(arguments.next());
        } else if let Some(set) = argument.strip_prefix("--set=") {
            sets.push(set.to_owned());
        }
    }
    sets
}

fn config_command(command: &ConfigCommand, sources: &Sources, json: bool) -> Result<u8, CliError> {
    let loaded = Config::load(sources);
    let mut out = std::io::stdout().lock();
    match command {
        ConfigCommand::Check => Ok(config::check(&loaded, &mut out)?),
        ConfigCommand::Print => {
            config::print(&loaded?, json, &mut out)?;
            Ok(EXIT_OK)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sets_on_both_sides_of_the_command_count() {
        let line = "runherd --set a=1 worker --queue q --set=b=2 --set c=3 -- echo --set d=4";
        assert_eq!(sets(line.split(' ').map(str::to_owned)), ["a=1", "b=2", "c=3"]);
    }
}
