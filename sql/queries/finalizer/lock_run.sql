-- Locks a run whose finalizer's lease is still ours; the first statement of a transaction that ends the run.
-- On the control database; served by the primary keys.
-- $1 run id · $2 token
SELECT r.status
FROM runherd.runs r
WHERE r.run_id = $1::uuid
    AND EXISTS (SELECT 1 FROM runherd.run_finalizations f WHERE f.run_id = r.run_id AND f.token = $2::uuid)
FOR UPDATE OF r
