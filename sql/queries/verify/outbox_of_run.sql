-- I7, and I8's stored part, for the events of one run; see verify/outbox. A queue row without a ledger row belongs to no run,
-- and is found by that statement only.
-- On any database with an outbox; served by outbox_events_dedupe_key and the queue's primary key.
-- $1 run id
SELECT j.fault, j.event_id & 31 AS bucket, count(*) AS events, count(*) FILTER (WHERE j.published) AS published,
    min(j.name) AS first_name
FROM (
    SELECT e.event_id, e.status = 'published' AS published, e.dedupe_key AS name,
        CASE
            WHEN e.status = 'published' AND q.event_id IS NOT NULL THEN 'queued_although_published'
            WHEN e.status <> 'published' AND q.event_id IS NULL THEN 'not_queued'
            WHEN (e.status = 'published') <> (e.published_at IS NOT NULL AND e.proof IS NOT NULL) THEN 'unproven'
        END AS fault
    FROM (VALUES ('chunk-ready/' || $1::uuid::text || '/', 'chunk-ready/' || $1::uuid::text || '0'),
        ('run/' || $1::uuid::text || '/', 'run/' || $1::uuid::text || '0')) AS keys(first, past)
    JOIN runherd.outbox_events e ON e.dedupe_key >= keys.first COLLATE "C" AND e.dedupe_key < keys.past COLLATE "C"
    LEFT JOIN runherd.outbox_delivery_queue q ON q.outbox_shard = e.outbox_shard AND q.event_id = e.event_id
) j
GROUP BY j.fault, j.event_id & 31
ORDER BY 1, 2
