//! The handler that runs a command for each chunk.
//!
//! The command gets the payload on standard input (the JSON, then a line end) and, up to 64 KiB, in `RUNHERD_PAYLOAD`; if the
//! payload is a JSON string, its text is in `RUNHERD_PAYLOAD_TEXT`. `RUNHERD_RUN_ID`, `RUNHERD_RUN_SHARD`, `RUNHERD_CHUNK_NO` and
//! `RUNHERD_ATTEMPT` say which chunk it is. Exit status 0 is success, 65 a failure for good, any other status or a signal a failure
//! that is tried again. Standard output becomes the outcome: as it is if it is JSON, else as a JSON string without the line end. The
//! end of standard error becomes the error's text.
//!
//! It promises that a command never outlives its chunk: it runs in a process group of its own, which is killed when the command
//! ends, when its time is over, when the lease is lost and when the worker goes. It does not promise that output which the command's
//! children write after it has ended is read.

mod group;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{Access, access};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{ChildStdin, Command};
use tokio::sync::Notify;
use tokio::time::timeout;

use self::group::Group;
use super::chunk::{Chunk, ChunkError, Handler, Outcome};

/// The exit status that says: trying again will not help. It is `EX_DATAERR` of sysexits.
pub const EXIT_FATAL: i32 = 65;
/// The longest payload in the environment: the kernel takes 128 KiB at most for one variable.
const ENVIRONMENT_MAX: usize = 64 << 10;
/// How much of the end of standard error is kept.
const ERROR_TAIL: usize = 4 << 10;
/// How long output is read after the command has ended, while children of it hold the pipe.
const LINGER: Duration = Duration::from_millis(500);

/// Bounds of every command.
#[derive(Clone, Copy, Debug)]
pub struct CommandLimits {
    /// How long a command may run; after it the attempt has failed and may be tried again. Default none.
    pub time: Option<Duration>,
    /// The most bytes on standard output; more fails the chunk for good. Default 256 KiB.
    pub outcome_bytes: usize,
    /// How long a command may take to end after SIGTERM, before SIGKILL. Default 3 s.
    pub kill_delay: Duration,
}

impl Default for CommandLimits {
    fn default() -> Self {
        Self { time: None, outcome_bytes: 256 << 10, kill_delay: Duration::from_secs(3) }
    }
}

/// Why a command cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// There is none.
    #[error("no command is given: put it after --, such as runherd worker --queue q -- ./work.sh")]
    Missing,
    /// It is not there.
    #[error("the command {0:?} was not found; {1}")]
    NotFound(OsString, &'static str),
    /// It cannot be executed.
    #[error("the command {0:?} is not executable (chmod +x?)")]
    NotExecutable(PathBuf),
}

/// Runs a command for each chunk.
#[derive(Debug)]
pub struct CommandHandler {
    name: OsString,
    program: PathBuf,
    arguments: Vec<OsString>,
    limits: CommandLimits,
}

impl CommandHandler {
    /// A handler that runs this command with these arguments.
    ///
    /// # Errors
    /// The command is not there or cannot be executed: better found now than by every chunk.
    pub fn new(command: Vec<OsString>, limits: CommandLimits) -> Result<Self, CommandError> {
        let mut words = command.into_iter();
        let name = words.next().filter(|name| !name.is_empty()).ok_or(CommandError::Missing)?;
        let program = find(&name)?;
        Ok(Self { name, program, arguments: words.collect(), limits })
    }

    fn command(&self, chunk: &Chunk) -> Command {
        let mut command = Command::new(&self.program);
        command.arg0(&self.name).args(&self.arguments).process_group(0).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.env("RUNHERD_RUN_ID", chunk.key.run_id.to_string());
        command.env("RUNHERD_RUN_SHARD", chunk.key.run_shard.to_string());
        command.env("RUNHERD_CHUNK_NO", chunk.key.chunk_no.to_string());
        command.env("RUNHERD_ATTEMPT", chunk.attempt.to_string());
        let text = serde_json::from_str::<String>(chunk.payload.get()).ok();
        let payload = Some(chunk.payload.get());
        for (name, value) in [("RUNHERD_PAYLOAD", payload), ("RUNHERD_PAYLOAD_TEXT", text.as_deref())] {
            match value.filter(|value| value.len() <= ENVIRONMENT_MAX && !value.contains('\0')) {
                Some(value) => command.env(name, value),
                // Not the one that a worker inside a worker's command would inherit.
                None => command.env_remove(name),
            };
        }
        command
    }
}

