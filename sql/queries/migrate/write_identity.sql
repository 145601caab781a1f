-- Writes which installation and placement this database is, once and for ever.
-- On the placement.
-- $1 installation · $2 placement · $3 name
INSERT INTO runherd.placement_identity (installation_id, placement_id, name) VALUES ($1::uuid, $2::int, $3::text)
ON CONFLICT DO NOTHING
