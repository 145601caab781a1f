-- Shards of a run that are handed out and not marked drained.
-- On the control database; served by dispatch_cursors_undrained.
-- $1 run id · $2 limit
SELECT c.run_shard, c.placement_id, c.chunk_count
FROM runherd.dispatch_cursors c
WHERE c.run_id = $1::uuid AND c.status = 'exhausted'
ORDER BY c.run_shard
LIMIT $2::bigint
