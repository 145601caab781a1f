-- Moves low_chunk_no over a stretch that was swept, and adds it to the totals; over nothing while a chunk of it is open.
-- On the placement; served by the primary keys.
-- $1 run id · $2 shard · $3 chunks to pass
WITH passed AS MATERIALIZED (
    SELECT p.low_chunk_no, least(p.low_chunk_no + $3::bigint, p.chunk_count) AS target,
        count(*) FILTER (WHERE c.status = 'succeeded') AS succeeded,
        count(*) FILTER (WHERE c.status = 'failed') AS failed,
        count(*) FILTER (WHERE c.status = 'cancelled') AS cancelled,
        count(*) FILTER (WHERE c.status = 'lost') AS lost,
        count(*) FILTER (WHERE c.status = 'open') AS open
    FROM runherd.shard_positions p
    JOIN runherd.chunks c ON c.run_shard = $2::int AND c.run_id = $1::uuid
        AND c.chunk_no >= p.low_chunk_no AND c.chunk_no < least(p.low_chunk_no + $3::bigint, p.chunk_count)
    WHERE p.run_id = $1::uuid AND p.run_shard = $2::int
    GROUP BY p.low_chunk_no, p.chunk_count
)
UPDATE runherd.shard_positions p
SET low_chunk_no = x.target, succeeded = p.succeeded + x.succeeded, failed = p.failed + x.failed,
    cancelled = p.cancelled + x.cancelled, lost = p.lost + x.lost
FROM passed x
WHERE p.run_id = $1::uuid AND p.run_shard = $2::int AND p.low_chunk_no = x.low_chunk_no AND x.open = 0
RETURNING p.low_chunk_no
