-- Gives chunks back, each by its own token: they are handed out again at once and no attempt is charged, until the release limit
-- makes it a retryable failure (`next` is release, retry or failed).
-- On the placement; the function works in key order, by primary keys.
-- $1 run ids · $2 shards · $3 chunks, each chunk once · $4 their tokens
SELECT r.run_id, r.run_shard, r.chunk_no, r.status, r.next
FROM runherd.release_chunks($1::uuid[], $2::int[], $3::bigint[], $4::uuid[]) r
