-- Settles a claimed batch in one statement that restates the token: confirmed events leave the queue and are published in the
-- ledger; failed ones are pushed back with their error, and parked once they have used up their attempts; the others are due
-- again at once, and not counted. A delivery whose token was lost is left to whoever holds it.
-- On any database with an outbox; served by the primary keys.
-- $1 outbox shard · $2 token · $3 confirmed ids · $4 failed ids · $5 their errors · $6 their delays in ms
-- $7 most attempts · $8 delay of a parked event in ms · $9 ids to try again
WITH deleted AS MATERIALIZED (
    DELETE FROM runherd.outbox_delivery_queue q
    WHERE q.outbox_shard = $1::smallint AND q.event_id = ANY ($3::bigint[]) AND q.claim_token = $2::uuid
    RETURNING q.event_id
), published AS (
    UPDATE runherd.outbox_events e
    SET status = 'published', published_at = now(), proof = 'confirmed'
    FROM deleted d
    WHERE e.outbox_shard = $1::smallint AND e.event_id = d.event_id
    RETURNING e.event_id
), failed AS MATERIALIZED (
    SELECT f.event_id, f.error, f.delay_ms
    FROM unnest($4::bigint[], $5::text[], $6::bigint[]) AS f(event_id, error, delay_ms)
), pushed_back AS (
    UPDATE runherd.outbox_delivery_queue q
    SET attempts = q.attempts + 1, last_error = f.error, claim_token = '00000000-0000-0000-0000-000000000000',
        claimed_until = 'epoch',
        available_at = now() + CASE WHEN q.attempts + 1 >= $7::int THEN $8::bigint ELSE f.delay_ms END * interval '1 ms',
        parked_at = COALESCE(q.parked_at, CASE WHEN q.attempts + 1 >= $7::int THEN now() END)
    FROM failed f
    WHERE q.outbox_shard = $1::smallint AND q.event_id = f.event_id AND q.claim_token = $2::uuid
    RETURNING q.event_id, q.parked_at IS NOT NULL AS parked
), parked AS (
    UPDATE runherd.outbox_events e
    SET status = 'parked'
    FROM pushed_back p
    WHERE p.parked AND e.outbox_shard = $1::smallint AND e.event_id = p.event_id AND e.status = 'pending'
    RETURNING e.event_id
), again AS (
    UPDATE runherd.outbox_delivery_queue q
    SET claim_token = '00000000-0000-0000-0000-000000000000', claimed_until = 'epoch'
    WHERE q.outbox_shard = $1::smallint AND q.event_id = ANY ($9::bigint[]) AND q.claim_token = $2::uuid
    RETURNING q.event_id
)
SELECT (SELECT count(*) FROM published) AS published, (SELECT count(*) FROM pushed_back) AS pushed_back,
    (SELECT count(*) FROM parked) AS parked, (SELECT count(*) FROM again) AS again
