-- Which installation and placement this database says it is.
-- On every database; one row.
SELECT i.installation_id, i.placement_id, i.name FROM runherd.placement_identity i
