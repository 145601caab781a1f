-- Asks for a run to be cancelled, without locking it; answers the status that it found. An ended run is refused.
-- On the control database; served by the primary keys.
-- $1 run id · $2 reason
SELECT runherd.cancel_run($1::uuid, $2::text) AS status
