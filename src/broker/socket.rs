//! One connection, and the means to cut it.
//!
//! Promises that no call into amiquip lasts longer than it is given: every one is made under a watchdog that shuts the
//! socket down, which frees all of them at once. A blocked or frozen broker would otherwise hold `basic_publish`,
//! `close` and even `drop` for ever. Knows nothing about what the connection is for.

use std::fmt;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use amiquip::{Auth, Connection, ConnectionBlockedNotification, ConnectionOptions, ConnectionTuning};
use crossbeam_channel::Receiver;

use super::settings::BrokerSettings;

/// How long a polite goodbye may take before it becomes an impolite one.
const GOODBYE: Duration = Duration::from_secs(2);

/// How a channel or a connection was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// The broker closed the channel; the connection stands.
    Channel { code: u16, text: String },
    /// The broker closed the connection.
    Connection { code: u16, text: String },
    /// The socket went away, or we cut it: nobody said why.
    Socket(String),
}

impl Loss {
    /// AMQP's reply code for an operator's or a stopping broker's close.
    const CONNECTION_FORCED: u16 = 320;

    pub(super) fn of(error: amiquip::Error) -> Self {
        match error {
            amiquip::Error::ServerClosedChannel { code, message, .. } => Self::Channel { code, text: message },
            amiquip::Error::ServerClosedConnection { code, message } => Self::Connection { code, text: message },
            // amiquip says so whenever the socket is lost between login and its answer.
            amiquip::Error::InvalidCredentials => {
                Self::Socket("the broker hung up at login: wrong user or password, or it went away".to_owned())
            }
            amiquip::Error::ConnectionTimeout => Self::Socket("the broker did not answer the login in time".to_owned()),
            other => Self::Socket(other.to_string()),
        }
    }

    /// Whether something that was sent made the broker do it. An operator's close does not count.
    pub(super) fn blames_what_was_sent(&self) -> bool {
        match self {
            Self::Channel { .. } => true,
            Self::Connection { code, .. } => *code != Self::CONNECTION_FORCED && *code != 200,
            Self::Socket(_) => false,
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Channel { code, text } => write!(f, "the broker closed the channel: {text} ({code})"),
            Self::Connection { code, text } => write!(f, "the broker closed the connection: {text} ({code})"),
            Self::Socket(text) => f.write_str(text),
        }
    }
}

/// An open connection.
pub(super) struct Link {
    connection: Option<Connection>,
    socket: Arc<TcpStream>,
    watchdog: Watchdog,
    patience: Duration,
    /// Blocked and unblocked notices; disconnected once the connection is gone.
    pub(super) blocked: Receiver<ConnectionBlockedNotification>,
}

impl Link {
    /// Connects and logs in. `pending` is how many messages may be handed over at once without waiting for the socket.
    pub(super) fn open(settings: &BrokerSettings, pending: usize, watchdog: &Watchdog) -> Result<Self, Loss> {
        let stream = connect(settings).map_err(|e| Loss::Socket(format!("cannot connect to {}: {e}", settings.url)))?;
        let prepared =
            stream.try_clone().and_then(|kill| Ok((Arc::new(kill), mio::net::TcpStream::from_stream(stream)?)));
        let (socket, stream) = prepared.map_err(|e| Loss::Socket(format!("cannot prepare the socket: {e}")))?;
        let options = ConnectionOptions::default()
            .auth(Auth::Plain {
                username: settings.url.user().to_owned(),
                password: settings.url.password().to_owned(),
            })
            .virtual_host(settings.url.vhost())
            .heartbeat(settings.heartbeat_seconds())
            .connection_timeout(Some(settings.connect_timeout));
        // A publish is a method, a header and one or more body frames.
        let tuning = ConnectionTuning::default().mem_channel_bound(pending * 4 + 64);
        let guard = watchdog.arm(&socket, settings.connect_timeout, "the login");
        let opened = Connection::insecure_open_stream(stream, options, tuning)
            .and_then(|mut connection| Ok((connection.listen_for_connection_blocked()?, connection)));
        match guard.explain(opened) {
            Ok((blocked, connection)) => Ok(Self {
                connection: Some(connection),
                socket,
                watchdog: watchdog.clone(),
                patience: settings.confirm_deadline,
                blocked,
            }),
            Err(loss) => Err(loss),
        }
    }

