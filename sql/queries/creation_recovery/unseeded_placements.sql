-- The placements of a run that are not recorded as seeded, or have to be seeded again.
-- On the control database; served by the primary key.
-- $1 run id
SELECT p.placement_id, p.expected_chunks, p.reseed_at IS NOT NULL AS reseed
FROM runherd.run_placements p
WHERE p.run_id = $1::uuid AND (p.seeded_at IS NULL OR p.reseed_at IS NOT NULL)
ORDER BY p.placement_id
