-- Shards of a stopped run that still hold chunks which are not known to be finished.
-- On the placement; served by the primary key.
-- $1 run id · $2 limit
SELECT p.run_shard
FROM runherd.shard_positions p
WHERE p.run_id = $1::uuid AND p.low_chunk_no < p.chunk_count
ORDER BY p.run_shard
LIMIT $2::bigint
