-- Asks for the hand-out of a run to stop; answers the status that it found. A stopping or ended run is refused.
-- On the control database; served by the primary keys.
-- $1 run id
SELECT runherd.pause_run($1::uuid) AS status
