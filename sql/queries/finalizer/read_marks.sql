-- The drained marks that a placement shows for a run.
-- On the placement; served by the primary key.
-- $1 run id
SELECT count(*) FILTER (WHERE p.drained_at IS NOT NULL) AS shards,
    COALESCE(sum(p.low_chunk_no) FILTER (WHERE p.drained_at IS NOT NULL), 0)::bigint AS chunks
FROM runherd.shard_positions p
WHERE p.run_id = $1::uuid
