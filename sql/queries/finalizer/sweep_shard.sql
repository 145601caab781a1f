-- Cancels what is open in the next stretch of one shard, under a guard that is not open: active rows first, then chunk rows.
-- On the placement; served by the primary keys.
-- $1 run id · $2 shard · $3 chunks to look at
WITH stretch AS MATERIALIZED (
    SELECT p.low_chunk_no, least(p.low_chunk_no + $3::bigint, p.chunk_count) AS target
    FROM runherd.shard_positions p JOIN runherd.run_guards g ON g.run_id = p.run_id
    WHERE p.run_id = $1::uuid AND p.run_shard = $2::int AND g.status <> 'open'
), active AS MATERIALIZED (
    SELECT a.chunk_no
    FROM stretch s
    JOIN runherd.active_chunks a ON a.run_shard = $2::int AND a.run_id = $1::uuid
        AND a.chunk_no >= s.low_chunk_no AND a.chunk_no < s.target
    ORDER BY a.chunk_no
    FOR UPDATE OF a
), deleted AS (
    DELETE FROM runherd.active_chunks a USING active x
    WHERE a.run_shard = $2::int AND a.run_id = $1::uuid AND a.chunk_no = x.chunk_no
    RETURNING a.chunk_no
), cancelled AS (
    UPDATE runherd.chunks c
    SET status = 'cancelled', finished_at = now()
    FROM stretch s
    WHERE c.run_shard = $2::int AND c.run_id = $1::uuid AND c.chunk_no >= s.low_chunk_no AND c.chunk_no < s.target
        AND c.status = 'open' AND (SELECT count(*) FROM deleted) >= 0
    RETURNING c.chunk_no
)
SELECT count(*) AS cancelled FROM cancelled
