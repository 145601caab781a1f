-- Runs that have not ended and are older than $1 milliseconds, the oldest first, at most $2 of them.
-- It starts from run_finalizations, which has a row for each open run only: it costs what the open runs cost, however many
-- have ended. Age is by the database's clock.
SELECT run.run_id::text AS run_id, run.queue, run.status,
       extract(epoch FROM now() - run.created_at)::bigint AS age_s
FROM runherd.run_finalizations AS open_run
JOIN runherd.runs AS run USING (run_id)
WHERE run.status NOT IN ('succeeded', 'failed', 'cancelled')
  AND run.created_at < now() - $1::bigint * interval '1 millisecond'
ORDER BY run.created_at
LIMIT $2::bigint
