-- How a run stands on a placement: its guard, its positions, and its chunks in flight. `progress` changes whenever a chunk is
-- seeded, handed out, leased, given back or finished.
-- On the placement; served by the primary keys; reads no more than the run's chunks in flight.
-- $1 run id
SELECT g.status AS guard_status, g.outcome AS guard_outcome, COALESCE(g.dispatch_window, 0) AS dispatch_window,
    s.seeded_chunks, p.chunks, p.handed_out, p.finished, p.drained,
    a.in_flight, a.leased, a.lease_ms, a.expired, a.expired_for_ms, a.waiting, a.ready_in_ms, a.unleased, a.unleased_for_ms,
    concat_ws(':', s.seeded_chunks, p.handed_out, p.finished, p.drained, a.in_flight, a.numbers, a.generations, a.leased,
        a.last_leased_at) AS progress
FROM (SELECT $1::uuid AS run_id) k
LEFT JOIN runherd.run_guards g ON g.run_id = k.run_id
CROSS JOIN LATERAL (
    SELECT COALESCE(sum(s.chunk_count), 0)::bigint AS seeded_chunks FROM runherd.seeded_parts s WHERE s.run_id = k.run_id
) s
CROSS JOIN LATERAL (
    SELECT COALESCE(sum(p.chunk_count), 0)::bigint AS chunks, COALESCE(sum(p.next_chunk_no), 0)::bigint AS handed_out,
        COALESCE(sum(p.low_chunk_no), 0)::bigint AS finished, count(*) FILTER (WHERE p.drained_at IS NOT NULL) AS drained
    FROM runherd.shard_positions p WHERE p.run_id = k.run_id
) p
CROSS JOIN LATERAL (
    SELECT count(a.chunk_no) AS in_flight,
        count(*) FILTER (WHERE a.expires_at > now()) AS leased,
        (extract(epoch FROM max(a.expires_at) - now()) * 1000)::bigint AS lease_ms,
        count(*) FILTER (WHERE a.expires_at <= now()) AS expired,
        (extract(epoch FROM now() - min(a.expires_at)) * 1000)::bigint AS expired_for_ms,
        count(*) FILTER (WHERE a.lease_token IS NULL AND a.ready_at > now()) AS waiting,
        (extract(epoch FROM min(a.ready_at) FILTER (WHERE a.lease_token IS NULL AND a.ready_at > now()) - now()) * 1000)::bigint
            AS ready_in_ms,
        count(*) FILTER (WHERE a.lease_token IS NULL AND a.ready_at <= now()) AS unleased,
        (extract(epoch FROM now() - min(a.ready_at) FILTER (WHERE a.lease_token IS NULL)) * 1000)::bigint AS unleased_for_ms,
        sum(a.chunk_no) AS numbers, sum(a.generation) AS generations, max(a.leased_at) AS last_leased_at
    FROM runherd.shard_positions p
    JOIN runherd.active_chunks a ON a.run_shard = p.run_shard AND a.run_id = p.run_id AND a.chunk_no >= p.low_chunk_no
    WHERE p.run_id = k.run_id
) a
