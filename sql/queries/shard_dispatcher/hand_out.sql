-- Hands out the chunks [$3, $3 + $4) of one shard: moves the position from exactly where it was read, and emits from what that
-- move returned. A position that has moved, or a guard that is not open, answers no row and changes nothing.
-- On the placement; served by the primary keys.
-- $1 run id · $2 shard · $3 position that was read · $4 chunks to hand out
WITH guard AS MATERIALIZED (
    SELECT g.run_id, g.queue, g.chunks_per_event
    FROM runherd.run_guards g
    WHERE g.run_id = $1::uuid AND g.status = 'open'
    FOR SHARE
), moved AS MATERIALIZED (
    UPDATE runherd.shard_positions p
    SET next_chunk_no = p.next_chunk_no + $4::bigint
    FROM guard g
    WHERE p.run_id = g.run_id AND p.run_shard = $2::int AND p.next_chunk_no = $3::bigint
        AND p.next_chunk_no + $4::bigint <= p.chunk_count
    RETURNING p.next_chunk_no, g.queue, g.chunks_per_event
), events AS MATERIALIZED (
    SELECT nextval('runherd.outbox_event_id') AS event_id, m.queue, first.no AS first_chunk_no,
        least(first.no + m.chunks_per_event, m.next_chunk_no) - 1 AS last_chunk_no
    FROM moved m
    CROSS JOIN LATERAL generate_series($3::bigint, m.next_chunk_no - 1, m.chunks_per_event) AS first(no)
), handed AS (
    INSERT INTO runherd.active_chunks (run_shard, run_id, chunk_no, event_id)
    SELECT $2::int, $1::uuid, c.no, e.event_id
    FROM events e CROSS JOIN LATERAL generate_series(e.first_chunk_no, e.last_chunk_no) AS c(no)
), ledger AS (
    INSERT INTO runherd.outbox_events (outbox_shard, event_id, dedupe_key, kind, routing_key, headers, payload)
    SELECT runherd.outbox_shard_of($1::uuid, $2::int), e.event_id,
        runherd.chunk_ready_key($1::uuid, $2::int, e.first_chunk_no, e.last_chunk_no, 0),
        'chunk.ready', 'chunk.ready.' || e.queue, runherd.chunk_ready_headers(i.name, 0, 'dispatch'),
        runherd.chunk_ready_payload(i.name, $1::uuid, $2::int, e.first_chunk_no, e.last_chunk_no, 0)
    FROM events e CROSS JOIN runherd.placement_identity i
    RETURNING outbox_shard, event_id
), delivery AS (
    INSERT INTO runherd.outbox_delivery_queue (outbox_shard, event_id)
    SELECT l.outbox_shard, l.event_id FROM ledger l
)
SELECT m.next_chunk_no, (SELECT count(*) FROM events) AS events FROM moved m
