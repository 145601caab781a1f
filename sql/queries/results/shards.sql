-- The shards of a run that have chunks, and where these are.
-- On the control database; served by the primary key.
-- $1 run id
SELECT c.run_shard, p.name AS placement
FROM runherd.dispatch_cursors c
JOIN runherd.placements p ON p.placement_id = c.placement_id
WHERE c.run_id = $1::uuid AND c.chunk_count > 0
ORDER BY c.run_shard
