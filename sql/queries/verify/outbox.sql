-- I7, and I8's stored part: every ledger event against the delivery queue. One pass; a fault is answered as a few groups, each
-- with how many events it has and the first of them, however many there are. Groups without a fault say what was checked.
-- On any database with an outbox; reads the whole ledger and the whole queue.
SELECT j.fault, j.event_id & 31 AS bucket, count(*) AS events, count(*) FILTER (WHERE j.published) AS published,
    min(j.name) AS first_name
FROM (
    SELECT COALESCE(e.event_id, q.event_id) AS event_id, e.status = 'published' AS published,
        COALESCE(e.dedupe_key, 'event ' || q.outbox_shard::text || '/' || q.event_id::text) AS name,
        CASE
            WHEN e.event_id IS NULL THEN 'queued_without_event'
            WHEN e.status = 'published' AND q.event_id IS NOT NULL THEN 'queued_although_published'
            WHEN e.status <> 'published' AND q.event_id IS NULL THEN 'not_queued'
            WHEN (e.status = 'published') <> (e.published_at IS NOT NULL AND e.proof IS NOT NULL) THEN 'unproven'
        END AS fault
    FROM runherd.outbox_events e
    FULL JOIN runherd.outbox_delivery_queue q ON q.outbox_shard = e.outbox_shard AND q.event_id = e.event_id
) j
GROUP BY j.fault, j.event_id & 31
ORDER BY 1, 2
