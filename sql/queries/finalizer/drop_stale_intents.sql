-- Drops the intents of runs that have ended: whoever asked lost the race.
-- On the control database; run_intents is small, runs is found by its primary key.
DELETE FROM runherd.run_intents i
USING runherd.runs r
WHERE r.run_id = i.run_id AND r.status IN ('succeeded', 'failed', 'cancelled')