impl Handler for CommandHandler {
    async fn handle(&self, chunk: Chunk) -> Result<Outcome, ChunkError> {
        let failed =
            |doing: &str, error: io::Error| ChunkError::retryable(format!("the command could not {doing}: {error}"));
        let mut child = self.command(&chunk).spawn().map_err(|error| failed("be started", error))?;
        let mut group = Group::of(&child);
        let captured = Captured::new(self.limits.outcome_bytes);
        let mut fed = pin!(feed(child.stdin.take(), chunk.payload.get()));
        let mut read = pin!(captured.read(child.stdout.take(), child.stderr.take()));
        let (mut feeding, mut reading) = (true, true);
        let ending = {
            let mut ending = pin!(async {
                tokio::select! {
                    status = child.wait() => Ending::Exit(status),
                    () = captured.overflow.notified() => Ending::Overflow,
                    () = chunk.cancelled.cancelled() => Ending::Cancelled,
                    () = time_over(self.limits.time) => Ending::TimeOver,
                }
            });
            loop {
                tokio::select! {
                    ending = &mut ending => break ending,
                    () = &mut fed, if feeding => feeding = false,
                    () = &mut read, if reading => reading = false,
                }
            }
        };
        if let Ending::Exit(status) = ending {
            if reading && timeout(LINGER, &mut read).await.is_err() {
                group.kill();
                // What has left the group may hold the pipe for ever.
                let _ = timeout(LINGER, &mut read).await;
            }
            // Reaped a moment ago: the number cannot be in use again, except by what it left behind.
            group.end();
            let status = status.map_err(|error| failed("be waited for", error))?;
            return self.judge(status, &captured);
        }
        group.terminate();
        let ended = async {
            tokio::join!(child.wait(), async {
                if reading {
                    read.await
                }
            })
        };
        let _ = timeout(self.limits.kill_delay, ended).await;
        group.end();
        // Killed: it ends now, and leaves no zombie.
        let _ = timeout(LINGER, child.wait()).await;
        Err(self.stopped(&ending, &captured))
    }
}

impl CommandHandler {
    fn judge(&self, status: ExitStatus, captured: &Captured) -> Result<Outcome, ChunkError> {
        if captured.overflowed() {
            return Err(self.stopped(&Ending::Overflow, captured));
        }
        match status.code() {
            Some(0) => captured.outcome(),
            Some(EXIT_FATAL) => Err(ChunkError::fatal(captured.explain(&status.to_string()))),
            _ => Err(ChunkError::retryable(captured.explain(&status.to_string()))),
        }
    }

    fn stopped(&self, ending: &Ending, captured: &Captured) -> ChunkError {
        match ending {
            Ending::Overflow => ChunkError::fatal(captured.explain(&format!(
                "the command wrote more than {} bytes to standard output (see --outcome-limit-bytes)",
                self.limits.outcome_bytes
            ))),
            Ending::TimeOver => ChunkError::retryable(captured.explain(&format!(
                "the command was stopped after its time limit of {}",
                humantime::format_duration(self.limits.time.unwrap_or_default())
            ))),
            Ending::Cancelled | Ending::Exit(_) => ChunkError::retryable("the command was cancelled"),
        }
    }
}

enum Ending {
    Exit(io::Result<ExitStatus>),
    Overflow,
    Cancelled,
    TimeOver,
}

async fn time_over(limit: Option<Duration>) {
    match limit {
        Some(limit) => tokio::time::sleep(limit).await,
        None => std::future::pending().await,
    }
}

