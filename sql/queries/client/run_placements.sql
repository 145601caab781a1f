-- The placements of a run by name: whether each is seeded, and what its cursors know.
-- On the control database; served by the primary keys.
-- $1 run id
WITH cursors AS MATERIALIZED (
    SELECT c.placement_id, count(*) AS shards, count(*) FILTER (WHERE c.status = 'open') AS open,
        count(*) FILTER (WHERE c.status = 'exhausted') AS exhausted, count(*) FILTER (WHERE c.status = 'drained') AS drained,
        sum(c.chunk_count)::bigint AS chunks, sum(c.next_chunk_no)::bigint AS handed_out, sum(c.succeeded)::bigint AS succeeded,
        sum(c.failed)::bigint AS failed, sum(c.cancelled)::bigint AS cancelled, sum(c.lost)::bigint AS lost
    FROM runherd.dispatch_cursors c
    WHERE c.run_id = $1::uuid
    GROUP BY c.placement_id
), seeds AS MATERIALIZED (
    SELECT s.placement_id, s.expected_chunks, s.seeded_at IS NOT NULL AS seeded, s.reseed_at IS NOT NULL AS reseeding
    FROM runherd.run_placements s
    WHERE s.run_id = $1::uuid
)
SELECT p.name, COALESCE(s.expected_chunks, c.chunks, 0) AS chunks, COALESCE(s.seeded, true) AS seeded,
    COALESCE(s.reseeding, false) AS reseeding, COALESCE(c.shards, 0) AS shards, COALESCE(c.open, 0) AS open,
    COALESCE(c.exhausted, 0) AS exhausted, COALESCE(c.drained, 0) AS drained, COALESCE(c.handed_out, 0) AS handed_out,
    COALESCE(c.succeeded, 0) AS succeeded, COALESCE(c.failed, 0) AS failed, COALESCE(c.cancelled, 0) AS cancelled,
    COALESCE(c.lost, 0) AS lost
FROM cursors c
FULL JOIN seeds s ON s.placement_id = c.placement_id
JOIN runherd.placements p ON p.placement_id = COALESCE(s.placement_id, c.placement_id)
ORDER BY p.name
