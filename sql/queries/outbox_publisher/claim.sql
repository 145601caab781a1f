-- Claims due deliveries of one outbox shard, after an event id, and joins the ledger's payload.
-- On any database with an outbox; served by the primary keys. The row to claim is found by its ctid and the ledger by a
-- lateral that cannot be reordered, so that the plan holds whatever the statistics say.
-- $1 outbox shard · $2 after event id · $3 limit · $4 token · $5 coordinator · $6 lease ms
WITH claimed AS MATERIALIZED (
    UPDATE runherd.outbox_delivery_queue q
    SET claim_token = $4::uuid, claimed_by = $5::uuid, claimed_until = now() + $6::bigint * interval '1 ms'
    WHERE q.ctid = ANY (ARRAY(
        SELECT d.ctid FROM runherd.outbox_delivery_queue d
        WHERE d.outbox_shard = $1::smallint AND d.event_id > $2::bigint
            AND d.available_at <= now() AND d.claimed_until <= now()
        ORDER BY d.outbox_shard, d.event_id
        LIMIT $3::bigint
        FOR UPDATE SKIP LOCKED))
    RETURNING q.event_id, q.attempts
)
SELECT c.event_id, c.attempts, e.dedupe_key, e.kind, e.exchange, e.routing_key, e.headers::text AS headers,
    e.payload::text AS payload, extract(epoch FROM e.created_at)::bigint AS created_at
FROM claimed c
CROSS JOIN LATERAL (
    SELECT * FROM runherd.outbox_events e WHERE e.outbox_shard = $1::smallint AND e.event_id = c.event_id OFFSET 0
) e
ORDER BY c.event_id
