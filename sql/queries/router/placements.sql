-- The placements, and the oldest coordinator that this database's schemas allow.
-- On the control database; a handful of rows.
SELECT p.placement_id, p.name, p.state, (SELECT max(v.min_coordinator) FROM runherd.schema_version v) AS min_coordinator
FROM runherd.placements p
ORDER BY p.placement_id
