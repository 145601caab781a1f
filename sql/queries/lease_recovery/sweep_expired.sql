-- Recovers expired leases in one bounded stretch of the active chunks: below the recovery limit the lease is cleared and a
-- recovery-scoped event is emitted, spread over a time; at the limit the chunk is failed. Answers one row, with the last key
-- that was looked at (NULL at the end of the table).
-- On the placement; served by the primary key of active_chunks, whose rows are live work only.
-- $1 after shard · $2 after run · $3 after chunk · $4 rows to look at · $5 leases to recover · $6 spread ms
WITH looked AS MATERIALIZED (
    SELECT a.run_shard, a.run_id, a.chunk_no, a.expires_at <= now() AS expired
    FROM runherd.active_chunks a
    WHERE (a.run_shard, a.run_id, a.chunk_no) > ($1::int, $2::uuid, $3::bigint)
    ORDER BY a.run_shard, a.run_id, a.chunk_no
    LIMIT $4::bigint
), chosen AS MATERIALIZED (
    -- Leases of a stopped run are the finalizer's; they take no place of the batch, or many of them would hold up all behind.
    SELECT l.run_shard, l.run_id, l.chunk_no
    FROM looked l JOIN runherd.run_guards g ON g.run_id = l.run_id AND g.status = 'open'
    WHERE l.expired
    ORDER BY l.run_shard, l.run_id, l.chunk_no LIMIT $5::bigint
), expired AS MATERIALIZED (
    SELECT a.run_shard, a.run_id, a.chunk_no, a.generation, a.attempts, a.recoveries, a.lease_token, a.worker_id,
        g.queue, g.recovery_limit
    FROM chosen c
    JOIN runherd.active_chunks a ON a.run_shard = c.run_shard AND a.run_id = c.run_id AND a.chunk_no = c.chunk_no
    JOIN runherd.run_guards g ON g.run_id = c.run_id AND g.status = 'open'
    WHERE a.expires_at <= now()
    ORDER BY c.run_shard, c.run_id, c.chunk_no
    FOR UPDATE OF a SKIP LOCKED
), events AS MATERIALIZED (
    SELECT e.run_shard, e.run_id, e.chunk_no, e.generation + 1 AS generation, e.queue,
        nextval('runherd.outbox_event_id') AS event_id, runherd.outbox_shard_of(e.run_id, e.run_shard) AS outbox_shard,
        now() + random() * $6::bigint * interval '1 ms' AS ready_at
    FROM expired e WHERE e.recoveries < e.recovery_limit
), requeued AS (
    UPDATE runherd.active_chunks a
    SET generation = e.generation, recoveries = a.recoveries + 1, event_id = e.event_id, ready_at = e.ready_at,
        lease_token = NULL, worker_id = NULL, leased_at = NULL, expires_at = NULL
    FROM events e
    WHERE a.run_shard = e.run_shard AND a.run_id = e.run_id AND a.chunk_no = e.chunk_no
    RETURNING e.outbox_shard, e.event_id, e.run_shard, e.run_id, e.chunk_no, e.generation, e.queue
), ledger AS (
    INSERT INTO runherd.outbox_events (outbox_shard, event_id, dedupe_key, kind, routing_key, headers, payload)
    SELECT r.outbox_shard, r.event_id, runherd.chunk_ready_key(r.run_id, r.run_shard, r.chunk_no, r.chunk_no, r.generation),
        'chunk.ready', 'chunk.ready.' || r.queue, runherd.chunk_ready_headers(i.name, r.generation, 'recovery'),
        runherd.chunk_ready_payload(i.name, r.run_id, r.run_shard, r.chunk_no, r.chunk_no, r.generation)
    FROM requeued r CROSS JOIN runherd.placement_identity i
    RETURNING outbox_shard, event_id
), delivery AS (
    INSERT INTO runherd.outbox_delivery_queue (outbox_shard, event_id, available_at)
    SELECT l.outbox_shard, l.event_id, e.ready_at FROM ledger l JOIN events e ON e.event_id = l.event_id
), deleted AS MATERIALIZED (
    DELETE FROM runherd.active_chunks a USING expired e
    WHERE e.recoveries >= e.recovery_limit
        AND a.run_shard = e.run_shard AND a.run_id = e.run_id AND a.chunk_no = e.chunk_no
    RETURNING e.run_shard, e.run_id, e.chunk_no, e.attempts, e.recoveries, e.lease_token, e.worker_id
), failed AS (
    UPDATE runherd.chunks c
    SET status = 'failed', attempts = d.attempts, recoveries = d.recoveries, finished_at = now(), failed_at = now(),
        error = 'recovery limit reached: the lease expired ' || (d.recoveries + 1)::text || ' times, last with worker '
            || COALESCE(d.worker_id, 'unknown')
    FROM deleted d
    WHERE c.run_shard = d.run_shard AND c.run_id = d.run_id AND c.chunk_no = d.chunk_no AND c.status = 'open'
    RETURNING c.run_shard, c.run_id, c.chunk_no
), checked AS (
    SELECT CASE WHEN f.chunk_no IS NULL THEN
        runherd.raise_broken(d.run_id, d.run_shard, d.chunk_no, 'was leased although it is finished') END AS broken
    FROM deleted d LEFT JOIN failed f ON f.run_shard = d.run_shard AND f.run_id = d.run_id AND f.chunk_no = d.chunk_no
), stretch AS (
    SELECT count(*) AS looked, count(*) FILTER (WHERE l.expired) AS due FROM looked l
)
SELECT s.looked, s.due,
    (SELECT count(*) FROM requeued) AS requeued,
    (SELECT count(*) FROM checked WHERE broken IS NULL) AS failed,
    last.run_shard, last.run_id, last.chunk_no
FROM stretch s
LEFT JOIN LATERAL (
    SELECT l.run_shard, l.run_id, l.chunk_no FROM looked l WHERE s.looked >= $4::bigint
    ORDER BY l.run_shard DESC, l.run_id DESC, l.chunk_no DESC LIMIT 1
) last ON true
