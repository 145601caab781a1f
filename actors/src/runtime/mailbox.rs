//! An actor's address with a bound that holds, and counters that add up.
//!
//! actix's own capacity does not hold (`do_send` ignores it) and its depth cannot be asked. So every message travels in an
//! [`Envelope`] that counts itself in when it is made and out when it is opened, or as a dead letter when it is dropped
//! unopened: through panics and closed mailboxes, sent = handled + dead letters + waiting.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use actix::{Actor, Addr, Context, Handler, Message};

use super::metrics::MailboxMetrics;

/// The mailbox is full; the message comes back.
#[derive(Debug, PartialEq, Eq)]
pub struct Full<M>(pub M);

/// An actor's address. Clones share bound and counters.
pub struct ActorRef<A: Actor> {
    addr: Addr<A>,
    metrics: Arc<MailboxMetrics>,
}

impl<A: Actor> Clone for ActorRef<A> {
    fn clone(&self) -> Self {
        Self { addr: self.addr.clone(), metrics: Arc::clone(&self.metrics) }
    }
}

impl<A: Actor> fmt::Debug for ActorRef<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActorRef").field("actor", &self.metrics.name()).finish_non_exhaustive()
    }
}

impl<A: Actor<Context = Context<A>>> ActorRef<A> {
    /// An address that counts into `metrics`, which a restarted actor takes over from the one before.
    #[must_use]
    pub fn new(addr: Addr<A>, metrics: Arc<MailboxMetrics>) -> Self {
        Self { addr, metrics }
    }

    /// Sends a message, unless the mailbox is full. A message to an actor that is gone is a dead letter, not an error.
    ///
    /// # Errors
    /// [`Full`], with the message.
    pub fn tell<M>(&self, message: M) -> Result<(), Full<M>>
    where
        A: Handler<Envelope<M>>,
        M: Send + 'static,
    {
        // Counted in before the bound is looked at, so that two senders cannot both take the last place.
        let ticket = Ticket::new(&self.metrics);
        if ticket.before >= self.metrics.capacity() {
            ticket.reject();
            return Err(Full(message));
        }
        self.addr.do_send(Envelope { message, ticket: ticket.admitted() });
        Ok(())
    }

    /// Sends a message that must arrive however full the mailbox is: an order, or the news of a death.
    pub fn command<M>(&self, message: M)
    where
        A: Handler<Envelope<M>>,
        M: Send + 'static,
    {
        self.addr.do_send(Envelope { message, ticket: Ticket::new(&self.metrics).admitted() });
    }

    /// The counters.
    #[must_use]
    pub fn metrics(&self) -> &Arc<MailboxMetrics> {
        &self.metrics
    }
}

/// A message on its way, and its place in the counters.
#[derive(Debug)]
pub struct Envelope<M> {
    message: M,
    ticket: Ticket,
}

impl<M: 'static> Message for Envelope<M> {
    type Result = ();
}

impl<M> Envelope<M> {
    /// Takes the message out. The handling time ends when the second value is dropped.
    #[must_use]
    pub fn open(self) -> (M, Handling) {
        let Self { message, ticket } = self;
        (message, ticket.taken())
    }
}

#[derive(Debug)]
struct Ticket {
    /// `None` once it is accounted for.
    metrics: Option<Arc<MailboxMetrics>>,
    sent: Instant,
    /// How many waited before it.
    before: u64,
}

impl Ticket {
    fn new(metrics: &Arc<MailboxMetrics>) -> Self {
        let before = metrics.depth.fetch_add(1, Relaxed);
        Self { metrics: Some(Arc::clone(metrics)), sent: Instant::now(), before }
    }

    /// It stays in the mailbox: it counts for the greatest depth.
    fn admitted(self) -> Self {
        if let Some(metrics) = &self.metrics {
            metrics.max_depth.fetch_max(self.before + 1, Relaxed);
        }
        self
    }

    fn reject(mut self) {
        if let Some(metrics) = self.metrics.take() {
            metrics.depth.fetch_sub(1, Relaxed);
            metrics.rejected.fetch_add(1, Relaxed);
        }
    }

    fn taken(mut self) -> Handling {
        let now = Instant::now();
        let metrics = self.metrics.take();
        if let Some(metrics) = &metrics {
            metrics.depth.fetch_sub(1, Relaxed);
            metrics.wait.record(now - self.sent);
        }
        Handling { metrics, since: now }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(metrics) = self.metrics.take() {
            metrics.depth.fetch_sub(1, Relaxed);
            metrics.dead_letters.fetch_add(1, Relaxed);
        }
    }
}

/// Measures a handler until it is dropped, also by a panic.
#[derive(Debug)]
pub struct Handling {
    metrics: Option<Arc<MailboxMetrics>>,
    since: Instant,
}

impl Drop for Handling {
    fn drop(&mut self) {
        if let Some(metrics) = &self.metrics {
            metrics.handling.record(self.since.elapsed());
            metrics.handled.fetch_add(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix::System;
    use tokio::sync::oneshot;

    enum Note {
        Work,
        Tell(oneshot::Sender<()>),
        Panic,
    }

    struct Clerk;

    impl Actor for Clerk {
        type Context = Context<Self>;
    }

    impl Handler<Envelope<Note>> for Clerk {
        type Result = ();
        fn handle(&mut self, envelope: Envelope<Note>, _: &mut Self::Context) {
            let (note, _handling) = envelope.open();
            match note {
                Note::Work => {}
                Note::Tell(sender) => sender.send(()).unwrap(),
                Note::Panic => panic!("the clerk has had enough"),
            }
        }
    }

    #[test]
    fn the_bound_holds_and_commands_pass_it() {
        System::new().block_on(async {
            let clerk = ActorRef::new(Clerk.start(), MailboxMetrics::new("clerk", 2));
            let refused = (0..5).filter(|_| clerk.tell(Note::Work).is_err()).count();
            let (sender, handled) = oneshot::channel();
            clerk.command(Note::Tell(sender));
            let status = clerk.metrics().status();
            assert_eq!((refused, status.depth, status.rejected, status.max_depth), (3, 3, 3, 3));
            handled.await.unwrap();
            assert!(clerk.tell(Note::Work).is_ok());
            let (sender, handled) = oneshot::channel();
            clerk.command(Note::Tell(sender));
            handled.await.unwrap();
            // The last message's handling may still be open while its answer is read.
            let status = clerk.metrics().status();
            assert_eq!((status.depth, status.dead_letters, status.wait.count), (0, 0, 5));
        });
    }

    #[test]
    fn what_a_panic_takes_along_is_counted() {
        System::new().block_on(async {
            let clerk = ActorRef::new(Clerk.start(), MailboxMetrics::new("clerk", 9));
            clerk.command(Note::Panic);
            let (sender, handled) = oneshot::channel();
            clerk.command(Note::Tell(sender));
            handled.await.expect_err("lost with the actor");
            clerk.command(Note::Work);
            let status = clerk.metrics().status();
            assert_eq!((status.depth, status.handled, status.dead_letters), (0, 1, 2));
        });
    }
}
