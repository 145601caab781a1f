//! The `runherd` command: parse, call, exit status.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(runherd::cli::main())
}
