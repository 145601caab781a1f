-- Renews the finalizer's lease; no row means that it was lost.
-- On the control database; served by the primary key.
-- $1 run id · $2 token · $3 lease ms
UPDATE runherd.run_finalizations f
SET expires_at = now() + $3::bigint * interval '1 ms',
    look_after = CASE WHEN f.look_after = f.expires_at THEN now() + $3::bigint * interval '1 ms' ELSE f.look_after END
WHERE f.run_id = $1::uuid AND f.token = $2::uuid
RETURNING f.run_id
