-- The next parts of a run for one placement, in order.
-- On the control database; served by the primary key of run_seeds.
-- $1 run id · $2 placement · $3 after part · $4 limit
SELECT s.part_no, s.run_shard, s.first_chunk_no, s.chunk_count, s.body::text AS body
FROM runherd.run_seeds s
WHERE s.run_id = $1::uuid AND s.part_no > $3::int AND s.placement_id = $2::int
ORDER BY s.part_no
LIMIT $4::bigint
