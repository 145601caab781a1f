//! What a counted mailbox costs over a plain one: the time of a message through `ActorRef`, and through actix alone as the
//! floor, in turns in one run. `make bench` runs it; it judges nothing.

#![expect(clippy::print_stdout, reason = "it is a program")]

use std::time::{Duration, Instant};

use actix::{Actor, Context, Handler, Message, System};
use runherd_actors::runtime::mailbox::{ActorRef, Envelope};
use runherd_actors::runtime::metrics::MailboxMetrics;
use tokio::sync::oneshot;

const MESSAGES: u32 = 200_000;
const ROUNDS: usize = 9;

/// The last one carries the answer.
struct Tell(Option<oneshot::Sender<()>>);

impl Message for Tell {
    type Result = ();
}

struct Sink;

impl Actor for Sink {
    type Context = Context<Self>;
}

impl Handler<Tell> for Sink {
    type Result = ();

    fn handle(&mut self, Tell(last): Tell, _: &mut Self::Context) {
        if let Some(last) = last {
            // Whoever asked is waiting for it.
            let _ = last.send(());
        }
    }
}

impl Handler<Envelope<Tell>> for Sink {
    type Result = ();

    fn handle(&mut self, envelope: Envelope<Tell>, ctx: &mut Self::Context) {
        let (message, _handling) = envelope.open();
        Handler::<Tell>::handle(self, message, ctx);
    }
}

/// The mean time of a message, from the first one's sending to the last one's handling.
async fn timed(send: impl Fn(Tell)) -> Duration {
    let (answer, done) = oneshot::channel();
    let started = Instant::now();
    for _ in 1..MESSAGES {
        send(Tell(None));
    }
    send(Tell(Some(answer)));
    let _ = done.await;
    started.elapsed() / MESSAGES
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn main() {
    let (mut plain, mut counted) = (Vec::new(), Vec::new());
    System::new().block_on(async {
        let addr = Sink.start();
        let mailbox = ActorRef::new(addr.clone(), MailboxMetrics::new("sink", MESSAGES as usize + 1));
        for _ in 0..ROUNDS {
            plain.push(timed(|message| addr.do_send(message)).await);
            counted.push(timed(|message| drop(mailbox.tell(message))).await);
        }
    });
    let (plain, counted) = (median(plain), median(counted));
    println!("a message through actix alone    {plain:?} (the floor)");
    println!("a message through a mailbox      {counted:?}");
    println!("what counting and bounding cost  {:?}", counted.saturating_sub(plain));
}
