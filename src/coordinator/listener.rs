//! Wakes between processes: one connection that listens for what clients and other coordinators notify.
//!
//! A notification only shortens a wait. While the connection is down nothing is lost: the cycle polls.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use runherd_actors::runtime::RuntimeHandle;
use slog::{debug, warn};
use tokio_postgres::{AsyncMessage, NoTls};

use super::Shared;
use crate::telemetry::{error_chain, field};

/// Pauses between two attempts to listen.
const RETRY: Duration = Duration::from_secs(5);

/// Listens until it is aborted.
pub(super) async fn listen(shared: Arc<Shared>, handle: RuntimeHandle) {
    loop {
        let error = listen_once(&shared, &handle).await;
        warn!(shared.log, "listening ended, polling goes on"; field::ERROR => error,
            field::RETRY_IN_MS => u64::try_from(RETRY.as_millis()).unwrap_or(u64::MAX));
        tokio::time::sleep(RETRY).await;
    }
}

/// Listens on one connection until that ends; answers why.
async fn listen_once(shared: &Shared, handle: &RuntimeHandle) -> String {
    let mut config = match shared.config.control_connection() {
        Ok(config) => config,
        Err(error) => return error_chain(&error),
    };
    config
        .application_name("runherd listener")
        .connect_timeout(shared.config.pool.connect_timeout)
        .tcp_user_timeout(shared.config.session.tcp_user_timeout);
    let (client, mut connection) = match config.connect(NoTls).await {
        Ok(connected) => connected,
        Err(error) => return error_chain(&error),
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
                Err(error) => return error_chain(&error),
            },
            message = messages.next() => match message {
                Some(Ok(AsyncMessage::Notification(notification))) => {
                    debug!(shared.log, "notified"; field::STAGE => notification.payload());
                    handle.wake(notification.payload());
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return error_chain(&error),
                None => return "the connection was closed".to_owned(),
            },
        }
    }
}
