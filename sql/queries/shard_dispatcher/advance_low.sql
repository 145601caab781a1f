-- Moves low_chunk_no up to the first chunk that is not finished, at most $3 chunks at a time, and adds what it passes to the
-- totals: each chunk row is counted once in its life. All of it is read in one snapshot; the move is a compare and set.
-- On the placement; served by the primary keys.
-- $1 run id · $2 shard · $3 most chunks to pass
WITH here AS MATERIALIZED (
    SELECT p.low_chunk_no,
        least(p.low_chunk_no + $3::bigint, COALESCE(
            (SELECT a.chunk_no FROM runherd.active_chunks a
             WHERE a.run_shard = p.run_shard AND a.run_id = p.run_id AND a.chunk_no >= p.low_chunk_no
             ORDER BY a.chunk_no LIMIT 1),
            p.next_chunk_no)) AS target
    FROM runherd.shard_positions p
    WHERE p.run_id = $1::uuid AND p.run_shard = $2::int
), passed AS MATERIALIZED (
    SELECT h.low_chunk_no, h.target,
        count(*) FILTER (WHERE c.status = 'succeeded') AS succeeded,
        count(*) FILTER (WHERE c.status = 'failed') AS failed,
        count(*) FILTER (WHERE c.status = 'cancelled') AS cancelled,
        count(*) FILTER (WHERE c.status = 'lost') AS lost,
        count(*) FILTER (WHERE c.status = 'open') AS open,
        min(c.chunk_no) FILTER (WHERE c.status = 'open') AS first_open
    FROM here h
    JOIN runherd.chunks c ON c.run_shard = $2::int AND c.run_id = $1::uuid
        AND c.chunk_no >= h.low_chunk_no AND c.chunk_no < h.target
    WHERE h.target > h.low_chunk_no
    GROUP BY h.low_chunk_no, h.target
)
UPDATE runherd.shard_positions p
SET low_chunk_no = CASE WHEN x.open = 0 THEN x.target ELSE
        runherd.raise_broken($1::uuid, $2::int, x.first_open, 'was handed out, is open, and is not active')::bigint END,
    succeeded = p.succeeded + x.succeeded, failed = p.failed + x.failed, cancelled = p.cancelled + x.cancelled,
    lost = p.lost + x.lost
FROM passed x
WHERE p.run_id = $1::uuid AND p.run_shard = $2::int AND p.low_chunk_no = x.low_chunk_no
RETURNING p.low_chunk_no
