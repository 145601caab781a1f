-- Finishes chunks as succeeded, each by its own token; again with the same token answers ok again and changes nothing. Outcomes
-- travel as text and are kept byte for byte; text that is not JSON fails the whole call.
-- On the placement; the function works in key order, by primary keys.
-- $1 run ids · $2 shards · $3 chunks, each chunk once · $4 their tokens · $5 their outcomes as text
SELECT c.run_id, c.run_shard, c.chunk_no, c.status
FROM runherd.complete_chunks($1::uuid[], $2::int[], $3::bigint[], $4::uuid[], $5::text[]::json[]) c
