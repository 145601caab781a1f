//! presence's adapter: which coordinators are alive.

use uuid::Uuid;

use super::query::{Query, query};
use super::{Database, StoreError};

const ANNOUNCE: Query = query!("presence/announce");
const WITHDRAW: Query = query!("presence/withdraw");

/// Says that the coordinator is alive, by the database's clock.
///
/// # Errors
/// See [`StoreError`].
pub async fn announce(control: &Database, coordinator_id: Uuid, host: &str) -> Result<(), StoreError> {
    control.query(&ANNOUNCE, &[&coordinator_id, &host, &env!("CARGO_PKG_VERSION")]).await?;
    Ok(())
}

/// Takes the coordinator off the list.
///
/// # Errors
/// See [`StoreError`].
pub async fn withdraw(control: &Database, coordinator_id: Uuid) -> Result<(), StoreError> {
    control.query(&WITHDRAW, &[&coordinator_id]).await?;
    Ok(())
}
