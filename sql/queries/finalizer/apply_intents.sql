-- Applies the intents of a run, the first stop that was asked for and any pause, and deletes them in the same statement.
-- A run that is stopping or has ended keeps its status. The run is locked before the intents are taken.
-- On the control database; served by the primary keys.
-- $1 run id
WITH run AS MATERIALIZED (
    SELECT r.run_id, r.status FROM runherd.runs r WHERE r.run_id = $1::uuid FOR UPDATE
), taken AS (
    DELETE FROM runherd.run_intents i USING run WHERE i.run_id = run.run_id
    RETURNING i.intent, i.requested_at, COALESCE(i.reason, CASE i.intent WHEN 'cancel' THEN 'cancelled' ELSE 'stopped' END
        || ' by ' || i.requested_by) AS reason
), asked AS MATERIALIZED (
    SELECT (array_agg(t.intent ORDER BY t.requested_at) FILTER (WHERE t.intent <> 'pause'))[1] AS stop,
        (array_agg(t.reason ORDER BY t.requested_at) FILTER (WHERE t.intent <> 'pause'))[1] AS reason,
        COALESCE(bool_or(t.intent = 'pause'), false) AS pause
    FROM taken t
)
UPDATE runherd.runs r
SET status = CASE a.stop WHEN 'cancel' THEN 'cancelling' WHEN 'fail' THEN 'failing' ELSE r.status END,
    paused = r.paused OR a.pause, reason = COALESCE(a.reason, r.reason)
FROM run, asked a
WHERE r.run_id = run.run_id AND run.status IN ('creating', 'pending', 'running') AND (a.stop IS NOT NULL OR a.pause)
RETURNING r.status, r.paused
