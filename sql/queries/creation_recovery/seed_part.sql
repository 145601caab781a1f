-- Seeds one part on a placement; see runherd.seed_part. Answers seeded, present or closed.
-- $1 run id · $2 shard · $3 part · $4 first chunk · $5 chunks · $6 body as text · $7 queue · $8 policy
SELECT runherd.seed_part($1::uuid, $2::int, $3::int, $4::bigint, $5::int, ($6::text)::json, $7::text, $8::jsonb) AS result
