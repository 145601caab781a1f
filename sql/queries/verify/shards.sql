-- I1, I3, I4, I5, and I6's side on the placement: one row of counts for each shard that is asked for, whether it has anything
-- here or not. Chunks are counted where they lie and never sent. The sum of the numbers shows a gap that hides behind a number
-- that is there twice; the full join makes one pass over chunks and active rows, whatever the statistics say. One statement,
-- one snapshot: what it finds on one placement is never a transition.
-- On the placement; served by the primary keys; reads every chunk of these shards once.
-- $1 run ids · $2 their shards
WITH keys AS MATERIALIZED (
    SELECT k.run_id, k.run_shard FROM unnest($1::uuid[], $2::int[]) AS k(run_id, run_shard)
), runs AS MATERIALIZED (
    SELECT r.run_id, EXISTS (SELECT 1 FROM runherd.shard_positions p WHERE p.run_id = r.run_id) AS has_positions
    FROM (SELECT DISTINCT k.run_id FROM keys k) r
), parts AS MATERIALIZED (
    SELECT s.run_id, s.run_shard, sum(s.chunk_count)::bigint AS chunks
    FROM runs r JOIN runherd.seeded_parts s ON s.run_id = r.run_id
    GROUP BY s.run_id, s.run_shard
)
SELECT k.run_id, k.run_shard, g.status AS guard_status, g.dispatch_window, r.has_positions,
    COALESCE(s.chunks, 0) AS part_chunks,
    p.chunk_count, COALESCE(p.next_chunk_no, 0) AS next_chunk_no, COALESCE(p.low_chunk_no, 0) AS low_chunk_no,
    COALESCE(p.succeeded, 0) AS low_succeeded, COALESCE(p.failed, 0) AS low_failed,
    COALESCE(p.cancelled, 0) AS low_cancelled, COALESCE(p.lost, 0) AS low_lost,
    c.*
FROM keys k
JOIN runs r ON r.run_id = k.run_id
LEFT JOIN runherd.run_guards g ON g.run_id = k.run_id
LEFT JOIN runherd.shard_positions p ON p.run_id = k.run_id AND p.run_shard = k.run_shard
LEFT JOIN parts s ON s.run_id = k.run_id AND s.run_shard = k.run_shard
CROSS JOIN LATERAL (
    SELECT count(c.chunk_no) AS chunks,
        count(c.chunk_no) = 0 OR (min(c.chunk_no) = 0 AND max(c.chunk_no) = count(c.chunk_no) - 1
            AND sum(c.chunk_no) = count(c.chunk_no)::numeric * (count(c.chunk_no) - 1) / 2) AS numbered,
        count(*) FILTER (WHERE c.status = 'open') AS open,
        count(*) FILTER (WHERE c.status = 'succeeded') AS succeeded,
        count(*) FILTER (WHERE c.status = 'failed') AS failed,
        count(*) FILTER (WHERE c.status = 'cancelled') AS cancelled,
        count(*) FILTER (WHERE c.status = 'lost') AS lost,
        count(*) FILTER (WHERE c.status = 'succeeded' AND c.chunk_no < p.low_chunk_no) AS counted_succeeded,
        count(*) FILTER (WHERE c.status = 'failed' AND c.chunk_no < p.low_chunk_no) AS counted_failed,
        count(*) FILTER (WHERE c.status = 'cancelled' AND c.chunk_no < p.low_chunk_no) AS counted_cancelled,
        count(*) FILTER (WHERE c.status = 'lost' AND c.chunk_no < p.low_chunk_no) AS counted_lost,
        min(c.chunk_no) FILTER (WHERE c.status = 'open') AS first_open,
        count(*) FILTER (WHERE c.status = 'open' AND c.chunk_no < p.next_chunk_no AND a.chunk_no IS NULL) AS forgotten,
        min(c.chunk_no) FILTER (WHERE c.status = 'open' AND c.chunk_no < p.next_chunk_no AND a.chunk_no IS NULL)
            AS first_forgotten,
        count(*) FILTER (WHERE c.status = 'open' AND c.chunk_no >= p.next_chunk_no AND a.chunk_no IS NOT NULL) AS early,
        min(c.chunk_no) FILTER (WHERE c.status = 'open' AND c.chunk_no >= p.next_chunk_no AND a.chunk_no IS NOT NULL)
            AS first_early,
        count(*) FILTER (WHERE c.status <> 'open' AND a.chunk_no IS NOT NULL) AS undead,
        min(c.chunk_no) FILTER (WHERE c.status <> 'open' AND a.chunk_no IS NOT NULL) AS first_undead,
        count(*) FILTER (WHERE NOT c.right_fields) AS wrong_fields,
        min(c.chunk_no) FILTER (WHERE NOT c.right_fields) AS first_wrong_fields,
        count(a.chunk_no) AS active, min(a.chunk_no) AS first_active,
        count(*) FILTER (WHERE c.chunk_no IS NULL) AS stray, min(a.chunk_no) FILTER (WHERE c.chunk_no IS NULL) AS first_stray
    FROM (
        SELECT c.chunk_no, c.status,
            (c.failed_at IS NOT NULL) = (c.status = 'failed') AND (c.finished_at IS NOT NULL) = (c.status <> 'open')
                AND CASE c.status
                    WHEN 'open' THEN c.finished_token IS NULL AND c.outcome IS NULL AND c.error IS NULL
                    WHEN 'succeeded' THEN c.finished_token IS NOT NULL AND c.error IS NULL
                    WHEN 'failed' THEN c.error IS NOT NULL AND c.outcome IS NULL
                    ELSE c.finished_token IS NULL AND c.outcome IS NULL
                END AS right_fields
        FROM runherd.chunks c WHERE c.run_shard = k.run_shard AND c.run_id = k.run_id
    ) c
    FULL JOIN (
        SELECT a.chunk_no FROM runherd.active_chunks a WHERE a.run_shard = k.run_shard AND a.run_id = k.run_id
    ) a ON a.chunk_no = c.chunk_no
) c
