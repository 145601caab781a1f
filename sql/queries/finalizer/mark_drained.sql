-- Marks a shard drained: handed out to its end, every chunk finished and counted, nothing active. The mark is written here
-- first and copied to the cursor afterwards: a failover keeps a prefix of the log, so a mark proves the work before it.
-- On the placement; served by the primary keys.
-- $1 run id · $2 shard · $3 chunks that it must hold
UPDATE runherd.shard_positions p
SET drained_at = COALESCE(p.drained_at, now())
WHERE p.run_id = $1::uuid AND p.run_shard = $2::int AND p.chunk_count = $3::bigint
    AND p.next_chunk_no = p.chunk_count AND p.low_chunk_no = p.chunk_count
    AND NOT EXISTS (SELECT 1 FROM runherd.active_chunks a WHERE a.run_shard = p.run_shard AND a.run_id = p.run_id)
RETURNING p.succeeded, p.failed, p.cancelled, p.lost
