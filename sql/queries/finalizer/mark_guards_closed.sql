-- Records that every guard of a terminal run is closed. Nothing is left for the finalizer to look at.
-- On the control database; served by the primary keys.
-- $1 run id
WITH marked AS (
    UPDATE runherd.runs r SET guards_closed_at = now()
    WHERE r.run_id = $1::uuid AND r.status IN ('succeeded', 'failed', 'cancelled')
    RETURNING r.run_id
)
DELETE FROM runherd.run_finalizations f USING marked m WHERE f.run_id = m.run_id
