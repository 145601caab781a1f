-- Gives up a run that is not sealed, by the holder of its creation token: it becomes failed with this reason.
-- On the control database; served by the primary keys.
-- $1 run id · $2 creation token · $3 reason
SELECT runherd.abort_run($1::uuid, $2::uuid, $3::text)::text AS done
