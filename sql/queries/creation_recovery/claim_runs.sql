-- Claims creating runs whose creation lease has expired: sealed ones, and unsealed ones that no client came back to.
-- On the control database; served by runs_creating. A run with an intent belongs to the finalizer.
-- $1 token · $2 lease ms · $3 abandon after ms · $4 limit
WITH due AS MATERIALIZED (
    SELECT r.run_id
    FROM runherd.runs r
    WHERE r.status = 'creating' AND r.creation_expires_at <= now()
        AND (r.sealed_at IS NOT NULL OR r.creation_expires_at <= now() - $3::bigint * interval '1 ms')
        AND NOT EXISTS (SELECT 1 FROM runherd.run_intents i WHERE i.run_id = r.run_id AND i.intent <> 'pause')
    ORDER BY r.creation_expires_at
    LIMIT $4::bigint
    FOR UPDATE OF r SKIP LOCKED
)
UPDATE runherd.runs r
SET creation_token = $1::uuid, creation_expires_at = now() + $2::bigint * interval '1 ms'
FROM due
WHERE r.run_id = due.run_id
RETURNING r.run_id, r.sealed_at IS NOT NULL AS sealed, r.queue, r.policy
