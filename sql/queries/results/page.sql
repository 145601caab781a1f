-- The next finished chunks of one shard, in order, each as the JSON object that `runherd results` prints. The outcome is put in
-- as it was given; only line ends between its tokens become blanks, so that a line is an object.
-- On the placement; served by the primary key of chunks.
-- $1 run id · $2 shard · $3 after chunk · $4 limit · $5 only this status, or NULL
SELECT c.chunk_no, '{"run_shard":' || c.run_shard || ',"chunk_no":' || c.chunk_no || ',"status":"' || c.status
    || '","attempts":' || c.attempts || ',"recoveries":' || c.recoveries
    || ',"outcome":' || COALESCE(replace(replace(c.outcome::text, E'\n', ' '), E'\r', ' '), 'null')
    || ',"error":' || COALESCE(to_json(c.error)::text, 'null')
    || ',"finished_at":' || COALESCE(to_json(c.finished_at)::text, 'null') || '}' AS line
FROM runherd.chunks c
WHERE c.run_shard = $2::int AND c.run_id = $1::uuid AND c.chunk_no > $3::bigint
    AND c.status <> 'open' AND ($5::text IS NULL OR c.status = $5::text)
ORDER BY c.chunk_no
LIMIT $4::bigint
