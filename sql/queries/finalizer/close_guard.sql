-- Closes a placement to a run that has ended; the row stays as a tombstone, so that a zombie finds it closed.
-- On the placement; served by the primary key.
-- $1 run id
INSERT INTO runherd.run_guards AS g (run_id, status, closed_at) VALUES ($1::uuid, 'closed', now())
ON CONFLICT (run_id) DO UPDATE SET status = 'closed', closed_at = now() WHERE g.status <> 'closed'
