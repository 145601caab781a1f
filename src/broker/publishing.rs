//! Publishing on one connection: batches in, outcomes out.
//!
//! Promises that every message of a batch gets exactly one outcome, that `Confirmed` is said only of what the broker
//! confirmed and did not return, and that a batch ends by its deadline whatever the broker does. Batches do not overlap:
//! when the broker closes a channel, only the batch that was in flight is blamed. Does not know what outcomes lead to.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use amiquip::{Channel, Confirm, ConnectionBlockedNotification, Publish, Return};
use crossbeam_channel::{Receiver, RecvError, select};
use runherd_actors::stages::outbox_publisher::{Message, PublishOutcome};
use slog::{debug, info, warn};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::amqp_thread::{BrokerState, Duty, End, Life};
use super::confirms::Window;
use super::counts::Counter;
use super::error::BrokerError;
use super::message;
use super::socket::{Link, Loss};
use super::topology::{self, Refusal};
use crate::telemetry::field;

/// What the async face asks for.
pub(super) enum Command {
    Publish(Batch),
    Declare { names: Vec<String>, reply: oneshot::Sender<Result<(), BrokerError>>, permit: OwnedSemaphorePermit },
}

/// One call of `publish`.
pub(super) struct Batch {
    pub(super) messages: Vec<Message>,
    /// One for each message; those refused beforehand are filled in already.
    pub(super) outcomes: Vec<Option<PublishOutcome>>,
    /// When everything must be over.
    pub(super) deadline: Instant,
    /// Set by whoever decides first: the thread that it publishes, the caller that it no longer waits.
    pub(super) taken: Arc<AtomicBool>,
    pub(super) reply: oneshot::Sender<Vec<PublishOutcome>>,
    pub(super) permit: OwnedSemaphorePermit,
}

impl Batch {
    /// Answers; whatever has no outcome yet was not sent, because of `why`.
    fn answer(self, why: &str) {
        let not_sent = || PublishOutcome::NotSent(why.to_owned());
        let outcomes = self.outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(not_sent)).collect();
        // The caller may be gone, and then nobody minds.
        let _ = self.reply.send(outcomes);
        drop(self.permit);
    }
}

/// The duty of a publisher's thread.
pub(super) struct Publishing {
    commands: Receiver<Command>,
    /// Disconnects when the owner closes.
    stop: Receiver<Infallible>,
    /// Queue names to declare on every new connection.
    remembered: BTreeSet<String>,
    window: usize,
    counter: Arc<Counter>,
}

impl Publishing {
    pub(super) fn new(
        commands: Receiver<Command>,
        stop: Receiver<Infallible>,
        window: usize,
        counter: Arc<Counter>,
    ) -> Self {
        Self { commands, stop, remembered: BTreeSet::new(), window, counter }
    }

    /// Answers a command while nothing can be done.
    fn decline(&mut self, command: Command, why: &str) {
        match command {
            Command::Publish(batch) => batch.answer(why),
            Command::Declare { names, reply, permit } => {
                self.remembered.extend(names);
                let _ = reply.send(Err(BrokerError::NotConnected(why.to_owned())));
                drop(permit);
            }
        }
    }

    fn decline_all(&mut self, why: &str) {
        while let Ok(command) = self.commands.try_recv() {
            self.decline(command, why);
        }
    }

    /// Declares everything on a fresh connection. What the broker refuses is logged; only the exchange is indispensable.
    fn declare_all(&self, link: &mut Link, life: &Life) -> Result<(), Loss> {
        let topology = &life.settings.topology;
        match topology::declare_exchange(link, topology) {
            Ok(()) => {}
            Err(Refusal::Refused(error)) => return Err(Loss::Socket(error.to_string())),
            Err(Refusal::Lost(loss)) => return Err(loss),
        }
        match topology::declare_events_queue(link, topology) {
            Ok(()) => {}
            Err(Refusal::Refused(error)) => warn!(life.log, "a queue is not as configured"; field::ERROR => %error),
            Err(Refusal::Lost(loss)) => return Err(loss),
        }
        for name in &self.remembered {
            match topology::declare_chunk_queue(link, topology, name) {
                Ok(()) => {}
                Err(Refusal::Refused(error)) => warn!(life.log, "a queue is not as configured"; field::ERROR => %error),
                Err(Refusal::Lost(loss)) => return Err(loss),
            }
        }
        Ok(())
    }

