//! outbox_publisher's adapter: the outbox of one database.

use std::time::Duration;

use async_trait::async_trait;
use runherd_actors::model::{ClaimToken, PlacementId};
use runherd_actors::runtime::report::StageError;
use runherd_actors::stages::outbox_publisher::{Claimed, Message, OutboxPort, Settled, Settlement};
use tokio_postgres::Row;

use super::query::{Query, query};
use super::{count, millis};
use crate::router::SharedRouter;

const CLAIM: Query = query!("outbox_publisher/claim");
const SETTLE: Query = query!("outbox_publisher/settle");

/// The outbox of one placement (the control database's holds run events too).
#[derive(Debug)]
pub struct OutboxStore {
    /// Routes.
    pub router: SharedRouter,
    /// Whose outbox.
    pub placement: PlacementId,
    /// The coordinator, written to claimed rows.
    pub claimed_by: uuid::Uuid,
    /// How long a claim lasts.
    pub lease: Duration,
    /// Attempts after which an event is parked.
    pub max_attempts: u32,
    /// The pause between two attempts of a parked event.
    pub parked_delay: Duration,
}

#[async_trait]
impl OutboxPort for OutboxStore {
    async fn unavailable(&self) -> Result<Option<String>, StageError> {
        let placements = self.router.placements().await?;
        let skipped = placements.skipped.into_iter().find(|(placement, _)| placement.id == self.placement);
        Ok(skipped.map(|(placement, reason)| format!("placement {}: {reason}", placement.name)))
    }

    async fn claim(
        &self,
        outbox_shard: i16,
        after: i64,
        limit: u32,
        token: ClaimToken,
    ) -> Result<Vec<Claimed>, StageError> {
        let (limit, lease) = (i64::from(limit), millis(self.lease));
        let database = self.router.route(self.placement)?;
        let rows = database.query(&CLAIM, &[&outbox_shard, &after, &limit, &token.0, &self.claimed_by, &lease]).await?;
        rows.iter().map(claimed).collect()
    }

    async fn settle(
        &self,
        outbox_shard: i16,
        token: ClaimToken,
        settlement: &Settlement,
    ) -> Result<Settled, StageError> {
        let failed = &settlement.failed;
        let failed_ids: Vec<i64> = failed.iter().map(|delivery| delivery.event_id).collect();
        let errors: Vec<&str> = failed.iter().map(|delivery| delivery.error.as_str()).collect();
        let delays: Vec<i64> = failed.iter().map(|delivery| millis(delivery.delay)).collect();
        let max_attempts = i32::try_from(self.max_attempts).unwrap_or(i32::MAX);
        let parked_delay = millis(self.parked_delay);
        let row = self
            .router
            .route(self.placement)?
            .query_one(
                &SETTLE,
                &[
                    &outbox_shard,
                    &token.0,
                    &settlement.confirmed,
                    &failed_ids,
                    &errors,
                    &delays,
                    &max_attempts,
                    &parked_delay,
                    &settlement.again,
                ],
            )
            .await?;
        Ok(Settled {
            published: count(&row, "published"),
            pushed_back: count(&row, "pushed_back"),
            parked: count(&row, "parked"),
        })
    }
}

fn claimed(row: &Row) -> Result<Claimed, StageError> {
    let event_id: i64 = row.get("event_id");
    let headers = serde_json::from_str(row.get("headers"))
        .map_err(|error| StageError::failed(format!("reading the headers of event {event_id}"), error))?;
    Ok(Claimed {
        message: Message {
            event_id,
            dedupe_key: row.get("dedupe_key"),
            exchange: row.get("exchange"),
            routing_key: row.get("routing_key"),
            kind: row.get("kind"),
            created_at: row.get::<_, i64>("created_at").max(0).unsigned_abs(),
            headers,
            payload: row.get::<_, String>("payload").into_bytes(),
        },
        attempts: row.get::<_, i32>("attempts").max(0).unsigned_abs(),
    })
}
