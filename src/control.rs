//! The control socket's protocol, and its client: how an operator on the same machine talks to a running coordinator.
//!
//! One JSON [`Request`] a line, one JSON [`Answer`] a line, in order, for as long as the connection stays open. Who may connect
//! is a matter of the file system alone: the socket and its folder belong to the coordinator's user. Both sides bound what they
//! read. The server is `coordinator/control.rs`.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use runherd_actors::runtime::status::RuntimeStatus;
use serde::{Deserialize, Serialize};

use crate::config::Config;

/// The longest path of a Unix socket: the system keeps 108 bytes for it, and the last is zero.
pub const SOCKET_PATH_BYTES: usize = 107;
/// The longest line that a coordinator reads.
pub const REQUEST_BYTES: u64 = 4096;
/// The longest line that a client reads.
const ANSWER_BYTES: u64 = 16 << 20;
/// How long a client waits for an answer; the coordinator only reads its memory for it.
const PATIENCE: Duration = Duration::from_secs(5);
/// What stands in the configuration for no socket.
const NONE: &str = "none";

/// What a coordinator is asked, or told. A stage is named by its whole name, its family, or what is in between.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Request {
    /// What every stage does now and did last.
    Status,
    /// Tick these stages no more.
    Pause {
        /// Which.
        stage: String,
    },
    /// Tick them again, at once.
    Resume {
        /// Which.
        stage: String,
    },
    /// Tick them now, even if they are paused or backing off.
    Tick {
        /// Which.
        stage: String,
    },
}

/// What it answers.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// To [`Request::Status`].
    Status(Box<CoordinatorStatus>),
    /// It was told to the runtime.
    Done {
        /// The stages that it concerns.
        stages: Vec<String>,
    },
    /// No stage is named so.
    UnknownStage {
        /// As it was asked for.
        stage: String,
        /// The names of all stages.
        known: Vec<String>,
    },
    /// It was not understood, or cannot be answered now.
    Refused {
        /// Why.
        reason: String,
    },
}

/// A coordinator at one moment.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct CoordinatorStatus {
    /// Its program's version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// What keeps it from being ready; nothing if it is.
    pub not_ready: Vec<Lack>,
    /// Its stages.
    pub runtime: RuntimeStatus,
}

/// One thing that keeps a coordinator from being ready.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Lack {
    /// A stage, or `coordinator`, `control_thread`, `control_database`.
    pub what: String,
    /// What is the matter with it.
    pub why: String,
}

/// Where a coordinator's socket is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The configuration says where.
    Set(PathBuf),
    /// Where it is unless the configuration says otherwise.
    Usual(PathBuf),
    /// The configuration wants none.
    Off,
    /// There is no usual place: no `XDG_RUNTIME_DIR`, and the user is not root.
    Nowhere,
}

impl Place {
    /// Where `config` wants the socket.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        match &config.runtime.control_socket {
            Some(path) if path.as_os_str() == NONE => Self::Off,
            Some(path) => Self::Set(path.clone()),
            None => usual().into_iter().next().map_or(Self::Nowhere, Self::Usual),
        }
    }

    /// Where a client looks for it: all of these, in this order.
    #[must_use]
    pub fn candidates(config: &Config) -> Vec<PathBuf> {
        match Self::of(config) {
            Self::Set(path) => vec![path],
            Self::Usual(_) | Self::Nowhere => usual(),
            Self::Off => Vec::new(),
        }
    }
}

/// The usual places; root's own is also where a service's is, so that root finds that too.
fn usual() -> Vec<PathBuf> {
    let session = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let root = rustix::process::geteuid().is_root().then(|| PathBuf::from("/run"));
    session.into_iter().chain(root).map(|folder| folder.join("runherd/control.sock")).collect()
}

/// Asks the coordinator that listens at `socket`, and waits for its answer.
///
/// # Errors
/// Nobody listens there, it does not answer in time, or the answer is of another version's making.
pub fn ask(socket: &Path, request: &Request) -> io::Result<Answer> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut answer = Vec::new();
    BufReader::new(stream.take(ANSWER_BYTES)).read_until(b'\n', &mut answer)?;
    if answer.pop() != Some(b'\n') {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection ended in the middle of the answer"));
    }
    Ok(serde_json::from_slice(&answer)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_one_plain_line() {
        for (request, line) in [
            (Request::Status, r#"{"ask":"status"}"#),
            (Request::Pause { stage: "finalizer".into() }, r#"{"ask":"pause","stage":"finalizer"}"#),
            (Request::Resume { stage: "a/b".into() }, r#"{"ask":"resume","stage":"a/b"}"#),
            (Request::Tick { stage: "a\nb".into() }, r#"{"ask":"tick","stage":"a\nb"}"#),
        ] {
            assert_eq!(serde_json::to_string(&request).unwrap(), line);
            assert_eq!(serde_json::from_str::<Request>(line).unwrap(), request);
        }
        for line in ["", "status", r#"{"ask":"stop"}"#, r#"{"ask":"pause"}"#, r#"{"stage":"finalizer"}"#] {
            assert!(serde_json::from_str::<Request>(line).is_err(), "{line}");
        }
    }

    #[test]
    fn the_configuration_says_where_and_none_means_none() {
        let mut config = Config::default();
        config.runtime.control_socket = Some("none".into());
        assert_eq!((Place::of(&config), Place::candidates(&config)), (Place::Off, Vec::new()));
        config.runtime.control_socket = Some("/x/control.sock".into());
        assert_eq!(Place::candidates(&config), [Path::new("/x/control.sock")]);
    }
}
