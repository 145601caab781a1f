-- How many coordinators are known, how many of them were seen lately, and the last one that was.
-- On the control database; one row for each process that ever registered and was not removed.
-- $1 ms within which a coordinator counts as alive
SELECT count(*) AS known, count(*) FILTER (WHERE c.seen_at > now() - $1::bigint * interval '1 ms') AS alive,
    (extract(epoch FROM now() - max(c.seen_at)) * 1000)::bigint AS last_seen_ms_ago,
    (array_agg(c.host ORDER BY c.seen_at DESC))[1] AS last_host
FROM runherd.coordinators c
