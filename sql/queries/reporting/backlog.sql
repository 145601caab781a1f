-- Backlogs of the control database: chunks and cursors that wait for dispatch, runs that are being created, runs that are due
-- for the finalizer and for how long the oldest of them has been. Reads live rows only.
-- On the control database; served by dispatch_cursors_open, runs_creating and run_finalizations_look_after.
SELECT
    (SELECT COALESCE(sum(c.chunk_count - c.next_chunk_no), 0)::bigint FROM runherd.dispatch_cursors c WHERE c.status = 'open')
        AS dispatch_backlog,
    (SELECT count(*) FROM runherd.dispatch_cursors c WHERE c.status = 'open') AS dispatch_cursors,
    (SELECT count(*) FROM runherd.runs r WHERE r.status = 'creating') AS creating_runs,
    (SELECT count(*) FROM runherd.run_finalizations f WHERE f.look_after <= now()) AS finalization_backlog,
    (SELECT COALESCE((extract(epoch FROM now() - min(f.look_after)) * 1000)::bigint, 0)
     FROM runherd.run_finalizations f WHERE f.look_after <= now()) AS finalization_lag_ms
