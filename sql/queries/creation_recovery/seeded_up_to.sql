-- Where a replay resumes: the highest part that a placement holds of a run, -1 for none. Every holder of the creation token
-- seeds in order, and a failover keeps a prefix of the log, so the parts below are there too.
-- On the placement; served by the primary key of seeded_parts.
-- $1 run id
SELECT COALESCE((SELECT s.part_no FROM runherd.seeded_parts s WHERE s.run_id = $1::uuid ORDER BY s.part_no DESC LIMIT 1), -1)
    AS part_no
