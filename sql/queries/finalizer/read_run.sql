-- What the finalizer needs to know of a run before it decides.
-- On the control database; served by the primary key and dispatch_cursors_undrained.
-- $1 run id
SELECT r.status, r.sealed_at IS NOT NULL AS sealed, r.tolerated_failures,
    (extract(epoch FROM r.deadline_at - now()) * 1000)::bigint AS deadline_in_ms,
    EXISTS (SELECT 1 FROM runherd.run_intents i WHERE i.run_id = r.run_id) AS has_intent,
    EXISTS (SELECT 1 FROM runherd.dispatch_cursors c WHERE c.run_id = r.run_id AND c.status = 'open') AS has_open,
    EXISTS (SELECT 1 FROM runherd.dispatch_cursors c WHERE c.run_id = r.run_id AND c.status = 'exhausted') AS has_exhausted
FROM runherd.runs r
WHERE r.run_id = $1::uuid
