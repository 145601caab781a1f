-- How many chunks of a run its parts on this placement hold, and what the guard says.
-- On the placement; served by the primary key of seeded_parts; read once, when the last part is in.
-- $1 run id
SELECT COALESCE((SELECT sum(s.chunk_count) FROM runherd.seeded_parts s WHERE s.run_id = $1::uuid), 0)::bigint AS chunks,
    (SELECT g.status FROM runherd.run_guards g WHERE g.run_id = $1::uuid) AS guard_status
