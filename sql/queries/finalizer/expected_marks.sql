-- How many shards and chunks of a run each placement must show as drained.
-- On the control database; served by the primary key.
-- $1 run id
SELECT c.placement_id, count(*) AS shards, sum(c.chunk_count)::bigint AS chunks
FROM runherd.dispatch_cursors c
WHERE c.run_id = $1::uuid AND c.chunk_count > 0
GROUP BY c.placement_id
ORDER BY c.placement_id
