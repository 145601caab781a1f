-- Gives the creation lease back, so that the next pass of any coordinator may go on after a delay.
-- On the control database; served by the primary key.
-- $1 run id · $2 token · $3 delay ms
UPDATE runherd.runs r
SET creation_expires_at = now() + $3::bigint * interval '1 ms'
WHERE r.run_id = $1::uuid AND r.creation_token = $2::uuid
