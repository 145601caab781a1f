-- A placement's guard is not open under a live run: the control database lost an intent that the guard remembers.
-- On the control database; served by the primary keys.
-- $1 run id · $2 outcome that the guard records
INSERT INTO runherd.run_intents (run_id, intent, requested_by, reason)
SELECT r.run_id, CASE WHEN $2::text = 'failed' THEN 'fail' ELSE 'cancel' END, 'run_guard',
    'a placement holds a closed guard for this run'
FROM runherd.runs r
WHERE r.run_id = $1::uuid AND r.status IN ('creating', 'pending', 'running')
ON CONFLICT DO NOTHING
