-- Takes a coordinator that drained off the list.
-- On the control database; served by the primary key.
-- $1 coordinator id
DELETE FROM runherd.coordinators c WHERE c.coordinator_id = $1::uuid
