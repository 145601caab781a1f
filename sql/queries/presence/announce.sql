-- Says that a coordinator is alive, by the database's clock; forgets those that have been silent for a day.
-- On the control database; a handful of rows.
-- $1 coordinator id · $2 host · $3 version
WITH forgotten AS (
    DELETE FROM runherd.coordinators c WHERE c.seen_at < now() - interval '1 day'
)
INSERT INTO runherd.coordinators (coordinator_id, host, version) VALUES ($1::uuid, $2::text, $3::text)
ON CONFLICT (coordinator_id) DO UPDATE SET seen_at = now()
