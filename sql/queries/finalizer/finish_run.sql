-- pending or running → succeeded or failed, with the finished event: no intent, every cursor drained. Only stored totals are
-- summed. A pending run (nothing was ever handed out) is started by the same statement. No row: not ready after all.
-- On the control database, after lock_run in its transaction; served by the primary keys.
-- $1 run id
WITH totals AS MATERIALIZED (
    SELECT count(*) AS cursors, COALESCE(bool_and(c.status = 'drained'), true) AS drained,
        COALESCE(sum(c.succeeded), 0)::bigint AS succeeded, COALESCE(sum(c.failed), 0)::bigint AS failed,
        COALESCE(sum(c.cancelled), 0)::bigint AS cancelled, COALESCE(sum(c.lost), 0)::bigint AS lost
    FROM runherd.dispatch_cursors c WHERE c.run_id = $1::uuid
), before AS MATERIALIZED (
    SELECT r.run_id, r.status, r.name FROM runherd.runs r WHERE r.run_id = $1::uuid
), finished AS (
    UPDATE runherd.runs r
    SET status = CASE WHEN t.failed + t.lost > COALESCE(r.tolerated_failures, 0) THEN 'failed' ELSE 'succeeded' END,
        reason = CASE WHEN t.failed + t.lost > COALESCE(r.tolerated_failures, 0)
            THEN (t.failed + t.lost)::text || ' chunks failed, ' || COALESCE(r.tolerated_failures, 0)::text || ' are tolerated' END,
        started_at = COALESCE(r.started_at, now()), finished_at = now(),
        succeeded = t.succeeded, failed = t.failed, cancelled = t.cancelled, lost = t.lost
    FROM totals t
    WHERE r.run_id = $1::uuid AND r.status IN ('pending', 'running') AND t.drained AND t.cursors = r.shard_count
        AND t.succeeded + t.failed + t.cancelled + t.lost = r.chunk_count
        AND NOT EXISTS (SELECT 1 FROM runherd.run_intents i WHERE i.run_id = r.run_id)
    RETURNING r.run_id, r.status, r.reason, r.succeeded, r.failed, r.cancelled, r.lost
), started AS (
    SELECT runherd.emit_run_event(f.run_id, 'started', 2, jsonb_build_object('name', b.name))::text AS emitted
    FROM finished f JOIN before b ON b.run_id = f.run_id WHERE b.status = 'pending'
), due AS (
    UPDATE runherd.run_finalizations l SET look_after = now() FROM finished f WHERE l.run_id = f.run_id
)
SELECT f.status, f.succeeded, f.failed, f.cancelled, f.lost, (SELECT count(s.emitted) FROM started s) AS started,
    runherd.emit_run_event(f.run_id, 'finished', 3, jsonb_build_object('name', b.name, 'status', f.status, 'reason', f.reason,
        'succeeded', f.succeeded, 'failed', f.failed, 'cancelled', f.cancelled, 'lost', f.lost))::text AS emitted
FROM finished f JOIN before b ON b.run_id = f.run_id
