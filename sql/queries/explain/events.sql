-- The events that announce chunks of a run which nobody has leased: how many wait to be published, and how many are published.
-- On the placement; served by the primary keys; reads no more than the run's chunks in flight.
-- $1 run id
WITH waiting AS MATERIALIZED (
    SELECT DISTINCT runherd.outbox_shard_of(a.run_id, a.run_shard) AS outbox_shard, a.event_id
    FROM runherd.shard_positions p
    JOIN runherd.active_chunks a ON a.run_shard = p.run_shard AND a.run_id = p.run_id AND a.chunk_no >= p.low_chunk_no
    WHERE p.run_id = $1::uuid AND a.lease_token IS NULL AND a.ready_at <= now()
), events AS MATERIALIZED (
    SELECT e.status, e.created_at, e.published_at, q.attempts, q.claimed_until > now() AS claimed, q.last_error
    FROM waiting w
    JOIN runherd.outbox_events e ON e.outbox_shard = w.outbox_shard AND e.event_id = w.event_id
    LEFT JOIN runherd.outbox_delivery_queue q ON q.outbox_shard = w.outbox_shard AND q.event_id = w.event_id
)
SELECT count(*) FILTER (WHERE e.status = 'pending') AS pending, count(*) FILTER (WHERE e.status = 'parked') AS parked,
    count(*) FILTER (WHERE e.status = 'published') AS published, count(*) FILTER (WHERE e.claimed) AS claimed,
    (extract(epoch FROM now() - min(e.created_at) FILTER (WHERE e.status <> 'published')) * 1000)::bigint AS oldest_ms,
    (extract(epoch FROM now() - min(e.published_at)) * 1000)::bigint AS published_ms_ago,
    (array_agg(e.last_error ORDER BY e.attempts DESC) FILTER (WHERE e.last_error IS NOT NULL))[1] AS last_error
FROM events e
