-- The newest runs, with how far their cursors have come. A filter that few runs match reads further back.
-- On the control database; served by runs_created_at, then by the primary keys.
-- $1 limit · $2 statuses, null for all · $3 queue, null for all
WITH listed AS MATERIALIZED (
    SELECT r.run_id, r.name, r.queue, r.status, r.paused, r.priority, r.chunk_count, r.created_at, r.started_at, r.finished_at,
        r.succeeded, r.failed, r.cancelled, r.lost, r.reason, r.deadline_at
    FROM runherd.runs r
    WHERE ($2::text[] IS NULL OR r.status = ANY ($2::text[])) AND ($3::text IS NULL OR r.queue = $3::text)
    ORDER BY r.created_at DESC
    LIMIT $1::bigint
)
SELECT l.*, c.handed_out,
    ARRAY(SELECT i.intent FROM runherd.run_intents i WHERE i.run_id = l.run_id ORDER BY i.requested_at) AS intents,
    (extract(epoch FROM now() - l.created_at) * 1000)::bigint AS age_ms
FROM listed l
CROSS JOIN LATERAL (SELECT COALESCE(sum(c.next_chunk_no), 0)::bigint AS handed_out
    FROM runherd.dispatch_cursors c WHERE c.run_id = l.run_id) c
ORDER BY l.created_at DESC, l.run_id
