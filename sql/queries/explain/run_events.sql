-- The events of a run itself that are not published.
-- On the control database; served by outbox_events_dedupe_key.
-- $1 run id
SELECT count(*) FILTER (WHERE e.status = 'pending') AS pending, count(*) FILTER (WHERE e.status = 'parked') AS parked,
    0::bigint AS published, count(*) FILTER (WHERE q.claimed_until > now()) AS claimed,
    (extract(epoch FROM now() - min(e.created_at)) * 1000)::bigint AS oldest_ms, NULL::bigint AS published_ms_ago,
    (array_agg(q.last_error ORDER BY q.attempts DESC) FILTER (WHERE q.last_error IS NOT NULL))[1] AS last_error
FROM unnest(ARRAY['pending', 'started', 'finished']) AS kind(name)
JOIN runherd.outbox_events e ON e.dedupe_key = 'run/' || $1::uuid::text || '/' || kind.name
LEFT JOIN runherd.outbox_delivery_queue q ON q.outbox_shard = e.outbox_shard AND q.event_id = e.event_id
WHERE e.status <> 'published'
