-- What waits in the control database: chunks and cursors for dispatch, runs for their creation and for the finalizer, and the
-- age of the oldest of each kind. A due cursor waits if its run can be dispatched (it is not paused). A run waits for the
-- finalizer while a look is due, an intent is not applied, or it has ended and its guards are not closed.
-- On the control database; served by dispatch_cursors_open, runs_creating, run_finalizations_look_after and the primary keys;
-- run_intents is small. All rows are live work; of each kind at most a limit is read.
-- $1 limit
WITH open_runs AS MATERIALIZED (
    SELECT c.run_id, count(*) AS cursors, sum(c.chunk_count - c.next_chunk_no) AS chunks,
        min(c.next_dispatch_at) FILTER (WHERE c.next_dispatch_at <= now()) AS due_at
    FROM (SELECT d.run_id, d.chunk_count, d.next_chunk_no, d.next_dispatch_at
          FROM runherd.dispatch_cursors d WHERE d.status = 'open' LIMIT $1::bigint) c
    GROUP BY c.run_id
), dispatch AS (
    SELECT COALESCE(sum(o.chunks), 0)::bigint AS backlog, COALESCE(sum(o.cursors), 0)::bigint AS cursors,
        min(o.due_at) FILTER (WHERE r.status IN ('pending', 'running') AND NOT r.paused) AS due_at
    FROM open_runs o
    CROSS JOIN LATERAL (SELECT r.status, r.paused FROM runherd.runs r WHERE r.run_id = o.run_id OFFSET 0) r
), creation AS (
    SELECT count(*) AS runs, min(c.sealed_at) AS sealed_at
    FROM (SELECT r.sealed_at FROM runherd.runs r WHERE r.status = 'creating' LIMIT $1::bigint) c
), looks AS (
    SELECT count(*) AS due, min(l.look_after) AS look_after
    FROM (SELECT f.look_after FROM runherd.run_finalizations f WHERE f.look_after <= now() LIMIT $1::bigint) l
), ended AS (
    SELECT min(e.finished_at) AS finished_at
    FROM (SELECT r.finished_at FROM runherd.run_finalizations f
          CROSS JOIN LATERAL (SELECT r.finished_at FROM runherd.runs r WHERE r.run_id = f.run_id OFFSET 0) r
          LIMIT $1::bigint) e
), intents AS (
    SELECT min(i.requested_at) AS requested_at FROM runherd.run_intents i
), ages AS (
    SELECT d.backlog, d.cursors, c.runs, l.due, l.look_after, c.sealed_at, d.due_at,
        LEAST(l.look_after, e.finished_at, i.requested_at) AS unfinalized_at
    FROM dispatch d CROSS JOIN creation c CROSS JOIN looks l CROSS JOIN ended e CROSS JOIN intents i
)
SELECT a.backlog AS dispatch_backlog, a.cursors AS dispatch_cursors, a.runs AS creating_runs, a.due AS finalization_backlog,
    COALESCE((extract(epoch FROM now() - a.look_after) * 1000)::bigint, 0) AS finalization_lag_ms,
    COALESCE((extract(epoch FROM now() - a.sealed_at) * 1000)::bigint, 0) AS oldest_unseeded_ms,
    COALESCE((extract(epoch FROM now() - a.due_at) * 1000)::bigint, 0) AS oldest_undispatched_ms,
    COALESCE((extract(epoch FROM now() - a.unfinalized_at) * 1000)::bigint, 0) AS oldest_unfinalized_ms
FROM ages a
