-- Locks a sealed run that is being created, and says whether every placement of it is recorded as seeded.
-- On the control database; the first statement of the transaction that opens the run.
-- $1 run id · $2 token
SELECT NOT EXISTS (SELECT 1 FROM runherd.run_placements p WHERE p.run_id = r.run_id AND p.seeded_at IS NULL) AS all_seeded
FROM runherd.runs r
WHERE r.run_id = $1::uuid AND r.creation_token = $2::uuid AND r.status = 'creating' AND r.sealed_at IS NOT NULL
FOR UPDATE
