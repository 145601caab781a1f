-- Guards that are not closed and older than a grace: candidates for orphans. Read before known_runs, so that a run that is
-- created in between is never taken for missing.
-- On the placement; served by run_guards_not_closed.
-- $1 after run · $2 grace ms · $3 limit
SELECT g.run_id, g.status = 'open' AS open
FROM runherd.run_guards g
WHERE g.status <> 'closed' AND g.run_id > $1::uuid AND g.created_at <= now() - $2::bigint * interval '1 ms'
ORDER BY g.run_id
LIMIT $3::bigint
