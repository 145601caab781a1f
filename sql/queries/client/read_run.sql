-- One run as the control database knows it, and what was asked of it and is not applied yet. Ages are by the database's clock.
-- On the control database; served by the primary keys.
-- $1 run id
SELECT r.run_id, r.idempotency_key, r.name, r.queue, r.status, r.paused, r.priority, r.policy, r.tolerated_failures,
    r.shard_count, r.part_count, r.chunk_count, r.created_at, r.sealed_at, r.started_at, r.finished_at, r.deadline_at,
    r.succeeded, r.failed, r.cancelled, r.lost, r.reason,
    (extract(epoch FROM COALESCE(r.finished_at, now()) - r.started_at) * 1000)::bigint AS running_ms,
    (SELECT COALESCE(json_agg(json_build_object('intent', i.intent, 'requested_by', i.requested_by, 'reason', i.reason,
        'waiting_ms', (extract(epoch FROM now() - i.requested_at) * 1000)::bigint) ORDER BY i.requested_at), '[]')
     FROM runherd.run_intents i WHERE i.run_id = r.run_id) AS intents
FROM runherd.runs r
WHERE r.run_id = $1::uuid
