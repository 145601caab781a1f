-- Which installation and placement this database says it is, and the oldest coordinator that its schemas allow.
-- On every database; one row.
SELECT i.installation_id, i.placement_id, i.name, (SELECT max(v.min_coordinator) FROM runherd.schema_version v) AS min_coordinator
FROM runherd.placement_identity i
