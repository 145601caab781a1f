-- pending → running, with the run-started event. Run in a transaction of its own, between claim and hand-out: turning the
-- shared lock of a claim into an exclusive one would deadlock two dispatchers. No row: somebody else started it, or it ended.
-- On the control database; served by the primary key.
-- $1 run id
WITH started AS (
    UPDATE runherd.runs r SET status = 'running', started_at = now()
    WHERE r.run_id = $1::uuid AND r.status = 'pending'
    RETURNING r.run_id, r.name
)
SELECT runherd.emit_run_event(s.run_id, 'started', 2, jsonb_build_object('name', s.name))::text AS emitted FROM started s
