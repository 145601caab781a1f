-- Has the shards of a run on one placement examined again: the placement does not show every drained mark.
-- On the control database; served by the primary keys.
-- $1 run id · $2 placement
WITH run AS MATERIALIZED (
    SELECT r.run_id FROM runherd.runs r WHERE r.run_id = $1::uuid AND r.status IN ('pending', 'running') FOR SHARE
)
UPDATE runherd.dispatch_cursors c
SET status = 'exhausted'
FROM run
WHERE c.run_id = run.run_id AND c.placement_id = $2::int AND c.status = 'drained' AND c.chunk_count > 0
