-- Copies the placement's position to the cursor (down as well as up), gives the cursor back and says when it is due again.
-- Exhausting a cursor makes the run due for the finalizer. No row: the lease was lost, and somebody else will do it.
-- On the control database; served by the primary keys.
-- $1 run id · $2 shard · $3 token · $4 position · $5 delay ms
WITH moved AS (
    UPDATE runherd.dispatch_cursors c
    SET next_chunk_no = $4::bigint, status = CASE WHEN $4::bigint >= c.chunk_count THEN 'exhausted' ELSE 'open' END,
        next_dispatch_at = now() + $5::bigint * interval '1 ms', lease_expires_at = 'epoch'
    WHERE c.run_id = $1::uuid AND c.run_shard = $2::int AND c.lease_token = $3::uuid AND c.status = 'open'
    RETURNING c.run_id, c.status
), due AS (
    UPDATE runherd.run_finalizations f SET look_after = now()
    FROM moved m WHERE f.run_id = m.run_id AND m.status = 'exhausted'
)
SELECT m.status FROM moved m
