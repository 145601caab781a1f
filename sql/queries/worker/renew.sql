-- Renews leases, each by its own token. What cannot be renewed is answered as lost, run_closed or overtime.
-- On the placement; the function works in key order, by primary keys.
-- $1 run ids · $2 shards · $3 chunks, each chunk once · $4 their tokens · $5 ttl ms
SELECT r.run_id, r.run_shard, r.chunk_no, r.status,
    (extract(epoch FROM r.expires_at - now()) * 1000)::bigint AS left_ms
FROM runherd.renew_leases($1::uuid[], $2::int[], $3::bigint[], $4::uuid[], $5::bigint * interval '1 ms') r
