-- Reports failures, each by its own token: a retryable one is handed out again later while attempts remain (`next` is retry),
-- any other finishes the chunk as failed (`next` is failed).
-- On the placement; the function works in key order, by primary keys.
-- $1 run ids · $2 shards · $3 chunks, each chunk once · $4 their tokens · $5 their errors · $6 whether each is retryable
SELECT f.run_id, f.run_shard, f.chunk_no, f.status, f.next
FROM runherd.fail_chunks($1::uuid[], $2::int[], $3::bigint[], $4::uuid[], $5::text[], $6::boolean[]) f
