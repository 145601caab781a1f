//! The control socket's server: the operator's hand on a running coordinator. The protocol is `control.rs`.
//!
//! The socket is its owner's alone: the folder has no rights for others, or is refused; the socket neither. What a dead process
//! left is replaced, a living one's is not touched, and two that start at once cannot take it from each other. At the end it is
//! removed, unless it is another's by then. Lines and connections are bounded.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use runherd_actors::runtime::stage::selects;
use runherd_actors::runtime::{RuntimeHandle, UnknownStage};
use rustix::fs::{FlockOperation, flock};
use slog::{Logger, debug, info, warn};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

use super::health::{Health, lacks};
use crate::config::{Config, ConfigError, Fault};
use crate::control::{Answer, CoordinatorStatus, Place, REQUEST_BYTES, Request, SOCKET_PATH_BYTES};
use crate::telemetry::field;

/// The most connections at once; more wait.
const CONNECTIONS: usize = 16;
/// How long a connection may stay silent, or leave an answer unread.
const IDLE: Duration = Duration::from_secs(30);
/// After a connection could not be accepted: the process has no file descriptors left.
const RETRY: Duration = Duration::from_secs(1);

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("the path has {0} bytes; a Unix socket's has at most {SOCKET_PATH_BYTES}")]
    TooLong(usize),
    #[error("its folder {} belongs to user {owner}; it must be this process's own", folder.display())]
    Owner { folder: PathBuf, owner: u32 },
    #[error("its folder {0} has mode {mode:04o}: others could reach the socket; chmod 0700 {0}, or take another folder", folder.display())]
    TooWide { folder: PathBuf, mode: u32 },
    #[error("something that is not a socket stands there")]
    NoSocket,
    #[error("another process listens there; each coordinator needs a path of its own")]
    Taken,
    #[error("{doing}: {error}")]
    Io { doing: String, error: io::Error },
}

fn doing(what: impl Into<String>) -> impl FnOnce(io::Error) -> Refusal {
    |error| Refusal::Io { doing: what.into(), error }
}

/// A socket that is listened on. Dropping it removes it.
#[derive(Debug)]
pub(super) struct Socket {
    listener: UnixListener,
    file: SocketFile,
}

/// The socket in the file system, told from one that another process put in its place.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|identity| identity == self.identity) {
            // What stays is replaced by the next coordinator.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|data| (data.dev(), data.ino()))
}

impl Socket {
    /// Listens where the configuration says, or at the usual place. What stands in the way there is logged and no more: the
    /// coordinator runs without a socket.
    ///
    /// # Errors
    /// The configuration says where, and it cannot be.
    pub(super) async fn open(config: &Config, log: &Logger) -> Result<Option<Self>, ConfigError> {
        let (path, is_set) = match Place::of(config) {
            Place::Set(path) => (path, true),
            Place::Usual(path) => (path, false),
            Place::Off => return Ok(None),
            Place::Nowhere => {
                info!(log, "no control socket"; field::REASON => "XDG_RUNTIME_DIR is not set; set runtime.control_socket");
                return Ok(None);
            }
        };
        match Self::bind(&path).await {
            Ok(socket) => {
                info!(log, "control socket listens"; "path" => path.display().to_string());
                Ok(Some(socket))
            }
            Err(refusal) if is_set => Err(ConfigError::of(Fault::Unusable {
                key: "runtime.control_socket".to_owned(),
                value: path.display().to_string(),
                why: refusal.to_string(),
            })),
            Err(refusal) => {
                warn!(log, "no control socket"; "path" => path.display().to_string(),
                    field::REASON => format!("{refusal}; set runtime.control_socket"));
                Ok(None)
            }
        }
    }

