-- What was asked for a run and is not applied yet.
-- On the control database; served by the primary key.
-- $1 run id
SELECT i.intent, i.requested_by, i.reason, (extract(epoch FROM now() - i.requested_at) * 1000)::bigint AS ms_ago
FROM runherd.run_intents i WHERE i.run_id = $1::uuid ORDER BY i.requested_at
