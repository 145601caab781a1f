-- Whether a history of migrations is there yet.
-- On every database.
-- $1 the table's qualified name
SELECT to_regclass($1::text) IS NOT NULL AS present
