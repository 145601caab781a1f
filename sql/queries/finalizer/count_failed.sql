-- How many chunks of a run failed on this placement, counted up to a limit.
-- On the placement; served by chunks_failed.
-- $1 run id · $2 limit
SELECT count(*) AS failed
FROM (SELECT 1 FROM runherd.chunks c WHERE c.run_id = $1::uuid AND c.failed_at IS NOT NULL LIMIT $2::bigint) f
