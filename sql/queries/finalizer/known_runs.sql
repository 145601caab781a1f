-- Which of these runs the control database knows.
-- On the control database; served by the primary key.
-- $1 run ids
SELECT r.run_id FROM runherd.runs r WHERE r.run_id = ANY ($1::uuid[])
