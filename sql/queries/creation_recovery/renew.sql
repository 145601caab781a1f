-- Renews the creation lease; no row means that it was lost.
-- On the control database; served by the primary key.
-- $1 run id · $2 token · $3 lease ms
UPDATE runherd.runs r
SET creation_expires_at = now() + $3::bigint * interval '1 ms'
WHERE r.run_id = $1::uuid AND r.creation_token = $2::uuid AND r.status IN ('creating', 'pending', 'running')
RETURNING r.run_id
