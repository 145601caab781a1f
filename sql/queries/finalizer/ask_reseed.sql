-- Says that a placement lost some of a run's chunks: creation_recovery seeds it again.
-- On the control database; served by the primary key.
-- $1 run id · $2 placement
UPDATE runherd.run_placements p
SET reseed_at = COALESCE(p.reseed_at, now())
WHERE p.run_id = $1::uuid AND p.placement_id = $2::int
