-- How far one run has come on this placement. Under an open guard a chunk below the position is finished unless it is active;
-- once the guard is not open, only what the sweep has passed counts. Active rows are at most a window for each shard; failed ones
-- above the watermark are counted up to 10,000 for each shard.
-- On a placement; served by the primary keys and chunks_failed.
-- $1 run id
WITH shards AS MATERIALIZED (
    SELECT p.chunk_count, p.next_chunk_no, p.low_chunk_no, p.succeeded, p.failed, p.cancelled, p.lost,
        p.drained_at IS NOT NULL AS drained, a.in_flight, a.leased, f.failed_above
    FROM runherd.shard_positions p
    CROSS JOIN LATERAL (
        SELECT count(*) AS in_flight, count(a.expires_at) AS leased
        FROM runherd.active_chunks a
        WHERE p.drained_at IS NULL AND a.run_shard = p.run_shard AND a.run_id = p.run_id AND a.chunk_no >= p.low_chunk_no) a
    CROSS JOIN LATERAL (
        SELECT count(*) AS failed_above
        FROM (SELECT 1 FROM runherd.chunks c
              WHERE p.drained_at IS NULL AND c.run_id = p.run_id AND c.run_shard = p.run_shard AND c.failed_at IS NOT NULL
                  AND c.chunk_no >= p.low_chunk_no
              LIMIT 10000) x) f
    WHERE p.run_id = $1::uuid
), guard AS MATERIALIZED (
    SELECT COALESCE((SELECT g.status = 'open' FROM runherd.run_guards g WHERE g.run_id = $1::uuid), true) AS open
)
SELECT g.open AS guard_open, count(s.chunk_count) AS shards, count(*) FILTER (WHERE s.drained) AS drained,
    COALESCE(sum(s.chunk_count), 0)::bigint AS seeded, COALESCE(sum(s.next_chunk_no), 0)::bigint AS handed_out,
    COALESCE(sum(s.in_flight), 0)::bigint AS in_flight, COALESCE(sum(s.leased), 0)::bigint AS leased,
    COALESCE(sum(CASE WHEN g.open THEN greatest(s.next_chunk_no - s.in_flight, s.low_chunk_no) ELSE s.low_chunk_no END),
        0)::bigint AS finished,
    COALESCE(sum(s.failed + CASE WHEN g.open THEN s.failed_above ELSE 0 END), 0)::bigint AS failed,
    COALESCE(sum(s.cancelled), 0)::bigint AS cancelled, COALESCE(sum(s.lost), 0)::bigint AS lost
FROM guard g
LEFT JOIN shards s ON true
GROUP BY g.open
