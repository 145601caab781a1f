-- Whether a placement is swept clean of a run (guard not open, every chunk passed), and its totals.
-- On the placement; served by the primary keys.
-- $1 run id
SELECT COALESCE((SELECT g.status <> 'open' FROM runherd.run_guards g WHERE g.run_id = $1::uuid), false)
        AND COALESCE(bool_and(p.low_chunk_no = p.chunk_count), true) AS swept,
    COALESCE(sum(p.succeeded), 0)::bigint AS succeeded, COALESCE(sum(p.failed), 0)::bigint AS failed,
    COALESCE(sum(p.cancelled), 0)::bigint AS cancelled, COALESCE(sum(p.lost), 0)::bigint AS lost
FROM runherd.shard_positions p
WHERE p.run_id = $1::uuid
