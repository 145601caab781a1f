-- Asks for an unsealed run to be failed, because no client came back to it.
-- On the control database.
-- $1 run id
INSERT INTO runherd.run_intents (run_id, intent, requested_by, reason)
VALUES ($1::uuid, 'fail', 'creation_recovery', 'abandoned before it was sealed')
ON CONFLICT DO NOTHING