    async fn bind(path: &Path) -> Result<Self, Refusal> {
        let length = path.as_os_str().len();
        if length > SOCKET_PATH_BYTES {
            return Err(Refusal::TooLong(length));
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let lock = own_folder(folder)?;
        // Held until this returns: whoever starts at the same time looks when the socket is there.
        flock(&lock, FlockOperation::LockExclusive)
            .map_err(|error| doing(format!("locking {}", folder.display()))(error.into()))?;
        remove_stale(path).await?;
        let listener = UnixListener::bind(path).map_err(doing("listening"))?;
        let file = SocketFile { path: path.to_owned(), identity: identity(path).map_err(doing("looking at it"))? };
        fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(doing("setting its mode"))?;
        Ok(Self { listener, file })
    }

    /// Answers until it is aborted.
    pub(super) async fn serve(self, health: Health, log: Logger) {
        let Self { listener, file: _file } = self;
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        // It is never closed.
        while let Ok(place) = Arc::clone(&places).acquire_owned().await {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let (health, log) = (health.clone(), log.clone());
                    tokio::spawn(async move {
                        if let Err(error) = converse(stream, &health, &log).await {
                            debug!(log, "a control connection ended"; field::ERROR => %error);
                        }
                        drop(place);
                    });
                }
                Err(error) => {
                    warn!(log, "the control socket cannot accept a connection"; field::ERROR => %error);
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }
}

/// The folder, made if it is missing, if it is this user's alone.
fn own_folder(folder: &Path) -> Result<File, Refusal> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(doing(format!("making the folder {}", folder.display())))?;
    let opened = File::open(folder).map_err(doing(format!("opening the folder {}", folder.display())))?;
    let data = opened.metadata().map_err(doing(format!("looking at the folder {}", folder.display())))?;
    if data.uid() != rustix::process::geteuid().as_raw() {
        return Err(Refusal::Owner { folder: folder.to_owned(), owner: data.uid() });
    }
    match data.mode() & 0o7777 {
        mode if mode & 0o077 != 0 => Err(Refusal::TooWide { folder: folder.to_owned(), mode }),
        _ => Ok(opened),
    }
}

/// Removes what a dead process left. Nobody listens on that, so it refuses connections.
async fn remove_stale(path: &Path) -> Result<(), Refusal> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(doing("looking at it")(error)),
        Ok(data) if !data.file_type().is_socket() => return Err(Refusal::NoSocket),
        Ok(_) => {}
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(doing("removing what a dead process left"))
        }
        // A full queue of connections is a living process's too.
        _ => Err(Refusal::Taken),
    }
}

/// Answers one line after the other.
async fn converse(stream: UnixStream, health: &Health, log: &Logger) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    loop {
        let mut line = Vec::new();
        let mut bounded = (&mut reader).take(REQUEST_BYTES);
        tokio::time::timeout(IDLE, bounded.read_until(b'\n', &mut line)).await??;
        if line.is_empty() {
            return Ok(());
        }
        let too_long = line.last() != Some(&b'\n') && line.len() as u64 >= REQUEST_BYTES;
        let answer = if too_long {
            Answer::Refused { reason: format!("a request has at most {REQUEST_BYTES} bytes") }
        } else {
            answer(&line, health, log)
        };
        let mut text = serde_json::to_vec(&answer)?;
        text.push(b'\n');
        tokio::time::timeout(IDLE, writer.write_all(&text)).await??;
        if too_long {
            return Ok(());
        }
    }
}

fn answer(line: &[u8], health: &Health, log: &Logger) -> Answer {
    let request = match serde_json::from_slice::<Request>(line) {
        Ok(request) => request,
        Err(error) => return Answer::Refused { reason: format!("not a request: {error}") },
    };
    let Some(runtime) = health.runtime() else {
        return Answer::Refused { reason: "the coordinator still waits for its servers".to_owned() };
    };
    match request {
        Request::Status => Answer::Status(Box::new(status(runtime))),
        Request::Pause { stage } => told(runtime, "pause", stage, RuntimeHandle::pause, log),
        Request::Resume { stage } => told(runtime, "resume", stage, RuntimeHandle::resume, log),
        Request::Tick { stage } => told(runtime, "tick", stage, RuntimeHandle::tick, log),
    }
}

