-- Copies a drained mark and its totals to the cursor.
-- On the control database; served by the primary key.
-- $1 run id · $2 shard · $3 succeeded · $4 failed · $5 cancelled · $6 lost
UPDATE runherd.dispatch_cursors c
SET status = 'drained', next_chunk_no = c.chunk_count, succeeded = $3::bigint, failed = $4::bigint, cancelled = $5::bigint,
    lost = $6::bigint
WHERE c.run_id = $1::uuid AND c.run_shard = $2::int AND c.status = 'exhausted'
