-- Claims live runs of which a placement lost some part: the same kind of token as a creation.
-- On the control database; served by run_placements_reseed.
-- $1 token · $2 lease ms · $3 limit
WITH due AS MATERIALIZED (
    SELECT r.run_id
    FROM runherd.runs r
    WHERE r.run_id IN (SELECT p.run_id FROM runherd.run_placements p WHERE p.reseed_at IS NOT NULL)
        AND r.status IN ('pending', 'running') AND r.creation_expires_at <= now()
    ORDER BY r.run_id
    LIMIT $3::bigint
    FOR UPDATE OF r SKIP LOCKED
)
UPDATE runherd.runs r
SET creation_token = $1::uuid, creation_expires_at = now() + $2::bigint * interval '1 ms'
FROM due
WHERE r.run_id = due.run_id
RETURNING r.run_id, r.queue, r.policy