/// Writes the payload. A command need not read it: then the pipe breaks, and that is its own affair.
async fn feed(stdin: Option<ChildStdin>, payload: &str) {
    let Some(mut stdin) = stdin else { return };
    let mut text = Vec::with_capacity(payload.len() + 1);
    text.extend_from_slice(payload.as_bytes());
    text.push(b'\n');
    let _ = stdin.write_all(&text).await;
}

/// What a command writes.
struct Captured {
    limit: usize,
    /// Told when standard output is over the limit.
    overflow: Notify,
    stdout: Mutex<Vec<u8>>,
    /// The end of standard error, and whether something came before it.
    stderr: Mutex<(Vec<u8>, bool)>,
}

impl Captured {
    fn new(limit: usize) -> Self {
        Self { limit, overflow: Notify::new(), stdout: Mutex::default(), stderr: Mutex::default() }
    }

    async fn read(&self, stdout: Option<impl AsyncRead + Unpin>, stderr: Option<impl AsyncRead + Unpin>) {
        tokio::join!(each(stdout, |bytes| self.keep(bytes)), each(stderr, |bytes| self.keep_tail(bytes)));
    }

    fn keep(&self, bytes: &[u8]) {
        let mut stdout = self.stdout.lock().unwrap_or_else(PoisonError::into_inner);
        // One byte more than allowed is enough to know.
        let room = (self.limit + 1).saturating_sub(stdout.len());
        stdout.extend_from_slice(&bytes[..bytes.len().min(room)]);
        if stdout.len() > self.limit {
            self.overflow.notify_one();
        }
    }

    fn keep_tail(&self, bytes: &[u8]) {
        let mut stderr = self.stderr.lock().unwrap_or_else(PoisonError::into_inner);
        stderr.0.extend_from_slice(bytes);
        let surplus = stderr.0.len().saturating_sub(ERROR_TAIL);
        if surplus > 0 {
            stderr.0.drain(..surplus);
            stderr.1 = true;
        }
    }

    fn overflowed(&self) -> bool {
        self.stdout.lock().unwrap_or_else(PoisonError::into_inner).len() > self.limit
    }

    fn outcome(&self) -> Result<Outcome, ChunkError> {
        let stdout = self.stdout.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&stdout);
        match Outcome::from_json(text.trim()) {
            Ok(json) => Ok(json),
            Err(_) => Ok(Outcome::of(text.trim_end_matches(['\r', '\n']))?),
        }
    }

    /// What happened, and what the command said about it.
    fn explain(&self, what: &str) -> String {
        let stderr = self.stderr.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&stderr.0);
        match (text.trim(), stderr.1) {
            ("", _) => what.to_owned(),
            (said, false) => format!("{what}: {said}"),
            (said, true) => format!("{what}: …{said}"),
        }
    }
}

async fn each(stream: Option<impl AsyncRead + Unpin>, mut keep: impl FnMut(&[u8])) {
    let Some(mut stream) = stream else { return };
    let mut buffer = vec![0; 8 << 10];
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        keep(&buffer[..count]);
    }
}

/// Finds a command as a shell would: by its path if it has a slash, else along `PATH`.
fn find(name: &OsString) -> Result<PathBuf, CommandError> {
    let direct = Path::new(name);
    if direct.components().count() > 1 || name.to_string_lossy().contains('/') {
        return match (direct.is_file(), is_executable(direct)) {
            (true, true) => Ok(direct.to_owned()),
            (true, false) => Err(CommandError::NotExecutable(direct.to_owned())),
            (false, _) => Err(CommandError::NotFound(name.clone(), "there is no such file")),
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let candidates: Vec<PathBuf> = std::env::split_paths(&path).map(|folder| folder.join(name)).collect();
    let files = || candidates.iter().filter(|candidate| candidate.is_file());
    match (files().find(|file| is_executable(file)), files().next()) {
        (Some(program), _) => Ok(program.clone()),
        (None, Some(file)) => Err(CommandError::NotExecutable(file.clone())),
        (None, None) => {
            Err(CommandError::NotFound(name.clone(), "it is in no folder of PATH; write ./ before it if it is here"))
        }
    }
}

fn is_executable(path: &Path) -> bool {
    access(path, Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests;
