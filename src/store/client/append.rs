//! Appends the parts of one run over one connection, several in flight, answered in order.
//!
//! A statement waits for the commit of the one before it, but not for that one's answer to travel. The first error ends the
//! appender: what was in flight behind it may or may not have arrived, and whoever goes on begins the run anew to learn that.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use deadpool_postgres::{ClientWrapper, Object};
use futures::FutureExt;
use runherd_actors::model::{ClaimToken, RunId};
use tokio_postgres::Statement;

use crate::store::query::{Query, query};
use crate::store::{Database, StoreError};

const APPEND_PART: Query = query!("client/append_part");

type Answer = Pin<Box<dyn Future<Output = Result<(), tokio_postgres::Error>> + Send>>;

/// A connection that appends parts; made by [`ClientStore::appender`](super::ClientStore::appender).
pub struct PartAppender {
    database: String,
    client: Arc<ClientWrapper>,
    statement: Statement,
    run_id: RunId,
    token: ClaimToken,
    lease_ms: i64,
    in_flight: VecDeque<Answer>,
}

impl PartAppender {
    /// The connection leaves the pool: one that has statements in flight must not be lent to anybody else.
    pub(super) async fn open(
        database: &Database,
        run_id: RunId,
        token: ClaimToken,
        lease_ms: i64,
    ) -> Result<Self, StoreError> {
        let client = Object::take(database.client(APPEND_PART.name).await?);
        let statement = client
            .prepare(APPEND_PART.text)
            .await
            .map_err(|error| StoreError::from_driver(database.name(), APPEND_PART.name, error))?;
        let client = Arc::new(client);
        let database = database.name().to_owned();
        Ok(Self { database, client, statement, run_id, token, lease_ms, in_flight: VecDeque::new() })
    }

    /// Parts that were sent and not answered.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Puts a part on the wire. Send them in the order of their numbers.
    pub fn send(&mut self, part_no: u32, chunks: u32, body: Arc<str>) {
        let (client, statement) = (Arc::clone(&self.client), self.statement.clone());
        let (run_id, token, lease_ms) = (self.run_id.0, self.token.0, self.lease_ms);
        let part_no = i32::try_from(part_no).unwrap_or(i32::MAX);
        let chunks = i32::try_from(chunks).unwrap_or(i32::MAX);
        let mut answer: Answer = Box::pin(async move {
            let body: &str = &body;
            client.query_one(&statement, &[&run_id, &token, &part_no, &chunks, &body, &lease_ms]).await.map(drop)
        });
        // The driver sends a statement when its future is first polled, so the order of sending is the order of polling.
        match answer.as_mut().now_or_never() {
            None => self.in_flight.push_back(answer),
            Some(result) => self.in_flight.push_back(Box::pin(std::future::ready(result))),
        }
    }

    /// Waits for the answer to the oldest part in flight; safe to drop and call again. Waits for ever when there is none.
    ///
    /// # Errors
    /// Refused: the token was lost (`RH410`), the run takes no more parts or holds this one with other content (`RH409`).
    /// See [`StoreError`].
    pub async fn settle(&mut self) -> Result<(), StoreError> {
        let Some(oldest) = self.in_flight.front_mut() else { return std::future::pending().await };
        let result = oldest.await;
        self.in_flight.pop_front();
        result.map_err(|error| StoreError::from_driver(&self.database, APPEND_PART.name, error))
    }
}