/// Gives an order to the stages that `selector` means, and logs it: it is an operator's doing.
fn told(
    runtime: &RuntimeHandle,
    verb: &'static str,
    selector: String,
    order: fn(&RuntimeHandle, &str) -> Result<usize, UnknownStage>,
    log: &Logger,
) -> Answer {
    let names = runtime.status().stages.into_iter().map(|stage| stage.name);
    match order(runtime, &selector) {
        Ok(_) => {
            info!(log, "an operator's order"; "order" => verb, field::STAGE => &selector);
            Answer::Done { stages: names.filter(|name| selects(&selector, name)).collect() }
        }
        Err(UnknownStage(stage)) => Answer::UnknownStage { stage, known: names.collect() },
    }
}

fn status(runtime: &RuntimeHandle) -> CoordinatorStatus {
    let runtime = runtime.status();
    CoordinatorStatus {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        not_ready: lacks(&runtime),
        runtime,
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// A folder of the test's own, with a short path, gone at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Self {
            let path = std::env::temp_dir().join(format!("runherd-{}", uuid::Uuid::new_v4().simple()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn socket(&self) -> PathBuf {
            self.0.join("own/control.sock")
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    async fn refusal(path: &Path) -> String {
        Socket::bind(path).await.expect_err("it is refused").to_string()
    }

    #[tokio::test]
    async fn the_socket_and_its_folder_are_the_owners_alone_and_it_goes_at_the_end() {
        let folder = Folder::new();
        let path = folder.socket();
        let socket = Socket::bind(&path).await.unwrap();
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        assert!(refusal(&path).await.contains("another process listens there"));
        drop(socket);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_folder_with_wider_rights_is_refused_and_left_as_it_is() {
        let folder = Folder::new();
        let path = folder.socket();
        fs::create_dir(path.parent().unwrap()).unwrap();
        for wide in [0o710, 0o704, 0o1777] {
            fs::set_permissions(path.parent().unwrap(), Permissions::from_mode(wide)).unwrap();
            let refusal = refusal(&path).await;
            assert!(refusal.contains(&format!("mode {wide:04o}")) && refusal.contains("chmod 0700"), "{refusal}");
            assert_eq!(mode(path.parent().unwrap()), wide);
        }
    }

    #[tokio::test]
    async fn what_a_dead_process_left_is_replaced_and_a_file_is_not() {
        let folder = Folder::new();
        let path = folder.socket();
        drop(own_folder(path.parent().unwrap()).unwrap());
        // Closing a listener does not remove its file: a killed process leaves the same.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        drop(Socket::bind(&path).await.unwrap());
        fs::write(&path, "precious").unwrap();
        assert!(refusal(&path).await.contains("not a socket"));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    #[tokio::test]
    async fn a_successors_socket_is_not_removed() {
        let folder = Folder::new();
        let path = folder.socket();
        let first = Socket::bind(&path).await.unwrap();
        fs::rename(&path, path.with_extension("old")).unwrap();
        let second = Socket::bind(&path).await.unwrap();
        drop(first);
        assert!(path.exists());
        drop(second);
    }

    #[tokio::test]
    async fn a_path_that_no_socket_can_have_is_refused() {
        let path = std::env::temp_dir().join("x".repeat(200));
        assert!(refusal(&path).await.contains("at most 107"));
    }

    #[tokio::test]
    async fn lines_are_bounded_and_nonsense_is_answered() {
        let (client, server) = UnixStream::pair().unwrap();
        let log = Logger::root(slog::Discard, slog::o!());
        let serving = tokio::spawn(async move { converse(server, &Health::default(), &log).await });
        let (reader, mut writer) = client.into_split();
        let mut answers = BufReader::new(reader).lines();
        for (line, word) in [("nonsense\n", "not a request"), ("{\"ask\":\"status\"}\n", "waits for its servers")] {
            writer.write_all(line.as_bytes()).await.unwrap();
            let answer = answers.next_line().await.unwrap().unwrap();
            assert!(answer.contains("refused") && answer.contains(word), "{answer}");
        }
        writer.write_all(&[b'x'; REQUEST_BYTES as usize]).await.unwrap();
        let answer = answers.next_line().await.unwrap().unwrap();
        assert!(answer.contains("at most 4096 bytes"), "{answer}");
        assert_eq!(answers.next_line().await.unwrap(), None, "and the connection is closed");
        serving.await.unwrap().unwrap();
    }
}
