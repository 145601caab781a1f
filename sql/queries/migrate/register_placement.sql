-- Registers a placement by name, or finds it.
-- On the control database.
-- $1 name
WITH added AS (
    INSERT INTO runherd.placements (name) VALUES ($1::text) ON CONFLICT (name) DO NOTHING RETURNING placement_id
)
SELECT a.placement_id FROM added a
UNION ALL
SELECT p.placement_id FROM runherd.placements p WHERE p.name = $1::text
LIMIT 1
