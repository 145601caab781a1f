-- Begins a run, or takes up the one that the same idempotency key began: then the answer says which parts are there, and the
-- token of an earlier holder is lost. Another header under the same key is refused.
-- On the control database; served by runs_idempotency_key_key and the primary key of run_seeds.
-- $1 header as JSON text · $2 idempotency key · $3 lease ms
SELECT b.run_id, b.creation_token, b.created, b.sealed, b.status, b.shard_count, b.parts_present, b.chunks_present,
    b.parts_digest
FROM runherd.begin_run($1::text::jsonb, $2::text, $3::bigint * interval '1 ms') b
