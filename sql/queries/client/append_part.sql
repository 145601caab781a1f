-- Appends the next part of a run that is being submitted, and renews its creation lease; a part that is there already, with the
-- same content, is `present`.
-- On the control database; served by the primary keys.
-- $1 run id · $2 creation token · $3 part number · $4 chunks in it · $5 body as JSON text, stored verbatim · $6 lease ms
SELECT runherd.append_part($1::uuid, $2::uuid, $3::int, $4::int, $5::text::json, $6::bigint * interval '1 ms') AS outcome
