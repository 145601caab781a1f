-- What waits on one placement: rows of the delivery queue, parked ones, and the age of the oldest due one; active chunks,
-- leased ones, and for how long the oldest that may be leased has not been. Each table is counted up to a limit.
-- On every database; served by the primary keys of outbox_delivery_queue and active_chunks, which hold live work only;
-- in their order, so that the pages that a larger backlog left behind are not read.
-- $1 limit
SELECT o.backlog AS outbox_backlog, o.parked AS outbox_parked, o.lag_ms AS outbox_lag_ms,
    a.in_flight AS chunks_in_flight, a.leased AS chunks_leased, a.unleased_ms AS oldest_unleased_ms
FROM (
    SELECT count(*) AS backlog, count(q.parked_at) AS parked,
        COALESCE((extract(epoch FROM now() - min(q.available_at) FILTER (WHERE q.available_at <= now())) * 1000)::bigint, 0)
            AS lag_ms
    FROM (SELECT d.available_at, d.parked_at FROM runherd.outbox_delivery_queue d
          ORDER BY d.outbox_shard, d.event_id LIMIT $1::bigint) q
) o
CROSS JOIN (
    SELECT count(*) AS in_flight, count(c.lease_token) AS leased,
        COALESCE((extract(epoch FROM now() - min(c.ready_at) FILTER (WHERE c.lease_token IS NULL AND c.ready_at <= now()))
            * 1000)::bigint, 0) AS unleased_ms
    FROM (SELECT t.lease_token, t.ready_at FROM runherd.active_chunks t
          ORDER BY t.run_shard, t.run_id, t.chunk_no LIMIT $1::bigint) c
) a
