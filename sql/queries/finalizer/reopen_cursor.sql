-- Reopens a cursor whose placement shows a lower position: a failover lost hand-outs.
-- On the control database; served by the primary keys.
-- $1 run id · $2 shard · $3 position
WITH run AS MATERIALIZED (
    SELECT r.run_id FROM runherd.runs r WHERE r.run_id = $1::uuid AND r.status IN ('pending', 'running') FOR SHARE
)
UPDATE runherd.dispatch_cursors c
SET status = 'open', next_chunk_no = $3::bigint, next_dispatch_at = now(), lease_expires_at = 'epoch'
FROM run
WHERE c.run_id = run.run_id AND c.run_shard = $2::int AND c.status <> 'open'