    /// Makes a call on the connection under the watchdog.
    pub(super) fn guarded<T>(
        &mut self,
        what: &'static str,
        call: impl FnOnce(&mut Connection) -> amiquip::Result<T>,
    ) -> Result<T, Loss> {
        let guard = self.watchdog.arm(&self.socket, self.patience, what);
        match self.connection.as_mut() {
            Some(connection) => guard.explain(call(connection)),
            None => Err(Loss::Socket("the connection is closed".to_owned())),
        }
    }

    /// Arms the watchdog for calls on a channel; it is disarmed when the guard drops.
    pub(super) fn guard(&self, limit: Duration, what: &'static str) -> Guard<'_> {
        self.watchdog.arm(&self.socket, limit, what)
    }

    /// How long the broker may take to answer.
    pub(super) fn patience(&self) -> Duration {
        self.patience
    }

    /// Cuts the connection now. Every call that waits in amiquip returns with an error.
    pub(super) fn cut(&self) {
        // It may be gone already, which is what we want.
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Why the connection ended, once it has: only its own thread knows, and tells whoever joins it.
    pub(super) fn cause(&mut self) -> Loss {
        let guard = self.watchdog.arm(&self.socket, GOODBYE, "the end of a lost connection");
        let Some(connection) = self.connection.take() else {
            return Loss::Socket("the connection is closed".to_owned());
        };
        match guard.explain(connection.close()) {
            Ok(()) => Loss::Socket("the connection ended".to_owned()),
            Err(loss) => loss,
        }
    }

    /// Turns the error of a channel that ended into the reason why.
    pub(super) fn cause_of(&mut self, error: amiquip::Error) -> Loss {
        match error {
            amiquip::Error::EventLoopDropped => self.cause(),
            other => Loss::of(other),
        }
    }

    /// Says goodbye, for at most two seconds. Channels that still exist find the connection closed.
    pub(super) fn farewell(&mut self) {
        let guard = self.watchdog.arm(&self.socket, GOODBYE, "the goodbye");
        if let Some(connection) = self.connection.take() {
            // Whatever it answers, the connection is over.
            let _ = connection.close();
        }
        drop(guard);
    }
}

impl Drop for Link {
    /// Dropping a connection waits for the broker's answer: cut first, so that it cannot.
    fn drop(&mut self) {
        self.cut();
    }
}

/// Opens the TCP connection ourselves: amiquip's own way never sets TCP_NODELAY, which costs nine tenths of the rate.
fn connect(settings: &BrokerSettings) -> io::Result<TcpStream> {
    let addresses: Vec<SocketAddr> = (settings.url.host(), settings.url.port()).to_socket_addrs()?.collect();
    let each = settings.connect_timeout / addresses.len().max(1) as u32;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, each.max(Duration::from_millis(1))) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A thread that cuts a socket when a call takes too long.
#[derive(Clone)]
pub(super) struct Watchdog {
    kennel: Arc<Kennel>,
}

#[derive(Default)]
struct Kennel {
    state: Mutex<Watch>,
    wake: Condvar,
}

#[derive(Default)]
struct Watch {
    armed: Option<(Instant, Arc<TcpStream>)>,
    /// When the thread will look next; `None` while it waits to be woken.
    looks_at: Option<Instant>,
    fired: bool,
    dismissed: bool,
}

impl Kennel {
    fn lock(&self) -> MutexGuard<'_, Watch> {
        // A panic elsewhere leaves nothing half-written here.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self) {
        let mut state = self.lock();
        while !state.dismissed {
            let due = state.armed.as_ref().map(|(due, _)| *due);
            state = match due {
                None => {
                    state.looks_at = None;
                    self.wake.wait(state).unwrap_or_else(PoisonError::into_inner)
                }
                Some(due) => {
                    let left = due.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        state.fire();
                        continue;
                    }
                    state.looks_at = Some(due);
                    self.wake.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

impl Watch {
    fn fire(&mut self) {
        if let Some((_, socket)) = self.armed.take() {
            self.fired = true;
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

impl Watchdog {
    /// Starts the thread.
    pub(super) fn start(name: &str) -> io::Result<Self> {
        let kennel = Arc::new(Kennel::default());
        let watched = kennel.clone();
        thread::Builder::new().name(format!("{name}-watchdog")).spawn(move || watched.watch())?;
        Ok(Self { kennel })
    }

    /// Cuts `socket` unless the guard is dropped within `limit`. Guards do not nest.
    fn arm(&self, socket: &Arc<TcpStream>, limit: Duration, what: &'static str) -> Guard<'_> {
        let due = Instant::now() + limit;
        let mut state = self.kennel.lock();
        state.armed = Some((due, socket.clone()));
        state.fired = false;
        // Mostly the thread still sleeps towards an older, earlier moment, and will find this one by itself.
        if state.looks_at.is_none_or(|at| at > due) {
            self.kennel.wake.notify_one();
        }
        Guard { kennel: &self.kennel, limit, what }
    }

    /// Ends the thread.
    pub(super) fn dismiss(&self) {
        self.kennel.lock().dismissed = true;
        self.kennel.wake.notify_one();
    }
}

/// Holds the watchdog's attention; dropping it calls the watchdog off.
pub(super) struct Guard<'a> {
    kennel: &'a Kennel,
    limit: Duration,
    what: &'static str,
}

impl Guard<'_> {
    /// Turns a call's result into one that says so if the watchdog ended it.
    pub(super) fn explain<T>(&self, result: amiquip::Result<T>) -> Result<T, Loss> {
        result.map_err(|error| match self.fired() {
            true => {
                Loss::Socket(format!("the broker did not answer {} within {:?}, so it was cut", self.what, self.limit))
            }
            false => Loss::of(error),
        })
    }

    fn fired(&self) -> bool {
        self.kennel.lock().fired
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.kennel.lock().armed = None;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::*;

    fn pair() -> (Arc<TcpStream>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Arc::new(near), listener.accept().unwrap().0)
    }

    #[test]
    fn the_watchdog_frees_a_call_that_waits_for_ever() {
        let watchdog = Watchdog::start("test").unwrap();
        let (near, _far) = pair();
        let guard = watchdog.arm(&near, Duration::from_millis(50), "a read");
        assert_eq!((&*near).read(&mut [0]).unwrap(), 0, "the read ends");
        assert!(guard.fired());
        drop(guard);
        watchdog.dismiss();
    }

    #[test]
    fn a_guard_dropped_in_time_cuts_nothing_and_a_shorter_one_is_seen() {
        let watchdog = Watchdog::start("test").unwrap();
        let (safe, mut far) = pair();
        drop(watchdog.arm(&safe, Duration::from_secs(60), "a call"));
        let (doomed, _other) = pair();
        let guard = watchdog.arm(&doomed, Duration::from_millis(20), "a read");
        assert_eq!((&*doomed).read(&mut [0]).unwrap(), 0);
        drop(guard);
        io::Write::write_all(&mut &*safe, b"x").unwrap();
        assert_eq!(far.read(&mut [0]).unwrap(), 1, "the first socket still works");
        watchdog.dismiss();
    }

    #[test]
    fn an_operators_close_blames_no_message() {
        let text = String::new;
        assert!(!Loss::Connection { code: 320, text: text() }.blames_what_was_sent());
        assert!(Loss::Connection { code: 541, text: text() }.blames_what_was_sent());
        assert!(Loss::Channel { code: 404, text: text() }.blames_what_was_sent());
        assert!(!Loss::Socket(text()).blames_what_was_sent());
    }
}
