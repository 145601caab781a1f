-- What the control database says of a run, with every time as milliseconds from now by the database's clock.
-- On the control database; served by the primary keys.
-- $1 run id
SELECT r.name, r.queue, r.status, r.paused, r.reason, r.sealed_at IS NOT NULL AS sealed, r.shard_count, r.chunk_count,
    r.tolerated_failures, r.succeeded, r.failed, r.cancelled, r.lost,
    (extract(epoch FROM now() - r.created_at) * 1000)::bigint AS created_ms_ago,
    (extract(epoch FROM now() - r.finished_at) * 1000)::bigint AS finished_ms_ago,
    to_char(r.finished_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS finished_at,
    (extract(epoch FROM r.creation_expires_at - now()) * 1000)::bigint AS creation_lease_ms,
    (extract(epoch FROM r.deadline_at - now()) * 1000)::bigint AS deadline_in_ms,
    s.parts, s.chunks AS part_chunks,
    CASE WHEN isfinite(f.look_after) THEN (extract(epoch FROM f.look_after - now()) * 1000)::bigint END AS look_in_ms,
    CASE WHEN f.expires_at > now() THEN (extract(epoch FROM f.expires_at - now()) * 1000)::bigint END AS finalizer_lease_ms
FROM runherd.runs r
LEFT JOIN runherd.run_finalizations f ON f.run_id = r.run_id
CROSS JOIN LATERAL (
    SELECT count(*) AS parts, COALESCE(sum(s.chunk_count), 0)::bigint AS chunks
    FROM runherd.run_seeds s WHERE s.run_id = r.run_id AND r.sealed_at IS NULL
) s
WHERE r.run_id = $1::uuid
