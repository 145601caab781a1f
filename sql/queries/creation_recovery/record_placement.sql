-- Records that a placement is seeded; no row means that the token was lost.
-- On the control database; served by the primary keys.
-- $1 run id · $2 token · $3 placement
WITH held AS MATERIALIZED (
    SELECT r.run_id FROM runherd.runs r
    WHERE r.run_id = $1::uuid AND r.creation_token = $2::uuid AND r.status IN ('creating', 'pending', 'running')
    FOR SHARE
)
UPDATE runherd.run_placements p
SET seeded_at = COALESCE(p.seeded_at, now()), reseed_at = NULL
FROM held
WHERE p.run_id = held.run_id AND p.placement_id = $3::int
RETURNING p.run_id
