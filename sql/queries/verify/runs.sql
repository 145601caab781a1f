-- I2, I6, and I1's side in the control database: what it says of each run, a page of runs at a time.
-- On the control database, in one snapshot with verify/cursors; served by the primary keys and outbox_events_dedupe_key.
-- $1 after run · $2 limit · $3 only these runs (NULL for all)
SELECT r.run_id, r.status, r.sealed_at IS NOT NULL AS sealed, r.shard_count, r.chunk_count, r.succeeded, r.failed, r.cancelled,
    r.lost, p.placement_ids, p.expected_chunks, p.unseeded,
    (SELECT count(*) FROM runherd.outbox_events e WHERE e.dedupe_key = 'run/' || r.run_id::text || '/finished') AS finished_events
FROM runherd.runs r
CROSS JOIN LATERAL (
    SELECT COALESCE(array_agg(p.placement_id ORDER BY p.placement_id), '{}') AS placement_ids,
        COALESCE(array_agg(p.expected_chunks ORDER BY p.placement_id), '{}') AS expected_chunks,
        count(*) FILTER (WHERE p.seeded_at IS NULL) AS unseeded
    FROM runherd.run_placements p WHERE p.run_id = r.run_id
) p
WHERE r.run_id > $1::uuid AND ($3::uuid[] IS NULL OR r.run_id = ANY ($3::uuid[]))
ORDER BY r.run_id
LIMIT $2::bigint
