-- Claims runs that are due for a look, or have an intent. The claim itself moves look_after to the end of the lease: a signal
-- that arrives meanwhile moves it down again and is not lost, and a finalizer that dies is followed by another.
-- On the control database; served by run_finalizations_look_after; run_intents is small.
-- $1 token · $2 lease ms · $3 limit
WITH candidates AS MATERIALIZED (
    (SELECT f.run_id FROM runherd.run_finalizations f
     WHERE f.look_after <= now() ORDER BY f.look_after LIMIT $3::bigint * 2)
    UNION
    (SELECT i.run_id FROM runherd.run_intents i ORDER BY i.requested_at LIMIT $3::bigint * 2)
), due AS MATERIALIZED (
    SELECT f.run_id
    FROM candidates c JOIN runherd.run_finalizations f ON f.run_id = c.run_id
    WHERE f.expires_at <= now()
    ORDER BY f.look_after
    LIMIT $3::bigint
    FOR UPDATE OF f SKIP LOCKED
)
UPDATE runherd.run_finalizations f
SET token = $1::uuid, expires_at = now() + $2::bigint * interval '1 ms', look_after = now() + $2::bigint * interval '1 ms'
FROM due
WHERE f.run_id = due.run_id
RETURNING f.run_id
