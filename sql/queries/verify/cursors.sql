-- I1, I2: which shards of these runs are opened, where, and with how many chunks.
-- On the control database, in one snapshot with verify/runs; served by the primary key.
-- $1 run ids
SELECT c.run_id, c.run_shard, c.placement_id, c.chunk_count, c.status = 'drained' AND c.lost = c.chunk_count AS given_up
FROM runherd.dispatch_cursors c
WHERE c.run_id = ANY ($1::uuid[])
ORDER BY c.run_id, c.run_shard
