-- Takes back a pause, applied or only asked for; answers the run's status. A run that is not paused is refused.
-- On the control database; served by the primary keys.
-- $1 run id
SELECT runherd.resume_run($1::uuid) AS status
