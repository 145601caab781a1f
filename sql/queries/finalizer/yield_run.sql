-- Gives the finalizer's lease back and says when to look again; a signal that came meanwhile stands.
-- On the control database; served by the primary key.
-- $1 run id · $2 token · $3 delay ms
UPDATE runherd.run_finalizations f
SET look_after = CASE WHEN f.look_after = f.expires_at THEN now() + $3::bigint * interval '1 ms'
        ELSE least(f.look_after, now() + $3::bigint * interval '1 ms') END,
    expires_at = 'epoch'
WHERE f.run_id = $1::uuid AND f.token = $2::uuid AND f.expires_at > 'epoch'
