-- Redelivers events that were published long ago while a chunk they announce was not leased since: the same ledger row goes
-- published → pending (that update decides between two sweepers) with a new delivery row, under the same message id. The
-- interval doubles with each redelivery. Looks at one bounded stretch of the active chunks; answers as sweep_expired does.
-- On the placement; served by the primary keys of active_chunks and outbox_events.
-- $1 after shard · $2 after run · $3 after chunk · $4 rows to look at · $5 events to redeliver
WITH looked AS MATERIALIZED (
    SELECT a.run_shard, a.run_id, a.chunk_no, a.event_id, a.lease_token IS NULL AS unleased, a.ready_at
    FROM runherd.active_chunks a
    WHERE (a.run_shard, a.run_id, a.chunk_no) > ($1::int, $2::uuid, $3::bigint)
    ORDER BY a.run_shard, a.run_id, a.chunk_no
    LIMIT $4::bigint
), waiting AS MATERIALIZED (
    SELECT DISTINCT runherd.outbox_shard_of(l.run_id, l.run_shard) AS outbox_shard, l.event_id, g.redelivery_after,
        g.redelivery_after_max
    FROM looked l
    JOIN runherd.run_guards g ON g.run_id = l.run_id AND g.status = 'open'
    WHERE l.unleased AND l.ready_at <= now() - g.redelivery_after
), overdue AS MATERIALIZED (
    SELECT e.outbox_shard, e.event_id
    FROM waiting w
    JOIN runherd.outbox_events e ON e.outbox_shard = w.outbox_shard AND e.event_id = w.event_id
    WHERE e.status = 'published' AND e.published_at
        <= now() - least(w.redelivery_after * power(2, least(e.redeliveries, 30)), w.redelivery_after_max)
    ORDER BY e.outbox_shard, e.event_id
    LIMIT $5::bigint
    FOR UPDATE OF e SKIP LOCKED
), again AS (
    UPDATE runherd.outbox_events e
    SET status = 'pending', published_at = NULL, proof = NULL, redeliveries = e.redeliveries + 1
    FROM overdue o
    WHERE e.outbox_shard = o.outbox_shard AND e.event_id = o.event_id AND e.status = 'published'
    RETURNING e.outbox_shard, e.event_id
), delivery AS (
    INSERT INTO runherd.outbox_delivery_queue (outbox_shard, event_id)
    SELECT a.outbox_shard, a.event_id FROM again a
    RETURNING event_id
), stretch AS (
    SELECT count(*) AS looked FROM looked
)
SELECT s.looked, (SELECT count(*) FROM delivery) AS redelivered, last.run_shard, last.run_id, last.chunk_no
FROM stretch s
LEFT JOIN LATERAL (
    SELECT l.run_shard, l.run_id, l.chunk_no FROM looked l WHERE s.looked >= $4::bigint
    ORDER BY l.run_shard DESC, l.run_id DESC, l.chunk_no DESC LIMIT 1
) last ON true