    /// Declares queues on request. All are tried; the first refusal is the answer.
    fn declare(
        &mut self,
        names: Vec<String>,
        session: &mut Session,
        life: &Life,
    ) -> (Result<(), BrokerError>, Option<Loss>) {
        let mut answer = Ok(());
        let mut lost = None;
        for name in names {
            self.remembered.insert(name.clone());
            if lost.is_some() {
                continue;
            }
            match topology::declare_chunk_queue(&mut session.link, &life.settings.topology, &name) {
                Ok(()) => {}
                Err(Refusal::Refused(error)) => answer = answer.and(Err(error)),
                Err(Refusal::Lost(loss)) => {
                    answer = answer.and(Err(BrokerError::NotConnected(loss.to_string())));
                    lost = Some(loss);
                }
            }
        }
        (answer, lost)
    }

    fn handle(&mut self, command: Command, session: &mut Session, life: &Life) -> Result<(), Loss> {
        match command {
            Command::Publish(mut batch) => {
                // Nobody waits for it any more, and nothing of it was sent: leave it so.
                if batch.taken.swap(true, Ordering::AcqRel) || batch.reply.is_closed() {
                    return Ok(());
                }
                let run = Run::new(&mut batch, self.window).go(session, life);
                let why = match &run {
                    Ok(why) => why.clone(),
                    Err(loss) => loss.to_string(),
                };
                self.counter.published(&batch.outcomes);
                batch.answer(&why);
                run.map(drop)
            }
            Command::Declare { names, reply, permit } => {
                let (answer, lost) = self.declare(names, session, life);
                let _ = reply.send(answer);
                drop(permit);
                lost.map_or(Ok(()), Err)
            }
        }
    }
}

/// What happened while nothing was in flight.
enum Idle {
    Command(Result<Command, RecvError>),
    Blocked(Result<ConnectionBlockedNotification, RecvError>),
    Confirm(Result<Confirm, RecvError>),
    Stop,
}

impl Duty for Publishing {
    fn pending(&self) -> usize {
        self.window
    }

    fn serve(&mut self, mut link: Link, life: &Life) -> End {
        let ready = self.declare_all(&mut link, life).and_then(|()| Session::open(link));
        let mut session = match ready {
            Ok(session) => session,
            Err(loss) => return End::Lost { loss, healthy: false },
        };
        info!(life.log, "connected to the broker");
        self.counter.connected();
        life.report(BrokerState::Connected);
        loop {
            let idle = select! {
                recv(self.stop) -> _ => Idle::Stop,
                recv(self.commands) -> command => Idle::Command(command),
                recv(session.link.blocked) -> notice => Idle::Blocked(notice),
                recv(session.lane.confirms) -> confirm => Idle::Confirm(confirm),
            };
            let lost = match idle {
                Idle::Command(Ok(command)) => self.handle(command, &mut session, life).err(),
                Idle::Stop | Idle::Command(Err(RecvError)) => {
                    session.close();
                    self.decline_all("the publisher is closing");
                    return End::Released;
                }
                Idle::Blocked(Ok(notice)) => {
                    session.note_blocked(notice, life);
                    None
                }
                Idle::Confirm(Ok(confirm)) => {
                    debug!(life.log, "a confirm for nothing"; field::CONFIRM => ?confirm);
                    None
                }
                Idle::Blocked(Err(RecvError)) | Idle::Confirm(Err(RecvError)) => Some(session.cause()),
            };
            if let Some(loss @ Loss::Channel { .. }) = lost {
                // No new channel on this connection: frames of a message that was cut short in the middle may be on
                // their way, and then the broker closes the connection as well (505).
                session.close();
                return End::UsedUp { loss };
            }
            if let Some(loss) = lost {
                return End::Lost { loss, healthy: session.proven };
            }
        }
    }

