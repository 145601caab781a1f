-- The shards of a run whose window is full and that have more to hand out: how many, and the first of them with the lease in
-- it that is oldest.
-- On the placement; served by the primary keys; reads no more than the run's chunks in flight.
-- $1 run id
SELECT f.run_shard, f.in_flight, f.dispatch_window, count(*) OVER () AS full_shards, l.chunk_no, l.worker_id, l.held_for_ms, l.lease_ms
FROM (
    SELECT p.run_shard, p.low_chunk_no, g.dispatch_window,
        (SELECT count(*) FROM runherd.active_chunks a
         WHERE a.run_shard = p.run_shard AND a.run_id = p.run_id AND a.chunk_no >= p.low_chunk_no) AS in_flight
    FROM runherd.run_guards g JOIN runherd.shard_positions p ON p.run_id = g.run_id
    WHERE g.run_id = $1::uuid AND p.next_chunk_no < p.chunk_count
) f
LEFT JOIN LATERAL (
    SELECT a.chunk_no, a.worker_id, (extract(epoch FROM now() - a.leased_at) * 1000)::bigint AS held_for_ms,
        (extract(epoch FROM a.expires_at - now()) * 1000)::bigint AS lease_ms
    FROM runherd.active_chunks a
    WHERE a.run_shard = f.run_shard AND a.run_id = $1::uuid AND a.chunk_no >= f.low_chunk_no AND a.leased_at IS NOT NULL
    ORDER BY a.leased_at LIMIT 1
) l ON true
WHERE f.in_flight >= f.dispatch_window
ORDER BY f.run_shard
LIMIT 1
