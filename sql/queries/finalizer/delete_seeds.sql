-- Deletes seeds of a terminal run, a bounded number of parts at a time.
-- On the control database; served by the primary key.
-- $1 run id · $2 limit
DELETE FROM runherd.run_seeds s
WHERE s.run_id = $1::uuid
    AND s.part_no IN (SELECT p.part_no FROM runherd.run_seeds p WHERE p.run_id = $1::uuid ORDER BY p.part_no LIMIT $2::bigint)
    AND EXISTS (SELECT 1 FROM runherd.runs r WHERE r.run_id = $1::uuid AND r.status IN ('succeeded', 'failed', 'cancelled'))
