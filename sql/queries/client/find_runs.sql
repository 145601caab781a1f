-- The runs whose identifiers lie in a span; three are enough to see that a prefix is not unique.
-- On the control database; served by the primary key.
-- $1 lowest run id · $2 highest run id
SELECT r.run_id
FROM runherd.runs r
WHERE r.run_id BETWEEN $1::uuid AND $2::uuid
ORDER BY r.run_id
LIMIT 3