    fn pause(&mut self, until: Instant, why: &str) -> bool {
        loop {
            let command = select! {
                recv(self.stop) -> _ => Err(RecvError),
                recv(self.commands) -> command => command,
                default(until.saturating_duration_since(Instant::now())) => return true,
            };
            match command {
                Ok(command) => self.decline(command, why),
                Err(RecvError) => {
                    self.decline_all("the publisher is closing");
                    return false;
                }
            }
        }
    }
}

/// The channel that publishes, with its receivers.
struct Lane {
    channel: Channel,
    confirms: Receiver<Confirm>,
    returns: Receiver<Return>,
    window: Window,
}

impl Lane {
    fn open(link: &mut Link) -> Result<Self, Loss> {
        link.guarded("the opening of a channel", |connection| {
            let channel = connection.open_channel(None)?;
            let confirms = channel.listen_for_publisher_confirms()?;
            let returns = channel.listen_for_returns()?;
            channel.enable_publisher_confirms()?;
            Ok(Self { channel, confirms, returns, window: Window::new() })
        })
    }

    /// Interprets a confirm: only after all returns that came before it, which arrive on another receiver.
    fn apply(&mut self, confirm: Confirm, outcomes: &mut [Option<PublishOutcome>]) {
        for returned in self.returns.try_iter() {
            if let Some(id) = returned.properties.message_id() {
                self.window.returned(id, returned.reply_code, &returned.reply_text);
            }
        }
        let (payload, ack) = match confirm {
            Confirm::Ack(payload) => (payload, true),
            Confirm::Nack(payload) => (payload, false),
        };
        self.window.confirm(payload.delivery_tag, payload.multiple, ack, |index, outcome| {
            outcomes[index] = Some(outcome);
        });
    }
}

/// A connection that publishes.
struct Session {
    link: Link,
    lane: Lane,
    blocked: Option<String>,
    /// Whether anything was confirmed. Until then one message goes at a time: a blocked broker says so only after the
    /// first, and a whole window would be unknown.
    proven: bool,
}

impl Drop for Session {
    /// The channel's drop waits for the broker; cut first, so that it cannot.
    fn drop(&mut self) {
        self.link.cut();
    }
}

impl Session {
    fn open(mut link: Link) -> Result<Self, Loss> {
        let lane = Lane::open(&mut link)?;
        Ok(Self { link, lane, blocked: None, proven: false })
    }

    fn close(mut self) {
        self.link.farewell();
    }

    fn note_blocked(&mut self, notice: ConnectionBlockedNotification, life: &Life) {
        match notice {
            ConnectionBlockedNotification::Blocked(reason) => {
                warn!(life.log, "the broker takes no messages"; field::REASON => &reason);
                life.report(BrokerState::Blocked { reason: reason.clone() });
                self.blocked = Some(reason);
            }
            ConnectionBlockedNotification::Unblocked => {
                info!(life.log, "the broker takes messages again");
                life.report(BrokerState::Connected);
                self.blocked = None;
            }
        }
    }

    fn heed_blocked(&mut self, life: &Life) {
        while let Ok(notice) = self.link.blocked.try_recv() {
            self.note_blocked(notice, life);
        }
    }

    /// Why the lane ended: any call on it now returns the reason.
    fn cause(&mut self) -> Loss {
        match self.lane.channel.enable_publisher_confirms_nowait() {
            Err(error) => self.link.cause_of(error),
            // The connection is going, and its channel does not know yet.
            Ok(()) => self.link.cause(),
        }
    }
}

/// One batch under way.
struct Run<'a> {
    batch: &'a mut Batch,
    next: usize,
    window: usize,
    /// Later than this nothing more is sent: what is in flight keeps the rest of the time to be confirmed.
    send_until: Instant,
}

impl<'a> Run<'a> {
    fn new(batch: &'a mut Batch, window: usize) -> Self {
        let now = Instant::now();
        let send_until = now + batch.deadline.saturating_duration_since(now).mul_f64(0.75);
        Self { batch, next: 0, window, send_until }
    }

