-- The placements that hold, or may hold, something of a run.
-- On the control database; served by the primary key.
-- $1 run id
SELECT p.placement_id FROM runherd.run_placements p WHERE p.run_id = $1::uuid ORDER BY p.placement_id
