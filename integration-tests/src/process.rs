//! `runherd`, or any program, as a child process whose output goes to the test's log folder, and the signals that tests
//! send it.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::wait::until;
use crate::world::World;
use crate::{logs, wait};

/// The variable that says where a coordinator's control socket is. All tests share the usual place: there is none unless a test
/// asks for one.
pub const CONTROL_SOCKET: &str = "RUNHERD__RUNTIME__CONTROL_SOCKET";

/// What to run. [`Launch::start`] runs it.
#[derive(Debug)]
pub struct Launch {
    command: Command,
    name: String,
    logs: PathBuf,
}

impl Launch {
    /// One argument.
    #[must_use]
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    /// More arguments.
    #[must_use]
    pub fn args(mut self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.command.args(arguments);
        self
    }

    /// A variable of its environment, which is otherwise the test's.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Starts it.
    ///
    /// # Panics
    /// If the program cannot be run.
    #[must_use = "dropping it kills the process"]
    pub fn start(mut self) -> Process {
        // A name that was used before in this test gets a number: the logs of both stay.
        let mut name = self.name.clone();
        let mut number = 1;
        while self.logs.join(format!("{name}.err")).exists() {
            number += 1;
            name = format!("{}.{number}", self.name);
        }
        let log = |kind: &str| self.logs.join(format!("{name}.{kind}"));
        let (out, err) = (log("out"), log("err"));
        let open = |path: &Path| File::create(path).unwrap_or_else(|e| panic!("creating {}: {e}", path.display()));
        self.command.stdin(Stdio::null()).stdout(open(&out)).stderr(open(&err));
        let child = self.command.spawn().unwrap_or_else(|e| panic!("starting {:?}: {e}", self.command));
        Process { child, name, out, err }
    }
}

/// A running child process. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
    out: PathBuf,
    err: PathBuf,
}

/// A place in a process's output: what [`Process::wait_for_line_after`] looks behind.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mark {
    out: usize,
    err: usize,
}

/// The `runherd` program: what `RUNHERD_BIN` names, or else the one built beside the tests.
///
/// # Panics
/// If there is none, with what to do.
#[must_use]
pub fn runherd_binary() -> PathBuf {
    if let Some(path) = std::env::var_os("RUNHERD_BIN").filter(|path| !path.is_empty()) {
        return path.into();
    }
    built("runherd", "`cargo build --workspace`")
}

/// The program of the example `overdue_runs`, built beside the tests.
///
/// # Panics
/// If there is none, with what to do.
#[must_use]
pub fn overdue_runs_binary() -> PathBuf {
    built("overdue_runs", "`cargo build --manifest-path examples/overdue_runs/Cargo.toml --target-dir target`")
}

fn built(name: &str, command: &str) -> PathBuf {
    let executable = std::env::current_exe().expect("the path of the test's executable");
    // target/<profile>/deps/<test> → target/<profile>/<name>
    let binary = executable.ancestors().nth(2).expect("a test is in target/<profile>/deps").join(name);
    assert!(binary.is_file(), "there is no {}: build it with {command} first (`make test` does)", binary.display());
    binary
}

impl Process {
    /// `runherd`, to be started with a name that its logs bear.
    #[must_use]
    pub fn runherd(world: &World, name: &str) -> Launch {
        Self::program(world, name, runherd_binary()).env(CONTROL_SOCKET, "none")
    }

    /// Any program.
    #[must_use]
    pub fn program(world: &World, name: &str, program: impl AsRef<OsStr>) -> Launch {
        Launch { command: Command::new(program), name: name.to_owned(), logs: world.logs().to_owned() }
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal; one that comes too late is lost, as everywhere.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn signal(&mut self, signal: Signal) {
        // As long as nobody waited for it, its id is not given to another process.
        if self.exit_status().is_none() {
            let pid = Pid::from_child(&self.child);
            kill_process(pid, signal).unwrap_or_else(|e| panic!("{}: sending {signal:?}: {e}", self.name));
        }
    }

    /// SIGKILL; returns when it is gone.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn kill(&mut self) -> ExitStatus {
        self.child.kill().unwrap_or_else(|e| panic!("{}: killing it: {e}", self.name));
        self.child.wait().unwrap_or_else(|e| panic!("{}: waiting for it: {e}", self.name))
    }

    /// SIGTERM: it is to drain and exit. [`Process::wait`] waits for that.
    pub fn term(&mut self) {
        self.signal(Signal::TERM);
    }

    /// SIGSTOP: it freezes where it is.
    pub fn stop(&mut self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT, after [`Process::stop`].
    pub fn cont(&mut self) {
        self.signal(Signal::CONT);
    }

    /// How it ended, `None` while it runs.
    ///
    /// # Panics
    /// If the system does not tell.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap_or_else(|e| panic!("{}: asking for its status: {e}", self.name))
    }

    /// Waits until it ends by itself.
    ///
    /// # Panics
    /// When the limit is over, with the end of its output.
    pub async fn wait(&mut self, limit: Duration) -> ExitStatus {
        let end = tokio::time::Instant::now() + limit;
        loop {
            if let Some(status) = self.exit_status() {
                return status;
            }
            let still_running = tokio::time::Instant::now() < end;
            assert!(still_running, "{} still runs after {limit:?}\n{}", self.name, self.last_lines());
            tokio::time::sleep(wait::POLL_INTERVAL).await;
        }
    }

    /// Waits for a line of its output, standard or error, that contains this text, from its start on.
    ///
    /// # Panics
    /// When the limit is over, or it ended without printing such a line.
    pub async fn wait_for_line(&mut self, text: &str, limit: Duration) -> String {
        self.wait_for_line_after(Mark::default(), text, limit).await
    }

    /// The same, for lines after a mark.
    ///
    /// # Panics
    /// When the limit is over, or it ended without printing such a line.
    pub async fn wait_for_line_after(&mut self, mark: Mark, text: &str, limit: Duration) -> String {
        let what = format!("a line of {} with {text:?}", self.name);
        until(what, limit, async || {
            let ended = self.exit_status();
            let found = find_line(&self.out, mark.out, text).or_else(|| find_line(&self.err, mark.err, text));
            if let (None, Some(status)) = (&found, ended) {
                panic!("{} ended ({status}) without a line with {text:?}\n{}", self.name, self.last_lines());
            }
            found
        })
        .await
    }

    /// The end of its output as it is now.
    #[must_use]
    pub fn mark(&self) -> Mark {
        let length = |log: &Path| std::fs::metadata(log).map_or(0, |data| usize::try_from(data.len()).unwrap_or(0));
        Mark { out: length(&self.out), err: length(&self.err) }
    }

    /// All it wrote to standard output so far.
    #[must_use]
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.out).unwrap_or_default()).into_owned()
    }

    /// All it wrote to standard error so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.err).unwrap_or_default()).into_owned()
    }

    fn last_lines(&self) -> String {
        format!(
            "{}:\n{}\n{}:\n{}",
            self.out.display(),
            logs::tail(&self.out, 20),
            self.err.display(),
            logs::tail(&self.err, 20)
        )
    }
}

/// The first complete line with the text, at or after an offset.
fn find_line(log: &Path, offset: usize, text: &str) -> Option<String> {
    let bytes = std::fs::read(log).ok()?;
    let new = String::from_utf8_lossy(bytes.get(offset..)?).into_owned();
    let mut complete = new.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    complete.find(|line| line.contains(text)).map(|line| line.trim_end().to_owned())
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
