-- One database's outbox: rows of the delivery queue (counted up to a limit), parked ones, and the age of the oldest due one.
-- On every database; reads the delivery queue only, which holds unfinished work.
-- $1 limit
WITH waiting AS MATERIALIZED (
    SELECT q.available_at, q.parked_at FROM runherd.outbox_delivery_queue q LIMIT $1::bigint
)
SELECT count(*) AS outbox_backlog, count(w.parked_at) AS outbox_parked,
    COALESCE((extract(epoch FROM now() - min(w.available_at) FILTER (WHERE w.available_at <= now())) * 1000)::bigint, 0)
        AS outbox_lag_ms
FROM waiting w
