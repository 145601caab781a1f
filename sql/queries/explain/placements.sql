-- The placements of a run: whether they are seeded, and how their shards' cursors stand.
-- On the control database; served by the primary keys.
-- $1 run id
SELECT rp.placement_id, rp.expected_chunks, rp.seeded_at IS NOT NULL AS seeded,
    (extract(epoch FROM now() - rp.reseed_at) * 1000)::bigint AS reseed_ms_ago,
    c.open, c.exhausted, c.drained, c.to_hand_out, c.claimed, c.due, c.due_for_ms, c.progress
FROM runherd.run_placements rp
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE c.status = 'open') AS open, count(*) FILTER (WHERE c.status = 'exhausted') AS exhausted,
        count(*) FILTER (WHERE c.status = 'drained') AS drained,
        COALESCE(sum(c.chunk_count - c.next_chunk_no) FILTER (WHERE c.status = 'open'), 0)::bigint AS to_hand_out,
        count(*) FILTER (WHERE c.status = 'open' AND c.lease_expires_at > now()) AS claimed,
        count(*) FILTER (WHERE c.status = 'open' AND c.lease_expires_at <= now() AND c.next_dispatch_at <= now()) AS due,
        (extract(epoch FROM now() - min(greatest(c.next_dispatch_at, c.lease_expires_at))
            FILTER (WHERE c.status = 'open' AND c.lease_expires_at <= now() AND c.next_dispatch_at <= now())) * 1000)::bigint
            AS due_for_ms,
        concat_ws(':', sum(c.next_chunk_no), count(*) FILTER (WHERE c.status <> 'open'),
            count(*) FILTER (WHERE c.status = 'drained')) AS progress
    FROM runherd.dispatch_cursors c
    WHERE c.run_id = rp.run_id AND c.placement_id = rp.placement_id AND c.chunk_count > 0
) c
WHERE rp.run_id = $1::uuid
ORDER BY rp.placement_id
