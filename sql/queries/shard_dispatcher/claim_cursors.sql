-- Claims due cursors of pending and running runs for one dispatcher: highest priority first, then least recently served.
-- Takes only a shared lock on the run, and skips a run that somebody holds exclusively.
-- On the control database; served by dispatch_cursors_open.
-- $1 token · $2 lease ms · $3 limit · $4 dispatchers · $5 this dispatcher · $6 placements that can be reached
WITH due AS MATERIALIZED (
    SELECT c.run_id, c.run_shard, r.status AS run_status
    FROM runherd.dispatch_cursors c
    JOIN runherd.runs r ON r.run_id = c.run_id
    WHERE c.status = 'open' AND c.next_dispatch_at <= now() AND c.lease_expires_at <= now()
        AND c.dispatch_slot % $4::int = $5::int AND c.placement_id = ANY ($6::int[])
        AND r.status IN ('pending', 'running') AND NOT r.paused
        AND NOT EXISTS (SELECT 1 FROM runherd.run_intents i WHERE i.run_id = c.run_id)
    ORDER BY c.priority DESC, c.next_dispatch_at
    LIMIT $3::bigint
    FOR SHARE OF r SKIP LOCKED
    FOR UPDATE OF c SKIP LOCKED
)
UPDATE runherd.dispatch_cursors c
SET lease_token = $1::uuid, lease_expires_at = now() + $2::bigint * interval '1 ms'
FROM due
WHERE c.run_id = due.run_id AND c.run_shard = due.run_shard
RETURNING c.run_id, c.run_shard, c.placement_id, c.chunk_count, due.run_status
