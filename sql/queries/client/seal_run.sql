-- Seals a run with exactly these parts; sealing it again with the same ones succeeds again.
-- On the control database; served by the primary keys.
-- $1 run id · $2 creation token · $3 parts · $4 the digest of their chain
SELECT runherd.seal_run($1::uuid, $2::uuid, $3::int, $4::bytea) AS chunks
