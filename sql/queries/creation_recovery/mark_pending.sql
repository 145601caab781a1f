-- creating → pending, with the run-pending event. A run of no chunks is due for the finalizer at once.
-- On the control database, in the transaction that opens the run.
-- $1 run id
WITH opened AS (
    UPDATE runherd.runs r SET status = 'pending' WHERE r.run_id = $1::uuid AND r.status = 'creating'
    RETURNING r.run_id, r.name, r.queue, r.chunk_count, r.tolerated_failures
), due AS (
    UPDATE runherd.run_finalizations f
    SET look_after = CASE WHEN o.chunk_count = 0 THEN now()
        WHEN o.tolerated_failures IS NOT NULL THEN least(f.look_after, now() + interval '1 s') ELSE f.look_after END
    FROM opened o WHERE f.run_id = o.run_id
)
SELECT runherd.emit_run_event(o.run_id, 'pending', 1,
    jsonb_build_object('name', o.name, 'queue', o.queue, 'chunks', o.chunk_count))::text AS emitted
FROM opened o
