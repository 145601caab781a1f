-- A shard's position, its chunks in flight and its run's guard. The count resumes at low_chunk_no, past the dead entries of
-- what has finished.
-- On the placement; served by the primary keys.
-- $1 run id · $2 shard
SELECT g.status AS guard_status, g.outcome AS guard_outcome, g.dispatch_window, p.chunk_count, p.next_chunk_no,
    (SELECT count(*) FROM runherd.active_chunks a
     WHERE a.run_shard = p.run_shard AND a.run_id = p.run_id AND a.chunk_no >= p.low_chunk_no) AS in_flight
FROM (SELECT $1::uuid AS run_id, $2::int AS run_shard) k
LEFT JOIN runherd.run_guards g ON g.run_id = k.run_id
LEFT JOIN runherd.shard_positions p ON p.run_id = k.run_id AND p.run_shard = k.run_shard
