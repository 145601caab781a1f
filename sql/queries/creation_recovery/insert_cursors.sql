-- Inserts a cursor for every shard of a run; an empty shard is drained from the start.
-- On the control database, in the transaction that opens the run.
-- $1 run id
INSERT INTO runherd.dispatch_cursors (run_id, run_shard, placement_id, chunk_count, status, priority)
SELECT r.run_id, shard.no, COALESCE(s.placement_id, (SELECT min(p.placement_id) FROM runherd.placements p)),
    COALESCE(s.chunks, 0), CASE WHEN s.chunks > 0 THEN 'open' ELSE 'drained' END, r.priority
FROM runherd.runs r
CROSS JOIN LATERAL generate_series(0, r.shard_count - 1) AS shard(no)
LEFT JOIN (
    SELECT s.run_shard, min(s.placement_id) AS placement_id, sum(s.chunk_count)::bigint AS chunks
    FROM runherd.run_seeds s WHERE s.run_id = $1::uuid GROUP BY s.run_shard
) s ON s.run_shard = shard.no
WHERE r.run_id = $1::uuid
