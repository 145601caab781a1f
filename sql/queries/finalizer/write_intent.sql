-- Asks for a run to be failed, because a policy of its own says so.
-- On the control database.
-- $1 run id · $2 reason
INSERT INTO runherd.run_intents (run_id, intent, requested_by, reason) VALUES ($1::uuid, 'fail', 'finalizer', $2::text)
ON CONFLICT DO NOTHING
