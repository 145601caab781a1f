-- Leases the chunks under one token; a chunk that cannot be leased is answered with its refusal. Asking again with the same
-- token and the same chunks answers the same leases. `left_ms` is how long a lease still lasts by the database's clock.
-- On the placement; the function works in key order, by primary keys.
-- $1 run ids · $2 shards · $3 chunks · $4 token · $5 worker id · $6 ttl ms
SELECT l.run_id, l.run_shard, l.chunk_no, l.status, l.payload::text AS payload, l.attempt, l.generation,
    (extract(epoch FROM l.expires_at - now()) * 1000)::bigint AS left_ms
FROM runherd.lease_chunks($1::uuid[], $2::int[], $3::bigint[], $4::uuid, $5::text, $6::bigint * interval '1 ms') l
