-- Closes a placement to a run that is being stopped, also where nothing was seeded yet: a zombie then finds it closed.
-- On the placement; served by the primary key.
-- $1 run id · $2 outcome that is meant (cancelled or failed)
INSERT INTO runherd.run_guards AS g (run_id, status, outcome) VALUES ($1::uuid, 'cancelled', $2::text)
ON CONFLICT (run_id) DO UPDATE SET status = 'cancelled', outcome = excluded.outcome WHERE g.status = 'open'
