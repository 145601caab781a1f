//! Wakes between processes: one connection that listens for what clients and other coordinators notify.
//!
//! A notification only shortens a wait. While the connection is down nothing is lost: the cycle polls.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use runherd_actors::runtime::RuntimeHandle;
use runherd_actors::runtime::backoff::worth_a_line;
use slog::{debug, warn};
use tokio_postgres::{AsyncMessage, NoTls};

use super::Shared;
use crate::telemetry::{error_chain, field, millis};

/// Pauses between two attempts to listen.
const RETRY: Duration = Duration::from_secs(5);

/// Listens until it is aborted.
pub(super) async fn listen(shared: Arc<Shared>, handle: RuntimeHandle) {
    let mut in_row = 0;
    loop {
        let (error, listened) = listen_once(&shared, &handle).await;
        in_row = if listened { 1 } else { in_row + 1 };
        if worth_a_line(in_row) {
            warn!(shared.log, "listening ended, polling goes on"; field::ERROR => error, field::IN_ROW => in_row,
                field::RETRY_IN_MS => millis(RETRY));
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Listens on one connection until that ends; answers why, and whether it had listened at all.
async fn listen_once(shared: &Shared, handle: &RuntimeHandle) -> (String, bool) {
    let mut config = match shared.config.control_connection() {
        Ok(config) => config,
        Err(error) => return (error_chain(&error), false),
    };
    config
        .application_name("runherd listener")
        .connect_timeout(shared.config.pool.connect_timeout)
        .tcp_user_timeout(shared.config.session.tcp_user_timeout);
    let (client, mut connection) = match config.connect(NoTls).await {
        Ok(connected) => connected,
        Err(error) => return (error_chain(&error), false),
    };
    let mut messages = stream::poll_fn(move |cx| connection.poll_message(cx));
    // The connection must be polled while the statement runs.
    let listening = client.batch_execute("LISTEN runherd");
    tokio::pin!(listening);
    let mut subscribed = false;
    loop {
        tokio::select! {
            result = &mut listening, if !subscribed => match result {
                Ok(()) => subscribed = true,
                Err(error) => return (error_chain(&error), subscribed),
            },
            message = messages.next() => match message {
                Some(Ok(AsyncMessage::Notification(notification))) => {
                    debug!(shared.log, "notified"; field::STAGE => notification.payload());
                    handle.wake(notification.payload());
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return (error_chain(&error), subscribed),
                None => return ("the connection was closed".to_owned(), subscribed),
            },
        }
    }
}
