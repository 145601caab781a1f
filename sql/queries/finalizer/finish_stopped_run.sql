-- cancelling → cancelled, failing → failed, with the finished event; the totals were read from the swept placements. A run
-- that never was sealed frees its idempotency key, so that a corrected submission may use it.
-- On the control database, after lock_run in its transaction; served by the primary keys.
-- $1 run id · $2 succeeded · $3 failed · $4 cancelled · $5 lost
WITH finished AS (
    UPDATE runherd.runs r
    SET status = CASE r.status WHEN 'cancelling' THEN 'cancelled' ELSE 'failed' END, finished_at = now(),
        succeeded = $2::bigint, failed = $3::bigint, cancelled = $4::bigint, lost = $5::bigint,
        idempotency_key = CASE WHEN r.sealed_at IS NOT NULL THEN r.idempotency_key END
    WHERE r.run_id = $1::uuid AND r.status IN ('cancelling', 'failing')
    RETURNING r.run_id, r.name, r.status, r.reason, r.succeeded, r.failed, r.cancelled, r.lost
), due AS (
    UPDATE runherd.run_finalizations l SET look_after = now() FROM finished f WHERE l.run_id = f.run_id
), drained AS (
    UPDATE runherd.dispatch_cursors c SET status = 'drained' FROM finished f WHERE c.run_id = f.run_id AND c.status <> 'drained'
)
SELECT f.status, f.succeeded, f.failed, f.cancelled, f.lost,
    runherd.emit_run_event(f.run_id, 'finished', 3, jsonb_build_object('name', f.name, 'status', f.status, 'reason', f.reason,
        'succeeded', f.succeeded, 'failed', f.failed, 'cancelled', f.cancelled, 'lost', f.lost))::text AS emitted
FROM finished f
