-- The runs in a range of identifiers: one run, or those that begin with some digits. Three are enough to name an ambiguity.
-- On the control database; served by the primary key.
-- $1 first run id · $2 last run id
SELECT r.run_id FROM runherd.runs r WHERE r.run_id >= $1::uuid AND r.run_id <= $2::uuid ORDER BY r.run_id LIMIT 3
