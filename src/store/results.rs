//! The outcomes of a run, page by page.

use runherd_actors::model::{ChunkNo, RunId, RunShard};

use super::query::{Query, query};
use super::{Database, StoreError};

const SHARDS: Query = query!("results/shards");
const PAGE: Query = query!("results/page");

/// The shards of a run that have chunks, each with its placement's name.
///
/// # Errors
/// See [`StoreError`].
pub async fn shards(control: &Database, run_id: RunId) -> Result<Vec<(RunShard, String)>, StoreError> {
    let rows = control.query(&SHARDS, &[&run_id.0]).await?;
    Ok(rows.iter().map(|row| (row.get("run_shard"), row.get("placement"))).collect())
}

/// One page of a shard's finished chunks: each chunk's number, and its line.
///
/// # Errors
/// See [`StoreError`].
pub async fn page(
    placement: &Database,
    run_id: RunId,
    run_shard: RunShard,
    after: ChunkNo,
    limit: i64,
    status: Option<&str>,
) -> Result<Vec<(ChunkNo, String)>, StoreError> {
    let rows = placement.query(&PAGE, &[&run_id.0, &run_shard, &after, &limit, &status]).await?;
    Ok(rows.iter().map(|row| (row.get("chunk_no"), row.get("line"))).collect())
}
