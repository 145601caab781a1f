-- The placements of this installation, with its identity.
-- On the control database; a few rows.
SELECT p.placement_id, p.name, p.state, i.installation_id
FROM runherd.placements p CROSS JOIN runherd.placement_identity i
ORDER BY p.placement_id