    /// Publishes until all is settled, or nothing more may be sent and nothing is in flight: then the answer says why.
    fn go(mut self, session: &mut Session, life: &Life) -> Result<String, Loss> {
        let loss = loop {
            session.heed_blocked(life);
            if let Err(loss) = self.fill(session) {
                break loss;
            }
            if session.lane.window.len() == 0 {
                return Ok(match &session.blocked {
                    Some(reason) => format!("the broker takes no messages: {reason}"),
                    None => "the broker was too slow for the rest of the batch".to_owned(),
                });
            }
            if let Err(loss) = self.await_confirm(session, life) {
                break loss;
            }
        };
        self.give_up(session, &loss);
        Err(loss)
    }

    /// Sends as much as the window takes.
    fn fill(&mut self, session: &mut Session) -> Result<(), Loss> {
        let now = Instant::now();
        if self.next == self.batch.messages.len() || session.blocked.is_some() || now >= self.send_until {
            return Ok(());
        }
        let limit = if session.proven { self.window } else { 1 };
        let guard = session.link.guard(self.batch.deadline - now, "a publish");
        while session.lane.window.len() < limit
            && let Some(message) = self.batch.messages.get(self.next)
        {
            if self.batch.outcomes[self.next].is_none() {
                if session.lane.window.contains(&message.dedupe_key) {
                    break;
                }
                if let Err(error) = publish(&session.lane.channel, message) {
                    let explained = guard.explain::<()>(Err(error));
                    drop(guard);
                    return explained.map_err(|loss| self.better_cause(session, loss));
                }
                session.lane.window.sent(self.next, &message.dedupe_key);
            }
            self.next += 1;
        }
        Ok(())
    }

    /// A publish that fails because the connection's thread ended knows no reason; the thread does.
    fn better_cause(&self, session: &mut Session, loss: Loss) -> Loss {
        match loss {
            Loss::Socket(_) if Instant::now() < self.batch.deadline => match session.link.cause() {
                cause @ Loss::Connection { .. } => cause,
                Loss::Socket(cause) => Loss::Socket(cause),
                Loss::Channel { .. } => loss,
            },
            known => known,
        }
    }

    /// Waits for one confirm, or news, and then takes all confirms there are.
    fn await_confirm(&mut self, session: &mut Session, life: &Life) -> Result<(), Loss> {
        let left = self.batch.deadline.saturating_duration_since(Instant::now());
        select! {
            recv(session.lane.confirms) -> confirm => match confirm {
                Ok(confirm) => {
                    session.proven = true;
                    session.lane.apply(confirm, &mut self.batch.outcomes);
                    self.take_confirms(session);
                    Ok(())
                }
                Err(RecvError) => Err(session.cause()),
            },
            recv(session.link.blocked) -> notice => match notice {
                Ok(notice) => {
                    session.note_blocked(notice, life);
                    Ok(())
                }
                // Confirms that came before the end are still to be read.
                Err(RecvError) => {
                    self.take_confirms(session);
                    Err(session.cause())
                }
            },
            default(left) => {
                session.link.cut();
                Err(Loss::Socket(match &session.blocked {
                    Some(reason) => format!("the broker took no messages until the deadline: {reason}"),
                    None => "the broker confirmed nothing until the deadline".to_owned(),
                }))
            }
        }
    }

    fn take_confirms(&mut self, session: &mut Session) {
        while let Ok(confirm) = session.lane.confirms.try_recv() {
            session.lane.apply(confirm, &mut self.batch.outcomes);
        }
    }

    /// Settles what is known, and says of the rest of what was sent that it is not.
    fn give_up(&mut self, session: &mut Session, loss: &Loss) {
        self.take_confirms(session);
        for index in session.lane.window.abandon() {
            self.batch.outcomes[index] = Some(match loss.blames_what_was_sent() {
                true => PublishOutcome::ClosedByBroker(loss.to_string()),
                false => PublishOutcome::Unknown(loss.to_string()),
            });
        }
    }
}

fn publish(channel: &Channel, message: &Message) -> amiquip::Result<()> {
    let mut publish =
        Publish::with_properties(&message.payload, message.routing_key.as_str(), message::properties(message));
    publish.mandatory = true;
    channel.basic_publish(message.exchange.as_str(), publish)
}
